"""The layouts in which encoders are published, read without weights where weights do not matter."""

import itertools
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.search.encoders.batches import (
    MIN_TOKENS,
    ParallelBatches,
    cheapest_batches,
    shared_budget,
)
from deepsearch_rl.search.encoders.model_folder import (
    BATCH_TOKENS,
    ModelFolder,
    read_model_folder,
)
from deepsearch_rl.search.encoders.sentence_transformers import SentenceTransformersEncoder
from tests.search.encoders.folders import (
    encoder_config,
    write,
    write_bert,
    write_sentence_bert,
)

SILENT = {"pooling": None, "query_prefix": None, "passage_prefix": None, "max_tokens": None}
"""Params that leave everything to the folder."""
PROMPTS = {"prompts": {"query": "query: ", "document": "passage: "}}


def read_folder(root: Path, **changes: object) -> ModelFolder:
    return read_model_folder(encoder_config(root, **{**SILENT, **changes}), "*.safetensors")


@pytest.mark.parametrize("transformer", ["", "0_Transformer"])
def test_a_sentence_transformers_folder_needs_no_params(tmp_path: Path, transformer: str) -> None:
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    reading = {"max_seq_length": 9, "do_lower_case": True}
    root = write_sentence_bert(
        tmp_path,
        transformer,
        pooling,
        sentence_bert_config=reading,
        config_sentence_transformers=PROMPTS,
    )
    folder = read_folder(root)
    assert (folder.pooling, folder.max_tokens, folder.transformer) == ("cls", 9, root / transformer)
    assert (folder.prefixes, folder.lower_case) == (
        {"query": "query: ", "passage": "passage: "},
        True,
    )
    silent = SentenceTransformersEncoder(encoder_config(root, **SILENT))
    plain = SentenceTransformersEncoder(
        encoder_config(write_bert(tmp_path / "plain"), pooling="cls", max_tokens=9)
    )
    for kind in ("query", "passage"):
        vectors_ND = silent.encode(["A Comet"], kind)
        np.testing.assert_allclose(vectors_ND, plain.encode(["a comet"], kind), atol=1e-6)


def test_params_win_over_prompts_and_length_but_not_over_pooling(tmp_path: Path) -> None:
    root = write_sentence_bert(
        tmp_path, sentence_bert_config={"max_seq_length": 9}, config_sentence_transformers=PROMPTS
    )
    folder = read_folder(root, max_tokens=20, query_prefix="")
    assert (folder.max_tokens, folder.prefixes) == (20, {"query": "", "passage": "passage: "})
    with pytest.raises(ConfigError, match="pooled by mean; the params say cls"):
        read_folder(root, pooling="cls")


@pytest.mark.parametrize(
    ("pooling", "name", "pools_prompt"),
    [
        ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}, "lasttoken", True),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "cls+mean", True),
        ({"pooling_mode": "max"}, "max", True),
        ({"include_prompt": False}, "mean", False),
        (
            {"pooling_mode_weightedmean_tokens": True, "pooling_mode_mean_tokens": False},
            "weightedmean",
            True,
        ),
    ],
)
def test_every_published_form_of_pooling_is_read(
    tmp_path: Path, pooling: dict[str, object], name: str, pools_prompt: bool
) -> None:
    folder = read_folder(write_sentence_bert(tmp_path, pooling=pooling))
    assert (folder.pooling, folder.pools_prompt) == (name, pools_prompt)


def test_a_plain_folder_needs_a_pooling_and_reads_as_many_tokens_as_it_has_positions(
    tmp_path: Path,
) -> None:
    write_bert(tmp_path)
    with pytest.raises(ConfigError, match="set pooling"):
        read_folder(tmp_path)
    folder = read_folder(tmp_path, pooling="cls")
    assert (folder.pooling, folder.max_tokens, folder.prefixes) == (
        "cls",
        64,
        {"query": "", "passage": ""},
    )


def test_a_folders_length_is_cut_to_its_positions_and_a_longer_one_in_params_is_refused(
    tmp_path: Path,
) -> None:
    root = write_sentence_bert(tmp_path, sentence_bert_config={"max_seq_length": 66})
    write(
        root / "config.json",
        {"model_type": "xlm-roberta", "max_position_embeddings": 66, "pad_token_id": 1},
    )
    assert read_folder(root).max_tokens == 64
    with pytest.raises(ConfigError, match="reads 64"):
        read_folder(root, max_tokens=65)


MANY = 10**6


@pytest.mark.parametrize(
    ("batch_tokens", "batches"),
    [
        (64, [[2, 0, 1, 4, 3]]),
        (60, [[2, 0, 1, 4, 3]]),
        # A third pass would save 2 tokens of padding, and cost a pass
        (59, [[2, 0], [1, 4, 3]]),
        (24, [[2, 0], [1, 4, 3]]),
        (12, [[2], [0], [1, 4], [3]]),
        (3, [[2], [0], [1], [4], [3]]),
    ],
)
def test_a_batch_has_no_more_tokens_than_the_budget_but_at_least_one_text(
    batch_tokens: int, batches: list[list[int]]
) -> None:
    assert cheapest_batches([10, 6, 12, 5, 6], batch_tokens, MANY) == batches


@pytest.mark.parametrize("pass_tokens", [1, 20, 300])
@pytest.mark.parametrize("budget", [40, 512])
def test_no_other_groups_of_neighbouring_lengths_cost_less(pass_tokens: int, budget: int) -> None:
    lengths = [12, 3, 3, 7, 19, 7, 8, 12, 4, 3, 12, 28]
    groups = [len(list(same)) for _, same in itertools.groupby(sorted(lengths, reverse=True))]

    def cost(batches: list[list[int]]) -> int:
        return sum(max(lengths[row] for row in batch) * len(batch) for batch in batches)

    def costs_of_cuts() -> Iterator[int]:
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        ends = list(itertools.accumulate(groups))
        for cuts in itertools.product([False, True], repeat=len(ends) - 1):
            bounds = [0, *itertools.compress(ends, cuts), len(order)]
            batches = [order[begin:end] for begin, end in itertools.pairwise(bounds)]
            passes = 0
            for batch in batches:
                passes += math.ceil(len(batch) / max(1, budget // lengths[batch[0]]))
            yield cost(batches) + pass_tokens * passes

    batches = cheapest_batches(lengths, budget, pass_tokens)
    assert sorted(itertools.chain(*batches)) == list(range(len(lengths)))
    # Where a group is cut, the shorter part of its texts has less padding than was counted
    assert cost(batches) + pass_tokens * len(batches) <= min(costs_of_cuts())


@pytest.mark.parametrize(
    ("tokens", "threads", "passes"),
    [(12, 2, 1), (128, 2, 2), (600, 2, 2), (1100, 2, 4), (600, 8, 7)],
)
def test_all_threads_have_about_as_much_to_do(tokens: int, threads: int, passes: int) -> None:
    budget = shared_budget(tokens, 512, threads)
    assert MIN_TOKENS <= budget <= 512
    assert len(cheapest_batches([1] * tokens, budget, 20)) == passes


@pytest.mark.parametrize("threads", [1, 3])
def test_every_text_gets_its_own_vector_on_any_number_of_threads(threads: int) -> None:
    lengths = [row % 40 for row in range(500)]

    def embed(batch: list[int]) -> np.ndarray:
        return np.array([[row, lengths[row]] for row in batch], dtype=np.float32)

    embeddings_ND = ParallelBatches(128, 20, threads).embed(lengths, 2, embed)
    assert embeddings_ND[:, 0].tolist() == list(range(500))
    assert embeddings_ND[:, 1].tolist() == lengths


def test_threads_and_batches_that_are_not_named_follow_the_machine() -> None:
    config = encoder_config(Path("encoder"), threads=None, batch_tokens=None)
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(affinity)})
    try:
        assert config.used_threads == 1
    finally:
        os.sched_setaffinity(0, affinity)

    assert config.used_batch_tokens == BATCH_TOKENS["cpu"]
    assert config.model_dump()["threads"] is None
    assert encoder_config(Path("encoder"), threads=7).used_threads == 7


def test_a_folder_trained_for_another_measure_than_cosine_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = write_sentence_bert(tmp_path, config_sentence_transformers={"similarity_fn_name": "dot"})
    with caplog.at_level(logging.WARNING):
        read_folder(root)
    assert "trained for dot" in caplog.text


def test_a_missing_or_malformed_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(
        ArtifactError, match=r"no encoder folder .* correct `model` in the index's manifest"
    ):
        read_folder(tmp_path / "none")
    (tmp_path / "modules.json").write_text('[{"type": 3}]')
    with pytest.raises(ArtifactError, match=r"modules\.json, field"):
        read_folder(tmp_path)
