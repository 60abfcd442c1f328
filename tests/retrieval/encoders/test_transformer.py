"""The transformers encoder over a tiny BERT with random weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, BertTokenizerFast

from deepsearch_rl.errors import ArtifactError, UnavailableError
from deepsearch_rl.retrieval.encoders.transformer import TransformersConfig, TransformersEncoder


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        ":",
        "query",
        "passage",
        "comet",
        "lander",
        "river",
        "on",
        "a",
    ]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    shape = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    BertModel(shape).save_pretrained(folder)
    return folder


def transformers_config(folder: Path, **changes: object) -> TransformersConfig:
    settings = {
        "name": "transformers",
        "model": str(folder),
        "revision": None,
        "query_prefix": "query: ",
        "passage_prefix": "passage: ",
        "max_tokens": 8,
        "batch_size": 2,
        "device": "cpu",
        "dtype": "float32",
    }
    return TransformersConfig.model_validate({**settings, **changes})


def test_a_transformers_folder_is_mean_pooled_over_the_prefixed_text(bert_folder):
    tokens = AutoTokenizer.from_pretrained(bert_folder)("query: a comet", return_tensors="pt")
    with torch.inference_mode():
        pooled = AutoModel.from_pretrained(bert_folder)(**tokens).last_hidden_state[0].mean(0)
    expected = torch.nn.functional.normalize(pooled, dim=0).numpy()
    [vector] = TransformersEncoder(transformers_config(bert_folder)).encode(["a comet"], "query")
    assert vector == pytest.approx(expected, abs=1e-5)


def test_padding_and_batching_do_not_change_a_vector(bert_folder):
    texts = ["comet", "a lander on a river on a comet on a river", "river", "a lander"]
    batched_ND = TransformersEncoder(transformers_config(bert_folder, batch_size=3)).encode(texts, "passage")
    single = TransformersEncoder(transformers_config(bert_folder, batch_size=1))
    assert batched_ND == pytest.approx(np.vstack([single.encode([text], "passage") for text in texts]), abs=1e-5)


def test_queries_and_passages_get_different_prefixes(bert_folder):
    encoder = TransformersEncoder(transformers_config(bert_folder))
    assert not np.allclose(encoder.encode(["comet"], "query"), encoder.encode(["comet"], "passage"))


def test_a_folder_without_an_encoder_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="no encoder"):
        TransformersEncoder(transformers_config(tmp_path))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_named(bert_folder):
    with pytest.raises(UnavailableError, match="torch finds none"):
        TransformersEncoder(transformers_config(bert_folder, device="cuda"))
