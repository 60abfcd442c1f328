"""The layouts in which encoders are published, read without weights where weights do not matter."""

import logging

import numpy as np
import pytest

from deepsearch_rl.errors import ArtifactError, ConfigError
from deepsearch_rl.retrieval.encoders.model_folder import read_model_folder
from deepsearch_rl.retrieval.encoders.transformer import TransformersEncoder
from tests.retrieval.encoders.folders import transformers_config, write, write_bert, write_sentence_bert

SILENT = {"pooling": None, "query_prefix": None, "passage_prefix": None, "max_tokens": None}
"""Params that leave everything to the folder."""
PROMPTS = {"prompts": {"query": "query: ", "document": "passage: "}}


def read(folder, **changes):
    return read_model_folder(transformers_config(folder, **{**SILENT, **changes}), "*.safetensors")


@pytest.mark.parametrize("transformer", ["", "0_Transformer"])
def test_a_sentence_transformers_folder_says_everything_itself(tmp_path, transformer):
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    reading = {"max_seq_length": 9, "do_lower_case": True}
    root = write_sentence_bert(
        tmp_path, transformer, pooling, sentence_bert_config=reading, config_sentence_transformers=PROMPTS
    )
    said = read(root)
    assert (said.pooling, said.max_tokens, said.transformer) == ("cls", 9, root / transformer)
    assert said.prompted(["A Comet"], "query") == ["query: a comet"]
    assert said.prompted(["A Comet"], "passage") == ["passage: a comet"]
    explicit = transformers_config(root / transformer, pooling="cls", max_tokens=9)
    if not transformer:
        found_ND = TransformersEncoder(transformers_config(root, **SILENT)).encode(["a comet"], "query")
        assert np.array_equal(found_ND, TransformersEncoder(explicit).encode(["a comet"], "query"))


def test_params_win_over_prompts_and_length_but_not_over_pooling(tmp_path):
    root = write_sentence_bert(
        tmp_path, sentence_bert_config={"max_seq_length": 9}, config_sentence_transformers=PROMPTS
    )
    said = read(root, max_tokens=20, query_prefix="")
    assert (said.max_tokens, said.prefixes) == (20, {"query": "", "passage": "passage: "})
    with pytest.raises(ConfigError, match="pooled by mean; the params say cls"):
        read(root, pooling="cls")


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        {"pooling_mode": "max"},
        {"include_prompt": False},
    ],
)
def test_a_pooling_that_cannot_be_computed_is_refused(tmp_path, pooling):
    with pytest.raises(ConfigError, match="computed here"):
        read(write_sentence_bert(tmp_path, pooling=pooling))


def test_a_step_that_cannot_be_computed_is_refused(tmp_path):
    root = write_sentence_bert(tmp_path)
    write(root / "modules.json", [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}])
    with pytest.raises(ConfigError, match="a step Dense"):
        read(root)


def test_a_plain_folder_needs_its_pooling_said_and_reads_what_it_has_positions_for(tmp_path):
    write_bert(tmp_path)
    with pytest.raises(ConfigError, match="set pooling"):
        read(tmp_path)
    said = read(tmp_path, pooling="cls")
    assert (said.pooling, said.max_tokens, said.prefixes) == ("cls", 64, {"query": "", "passage": ""})


def test_a_length_beyond_the_positions_is_cut_when_the_folder_says_it_and_refused_when_params_do(tmp_path):
    root = write_sentence_bert(tmp_path, sentence_bert_config={"max_seq_length": 66})
    write(root / "config.json", {"model_type": "xlm-roberta", "max_position_embeddings": 66, "pad_token_id": 1})
    assert read(root).max_tokens == 64
    with pytest.raises(ConfigError, match="reads 64"):
        read(root, max_tokens=65)


def test_a_folder_trained_for_another_measure_is_warned_about(tmp_path, caplog):
    root = write_sentence_bert(tmp_path, config_sentence_transformers={"similarity_fn_name": "dot"})
    with caplog.at_level(logging.WARNING):
        read(root)
    assert "trained for dot" in caplog.text


def test_a_missing_or_malformed_folder_is_named(tmp_path):
    with pytest.raises(ArtifactError, match="no encoder folder"):
        read(tmp_path / "none")
    (tmp_path / "modules.json").write_text('[{"type": 3}]')
    with pytest.raises(ArtifactError, match=r"modules\.json, field"):
        read(tmp_path)
