"""Tiny encoders with random weights, in the layouts that real ones are published in."""

import json
from pathlib import Path

import torch
from sentence_transformers.sentence_transformer.modules import Dense
from transformers import BertConfig, BertModel, BertTokenizerFast, Qwen3Config, Qwen3Model

from deepsearch_rl.search.encoders.sentence_transformers import SentenceTransformersConfig

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    *SPECIAL,
    ":",
    "query",
    "passage",
    "comet",
    "lander",
    "river",
    "on",
    "a",
    "the",
    "probe",
    "##s",
    "city",
]


def write_bert(folder: Path, seed: int = 0) -> Path:
    """A plain transformers folder: tokenizer and a one-layer BERT of 16 dimensions."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(seed)
    shape = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        initializer_range=0.5,  # far from the zero function, so that vectors differ
        max_position_embeddings=64,
    )
    BertModel(shape).save_pretrained(folder)
    return folder


def write_sentence_bert(
    root: Path, transformer: str = "", pooling: dict[str, object] | None = None, **files: object
) -> Path:
    """A sentence-transformers folder; ``files`` are further JSON files by stem, of the transformer or of the root."""
    write_bert(root / transformer)
    types = {"Transformer": transformer, "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"sentence_transformers.models.{name}",
        }
        for index, (name, path) in enumerate(types.items())
    ]
    write(root / "modules.json", modules)
    write(root / "1_Pooling" / "config.json", {"word_embedding_dimension": 16, **(pooling or {})})
    for name, value in files.items():
        write(
            root / (transformer if name == "sentence_bert_config" else "") / f"{name}.json", value
        )
    return root


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def encoder_config(folder: Path, **changes: object) -> SentenceTransformersConfig:
    settings = {
        "name": "sentence_transformers",
        "model": str(folder),
        "revision": None,
        "pooling": "mean",
        "query_prefix": "query: ",
        "passage_prefix": "passage: ",
        "max_tokens": 12,
        "batch_tokens": 64,
        "threads": 1,
        "device": "cpu",
        "dtype": "float32",
    }
    return SentenceTransformersConfig.model_validate({**settings, **changes})


def write_qwen3_embedding(root: Path) -> Path:
    """A folder in Qwen3-Embedding's layout: a decoder, the vector of the last token, a prompt, and a Dense step."""
    write_sentence_bert(
        root,
        pooling={"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True},
        config_sentence_transformers={"prompts": {"query": "query: ", "document": ""}},
    )
    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=8,
        initializer_range=0.5,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    Qwen3Model(shape).save_pretrained(root)
    (root / "3_Dense").mkdir()
    Dense(16, 6, bias=False).save(str(root / "3_Dense"))
    modules = json.loads((root / "modules.json").read_text())
    types = "sentence_transformers.models.Dense"
    write(
        root / "modules.json",
        [*modules[:2], {"idx": 2, "name": "2", "path": "3_Dense", "type": types}],
    )
    return root
