"""Reranking: a cross-encoder's order over a first stage's best hits."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
)

from deepsearch_rl.core.errors import ArtifactError, ConfigError, EndpointError
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.core.records import Chunk
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import Hit, QueriesFailedError
from deepsearch_rl.server.rerank import (
    CrossEncoder,
    Pair,
    RerankedSearcher,
    RerankerConfig,
)
from tests.chunks import make_chunk
from tests.server.searchers import hit

WORDS = ["comet", "lander", "probe", "river", "city", "capital", "moon", "orbit"]
PAIRS: list[Pair] = [
    (query, " ".join(itertools.islice(itertools.cycle(WORDS[start:]), length)))
    for query in ("comet lander", "river")
    for start, length in enumerate((3, 40, 7, 1, 19, 90))
]


def write_model(folder: Path, labels: int, headless: bool = False) -> Path:
    vocabulary = {
        word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    torch.manual_seed(labels)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, num_labels=labels, initializer_range=0.5,
    )  # fmt: skip
    (BertModel(config) if headless else BertForSequenceClassification(config)).save_pretrained(
        folder
    )
    return folder


def config(folder: Path, batch_tokens: int = 256) -> RerankerConfig:
    return RerankerConfig(
        model=folder,
        depth=3,
        max_tokens=64,
        batch_tokens=batch_tokens,
        device="cpu",
        dtype="float32",
    )


@pytest.fixture(scope="module", params=[1, 2])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("reranker"), request.param)


@pytest.mark.slow
def test_scores_are_those_of_the_model_pair_by_pair_whatever_the_batches(folder: Path) -> None:
    encoder = CrossEncoder(config(folder))
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    expected = []
    for query, passage in PAIRS:
        tokens = tokenizer(
            query, passage, truncation="longest_first", max_length=64, return_tensors="pt"
        )
        with torch.inference_mode():
            logits = model(**tokens).logits[0]
        expected.append(float(logits[0] if len(logits) == 1 else logits[1] - logits[0]))
    # The model tells passages apart
    assert len({round(score, 3) for score in expected}) > len(PAIRS) // 2
    for batch_tokens in (1, 128, 100_000):
        scores = CrossEncoder(config(folder, batch_tokens)).score(PAIRS)
        np.testing.assert_allclose(scores, expected, atol=1e-4)
    np.testing.assert_allclose(encoder.score(PAIRS[::-1]), expected[::-1], atol=1e-4)


@pytest.mark.parametrize(
    ("labels", "headless", "message"),
    [(3, False, "has 3 labels"), (1, True, "it holds a BertModel")],
)
def test_a_folder_that_is_no_trained_reranker_is_refused(
    tmp_path: Path, labels: int, headless: bool, message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        CrossEncoder(config(write_model(tmp_path, labels, headless)))


def test_a_head_of_another_size_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, labels=1)
    weights = load_file(folder / "model.safetensors")
    weights["classifier.weight"] = torch.zeros(2, 32)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ArtifactError, match="no reranker that can be loaded"):
        CrossEncoder(config(folder))


@pytest.mark.slow
def test_weights_in_the_older_format_are_loaded(tmp_path: Path) -> None:
    folder = write_model(tmp_path, labels=1)
    expected = CrossEncoder(config(folder)).score(PAIRS)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert CrossEncoder(config(folder)).score(PAIRS).tolist() == expected.tolist()


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"there is no folder .*nothing"):
        CrossEncoder(config(tmp_path / "nothing"))
    with pytest.raises(ArtifactError, match="holds no reranker"):
        CrossEncoder(config(tmp_path))


@pytest.mark.parametrize("batch_tokens", [1, 256])
def test_more_tokens_than_the_model_has_positions_are_told_at_warm_up(
    folder: Path, batch_tokens: int
) -> None:
    CrossEncoder(config(folder, batch_tokens)).warm_up()
    longer = config(folder, batch_tokens).model_copy(update={"max_tokens": 65})
    with pytest.raises(
        ConfigError, match=r"cannot read 65 tokens as float32 on cpu: .*Lower max_tokens"
    ):
        CrossEncoder(longer).warm_up()


def test_scores_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(write_model(tmp_path, labels=1))
    torch.nn.init.constant_(model.classifier.bias, torch.nan)
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"not finite as float32; choose"):
        CrossEncoder(config(tmp_path)).score(PAIRS)


def test_a_device_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    options = {"reranker.model": tmp_path, "reranker.device": "tpu"}
    with pytest.raises(ConfigError, match=r"reranker\.device.*Valid names: cpu, cuda"):
        load_preset("retrieve").with_overrides(options).section("reranker", RerankerConfig)


def chunk(row: int) -> Chunk:
    return make_chunk(f"T{row}\n{'x' * (row % 3)}", f"c{row}")


@dataclass
class FirstStage:
    """Finds rows 9, 8, 7, ... down to ``least``."""

    least: int = 0
    asked: list[tuple[int, Filter | None]] = field(default_factory=list)

    def find_hits(
        self, queries: Sequence[str], top_k: int, where: Filter | None = None
    ) -> list[list[Hit]]:
        self.asked.append((top_k, where))
        rows = [row for row in range(9, self.least - 1, -1)][:top_k]
        return [
            [Hit(row, float(row), chunk(row)) for row in rows] if query else [] for query in queries
        ]


class ByLength:
    """Scores a passage by its length, so that scores tie."""

    def score(self, pairs: Sequence[Pair]) -> np.ndarray:
        return np.array([len(passage) for _, passage in pairs], dtype=np.float32)


def rows(found: list[list[Hit]]) -> list[list[int]]:
    return [[hit.row for hit in hits] for hits in found]


def test_the_best_hits_are_put_in_order_and_ties_keep_the_first_stages_order() -> None:
    # Lengths of rows 9 to 4: 0 2 1 0 2 1
    searcher = RerankedSearcher(FirstStage(), ByLength(), depth=6)
    assert rows(searcher.find_hits(["q", "", "q"], 6)) == [
        [8, 5, 7, 4, 9, 6],
        [],
        [8, 5, 7, 4, 9, 6],
    ]


def test_a_larger_top_k_continues_a_smaller_one_with_falling_scores() -> None:
    searcher = RerankedSearcher(FirstStage(), ByLength(), depth=4)
    [most] = searcher.find_hits(["q"], 10)
    assert [hit.row for hit in most] == [8, 7, 9, 6, 5, 4, 3, 2, 1, 0]
    assert all(first.score >= second.score for first, second in itertools.pairwise(most))
    assert [rows(searcher.find_hits(["q"], top_k))[0] for top_k in range(1, 10)] == [
        [hit.row for hit in most[:top_k]] for top_k in range(1, 10)
    ]


def test_nothing_is_padded_and_the_filter_reaches_the_first_stage() -> None:
    first = FirstStage(least=8)
    where = Filter(source="x")
    assert rows(RerankedSearcher(first, ByLength(), depth=5).find_hits(["q"], 4, where)) == [[8, 9]]
    assert first.asked == [(5, where)]
    assert RerankedSearcher(first, ByLength(), depth=5).find_hits([], 4) == []


def test_a_reranker_orders_the_hits_of_the_queries_that_did_not_fail() -> None:
    class Partial:
        def find_hits(
            self,
            queries: Sequence[str],  # noqa: ARG002
            top_k: int,  # noqa: ARG002
            where: Filter | None = None,  # noqa: ARG002
        ) -> list[list[Hit]]:
            raise QueriesFailedError([[hit("far"), hit("near")], EndpointError("refused.")])

    class Nearness:
        def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
            return np.array(["near" in contents for _, contents in pairs], dtype=np.float32)

    reranked = RerankedSearcher(Partial(), Nearness(), depth=2)  # type: ignore[arg-type]
    with pytest.raises(
        QueriesFailedError, match="1 of 2 queries failed, the first one because refused"
    ) as raised:
        reranked.find_hits(["a", "b"], 1)
    [hits, failure] = raised.value.outcomes
    assert isinstance(hits, list)
    assert [each.chunk.id for each in hits] == ["near"]
    assert isinstance(failure, EndpointError)
