"""Encoders with weights, over tiny ones with random weights in the layouts that real ones are published in."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from transformers import AutoModel, AutoTokenizer

from deepsearch_rl.core.errors import ArtifactError, UnavailableError
from deepsearch_rl.search.encoders.sentence_transformers import SentenceTransformersEncoder
from tests.search.encoders.folders import (
    encoder_config,
    write_bert,
    write_qwen3_embedding,
    write_sentence_bert,
)

TEXTS = [
    "comet",
    "a lander on a river on a comet on a river",
    "river",
    "a lander",
    "the probes on the city",
]


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("bert"))


def reference(folder: Path, text: str, pooling: str) -> np.ndarray:
    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.inference_mode():
        hidden_TD = AutoModel.from_pretrained(folder)(**tokens).last_hidden_state[0]
    pooled_D = {"cls": hidden_TD[0], "lasttoken": hidden_TD[-1], "mean": hidden_TD.mean(0)}[pooling]
    return torch.nn.functional.normalize(pooled_D, dim=0).numpy()


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_tokens_are_pooled_over_the_prefixed_text(bert_folder: Path, pooling: str) -> None:
    encoder = SentenceTransformersEncoder(encoder_config(bert_folder, pooling=pooling))
    [vector] = encoder.encode(["a comet"], "query")
    assert vector == pytest.approx(reference(bert_folder, "query: a comet", pooling), abs=1e-5)
    assert not np.allclose(vector, reference(bert_folder, "a comet", pooling), atol=1e-2)


def test_the_last_token_and_a_dense_step_give_the_vector_of_a_folder_like_qwen3_embedding(
    tmp_path: Path,
) -> None:
    root = write_qwen3_embedding(tmp_path)
    config = encoder_config(
        root, pooling=None, query_prefix=None, passage_prefix=None, batch_tokens=48
    )
    encoder = SentenceTransformersEncoder(config)
    vectors_ND = encoder.encode(TEXTS, "query")
    assert (encoder.dimension, vectors_ND.shape) == (6, (len(TEXTS), 6))
    weight_DE = load_file(root / "3_Dense" / "model.safetensors")["linear.weight"]
    model, tokenizer = AutoModel.from_pretrained(root), AutoTokenizer.from_pretrained(root)
    for text, vector_D in zip(TEXTS, vectors_ND, strict=True):
        tokens = tokenizer(f"query: {text}", return_tensors="pt", truncation=True, max_length=12)
        with torch.inference_mode():
            last_E = model(input_ids=tokens.input_ids).last_hidden_state[0, -1]
        expected_D = torch.nn.functional.normalize(torch.tanh(weight_DE @ last_E), dim=0)
        assert vector_D == pytest.approx(expected_D.numpy(), abs=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 30, 1000])
def test_a_vector_does_not_depend_on_its_neighbours(bert_folder: Path, batch_tokens: int) -> None:
    batched_ND = SentenceTransformersEncoder(
        encoder_config(bert_folder, batch_tokens=batch_tokens)
    ).encode(TEXTS, "query")
    alone = SentenceTransformersEncoder(encoder_config(bert_folder))
    assert batched_ND == pytest.approx(
        np.vstack([alone.encode([text], "query") for text in TEXTS]), abs=1e-5
    )


def test_each_side_has_its_own_prefix(bert_folder: Path) -> None:
    encoder = SentenceTransformersEncoder(encoder_config(bert_folder))
    plain = SentenceTransformersEncoder(
        encoder_config(bert_folder, query_prefix="", passage_prefix="")
    )
    for kind in ("query", "passage"):
        expected_ND = plain.encode([f"{kind}: comet"], "query")
        assert encoder.encode(["comet"], kind) == pytest.approx(expected_ND, abs=1e-6)
    assert not np.allclose(
        encoder.encode(["comet"], "query"), encoder.encode(["comet"], "passage"), atol=1e-2
    )


def test_what_lies_behind_max_tokens_is_not_read(bert_folder: Path) -> None:
    encoder = SentenceTransformersEncoder(encoder_config(bert_folder, max_tokens=6))
    cut, longer, shorter = encoder.encode(
        ["a comet", "a comet river city", "comet"], "query"
    )  # [CLS] query : a comet [SEP]
    assert longer == pytest.approx(cut, abs=1e-5)
    assert not np.allclose(shorter, cut, atol=1e-2)


SILENT = {"pooling": None, "query_prefix": None, "passage_prefix": None, "max_tokens": None}
"""Params that leave everything to the folder."""
PROMPTS = {"prompts": {"query": "query: ", "document": "passage: "}}


@pytest.mark.parametrize("transformer", ["", "0_Transformer"])
def test_a_sentence_transformers_folder_needs_no_params(tmp_path: Path, transformer: str) -> None:
    root = write_sentence_bert(
        tmp_path,
        transformer,
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
        sentence_bert_config={"max_seq_length": 9, "do_lower_case": True},
        config_sentence_transformers=PROMPTS,
    )
    silent = SentenceTransformersEncoder(encoder_config(root, **SILENT))
    plain = SentenceTransformersEncoder(
        encoder_config(write_bert(tmp_path / "plain"), pooling="cls", max_tokens=9)
    )
    for kind in ("query", "passage"):
        vectors_ND = silent.encode(["A Comet on a river on a river"], kind)
        expected_ND = plain.encode(["a comet on a river on a river"], kind)
        np.testing.assert_allclose(vectors_ND, expected_ND, atol=1e-6)


def test_params_win_over_the_folders_prompts_and_length(tmp_path: Path) -> None:
    root = write_sentence_bert(
        tmp_path, sentence_bert_config={"max_seq_length": 9}, config_sentence_transformers=PROMPTS
    )
    changed = SentenceTransformersEncoder(
        encoder_config(root, **{**SILENT, "query_prefix": "", "max_tokens": 20})
    )
    write_bert(tmp_path / "plain")
    text = "a lander on a river on a comet on a river"
    # The passage's prefix is the folder's still
    for kind, prefixed in (("query", text), ("passage", f"passage: {text}")):
        [reference_D] = SentenceTransformersEncoder(
            encoder_config(tmp_path / "plain", query_prefix="", max_tokens=20)
        ).encode([prefixed], "query")
        np.testing.assert_allclose(changed.encode([text], kind)[0], reference_D, atol=1e-6)


def test_a_plain_folder_without_a_pooling_is_pooled_by_the_mean(bert_folder: Path) -> None:
    silent = SentenceTransformersEncoder(encoder_config(bert_folder, pooling=None))
    mean = SentenceTransformersEncoder(encoder_config(bert_folder, pooling="mean"))
    np.testing.assert_allclose(
        silent.encode(TEXTS, "query"), mean.encode(TEXTS, "query"), atol=1e-6
    )


def test_a_model_that_is_no_transformer_embeds_any_number_of_texts(
    bert_folder: Path, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bert_folder).backend_tokenizer
    weights = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 8))
    static = StaticEmbedding(tokenizer, embedding_weights=weights.astype(np.float32))
    SentenceTransformer(modules=[static]).save(str(tmp_path / "static"))
    encoder = SentenceTransformersEncoder(
        encoder_config(
            tmp_path / "static",
            pooling=None,
            query_prefix=None,
            passage_prefix=None,
            max_tokens=None,
        )
    )
    alone = np.concatenate([encoder.encode([text], "passage") for text in TEXTS])
    many = encoder.encode(TEXTS * 500, "passage")
    np.testing.assert_allclose(many, np.tile(alone, (500, 1)), atol=1e-6)
    assert len(np.unique(alone.round(4), axis=0)) == len(TEXTS)


def test_threads_that_are_not_named_follow_the_machine() -> None:
    config = encoder_config(Path("encoder"), threads=None)
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(affinity)})
    try:
        assert config.used_threads == 1
    finally:
        os.sched_setaffinity(0, affinity)

    assert encoder_config(Path("encoder"), threads=7).used_threads == 7


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ArtifactError, match=r"no encoder folder .* correct `model` in the index's manifest"
    ):
        SentenceTransformersEncoder(encoder_config(tmp_path / "none"))


def test_a_folder_without_an_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no encoder"):
        SentenceTransformersEncoder(encoder_config(tmp_path))


def test_float16_is_refused_on_a_cpu_and_bfloat16_is_close_to_float32(bert_folder: Path) -> None:
    with pytest.raises(ValidationError, match="slower than float32"):
        encoder_config(bert_folder, dtype="float16")
    full, short = (
        SentenceTransformersEncoder(encoder_config(bert_folder, dtype=dtype)).encode(
            ["the lander", "a comet"], "query"
        )
        for dtype in ("float32", "bfloat16")
    )
    assert (full * short).sum(axis=1).min() > 0.999
    assert not (full == short).all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_named(bert_folder: Path) -> None:
    with pytest.raises(UnavailableError, match="torch finds none"):
        SentenceTransformersEncoder(encoder_config(bert_folder, device="cuda", dtype="float16"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_on_a_gpu_is_close_to_full_precision(bert_folder: Path, dtype: str) -> None:
    exact_ND = SentenceTransformersEncoder(encoder_config(bert_folder)).encode(TEXTS, "query")
    half_ND = SentenceTransformersEncoder(
        encoder_config(bert_folder, device="cuda", dtype=dtype)
    ).encode(TEXTS, "query")
    assert (exact_ND * half_ND).sum(1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-2)


@pytest.mark.parametrize(
    ("query", "passage"),
    [
        ("query", "document"),
        ("s2p_query", "s2p_passage"),
        ("retrieval.query", "retrieval.passage"),
        ("search_query", "search_document"),
        ("Retrieval-query", "Retrieval-document"),
    ],
)
def test_the_prompt_of_queries_is_found_under_the_names_of_published_folders(
    tmp_path: Path, query: str, passage: str
) -> None:
    prompts = {"prompts": {"classification": "city ", query: "query: ", passage: ""}}
    root = write_sentence_bert(tmp_path, config_sentence_transformers=prompts)
    encoder = SentenceTransformersEncoder(encoder_config(root, **SILENT))
    plain = SentenceTransformersEncoder(
        encoder_config(root, **{**SILENT, "query_prefix": "", "passage_prefix": ""})
    )
    np.testing.assert_allclose(
        encoder.encode(["comet"], "query"), plain.encode(["query: comet"], "query"), atol=1e-6
    )
    np.testing.assert_allclose(
        encoder.encode(["comet"], "passage"), plain.encode(["comet"], "passage"), atol=1e-6
    )


def test_prompts_of_which_none_is_known_as_that_of_queries_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = {"prompts": {"s2s": "river ", "classification": "city "}}
    root = write_sentence_bert(tmp_path, config_sentence_transformers=prompts)
    SentenceTransformersEncoder(encoder_config(root, **SILENT))
    assert "queries get no prompt" in caplog.text
    assert "classification, s2s" in caplog.text

    caplog.clear()
    SentenceTransformersEncoder(encoder_config(root, **{**SILENT, "query_prefix": ""}))
    assert "queries get no prompt" not in caplog.text
