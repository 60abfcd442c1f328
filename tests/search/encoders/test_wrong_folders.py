"""Folders that are not the encoder that is meant: incomplete, damaged, or changed since the index was built."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertTokenizerFast

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.encoders.own import OwnEncoderConfig
from deepsearch_rl.search.encoders.sentence_transformers import SentenceTransformersEncoder
from deepsearch_rl.search.searcher import open_index
from tests.chunks import make_chunks
from tests.search.encoders.folders import WORDS, encoder_config, write_bert, write_sentence_bert
from tests.settings import INDEX

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 90868376\n"


def rename(folder: Path, new_name: Callable[[str], str | None]) -> None:
    """Give the weights of a folder other names; None drops one."""
    path = folder / "model.safetensors"
    named = {new_name(name): weight for name, weight in load_file(path).items()}
    save_file({name: weight for name, weight in named.items() if name}, path, {"format": "pt"})


@pytest.mark.parametrize(
    "new_name",
    [
        lambda name: f"model.encoder.{name}",
        lambda name: None if "intermediate.dense.weight" in name else name,
    ],
    ids=["another prefix", "one missing"],
)
def test_weights_whose_names_do_not_match_are_refused(
    tmp_path: Path, new_name: Callable[[str], str | None]
) -> None:
    rename(write_sentence_bert(tmp_path), new_name)
    with pytest.raises(ArtifactError, match=r"no weights for \d+ parameters of its BertModel"):
        SentenceTransformersEncoder(encoder_config(tmp_path, pooling=None))


def test_a_folder_without_a_pooler_that_no_vector_needs_is_an_encoder(tmp_path: Path) -> None:
    rename(write_bert(tmp_path), lambda name: None if "pooler" in name else name)
    first, again = (
        SentenceTransformersEncoder(encoder_config(tmp_path)).encode(["comet"], "query")
        for _ in range(2)
    )
    assert (first == again).all()


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt", "1_Pooling/config.json"])
def test_a_git_lfs_pointer_in_place_of_a_file_is_named(tmp_path: Path, name: str) -> None:
    (write_sentence_bert(tmp_path) / name).write_text(POINTER)
    with pytest.raises(ArtifactError, match=f"{name} is a Git LFS pointer .*git lfs pull"):
        SentenceTransformersEncoder(encoder_config(tmp_path, pooling=None))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "tokenizer.json"])
def test_a_truncated_file_is_an_error_in_one_paragraph(tmp_path: Path, name: str) -> None:
    root = write_sentence_bert(tmp_path)
    if name == "pytorch_model.bin":
        torch.save(load_file(root / "model.safetensors"), root / name)
        (root / "model.safetensors").unlink()
    (root / name).write_bytes((root / name).read_bytes()[:200])
    with pytest.raises(ArtifactError, match="holds no encoder that can be loaded"):
        SentenceTransformersEncoder(encoder_config(tmp_path, pooling=None))


def test_a_folder_without_the_files_of_its_tokenizer_is_refused(tmp_path: Path) -> None:
    root = write_sentence_bert(tmp_path)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (root / name).unlink(missing_ok=True)
    with pytest.raises(ArtifactError, match="has no vocabulary"):
        SentenceTransformersEncoder(encoder_config(root, pooling=None))


@pytest.mark.parametrize("text", ["zebra", "comet " * 99], ids=["unknown", "too many"])
def test_tokens_that_the_weights_do_not_know_are_an_error_with_a_remedy(
    tmp_path: Path, text: str
) -> None:
    root = write_sentence_bert(tmp_path)
    (root / "vocab.txt").write_text("\n".join([*WORDS, "zebra"]))
    BertTokenizerFast(vocab=str(root / "vocab.txt")).save_pretrained(root)
    encoder = SentenceTransformersEncoder(encoder_config(root, max_tokens=80))
    with pytest.raises(ArtifactError, match=r"fails at texts of \d+ tokens: .*max_tokens"):
        encoder.encode([text], "passage")


def test_a_pooling_without_its_config_is_refused(tmp_path: Path) -> None:
    (write_sentence_bert(tmp_path) / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ArtifactError, match="holds no encoder that can be loaded: Pooling"):
        SentenceTransformersEncoder(encoder_config(tmp_path, pooling=None))


def test_an_encoder_of_its_own_for_each_side_is_refused(tmp_path: Path) -> None:
    modules = [Transformer(str(write_bert(tmp_path / "bert"))), Pooling(16, "mean")]
    router = Router.for_query_document(query_modules=modules, document_modules=modules)
    SentenceTransformer(modules=[router]).save(str(tmp_path / "router"))
    with pytest.raises(ArtifactError, match="of their own \\(Router\\)"):
        SentenceTransformersEncoder(encoder_config(tmp_path / "router", pooling=None))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model.safetensors", lambda root: write_bert(root, seed=1)),
        ("1_Pooling/config.json", lambda root: write_pooling(root)),
        ("config_sentence_transformers.json", lambda root: write_prompts(root)),
    ],
)
def test_an_index_is_not_searched_with_an_encoder_that_changed_since(
    tmp_path: Path, name: str, change: Callable[[Path], object]
) -> None:
    root = write_sentence_bert(tmp_path / "encoder")
    write_jsonl(tmp_path / "chunks.jsonl", make_chunks(["comet\nlander", "river\ncity"]))
    config = INDEX.model_copy(update={"encoder": encoder_config(root, pooling=None)})
    build_index(tmp_path / "chunks.jsonl", tmp_path / "index", config, seed=0)
    (root / "README.md").write_text("What nobody encodes with.")
    assert open_index(tmp_path / "index", retriever="dense").find_hits(["comet"], 1)

    change(root)
    with pytest.raises(ArtifactError, match=f"changed since the index was built .*{name}"):
        open_index(tmp_path / "index", retriever="dense")
    assert open_index(tmp_path / "index", retriever="bm25").find_hits(["comet"], 1)


def write_pooling(root: Path) -> None:
    cls = {"word_embedding_dimension": 16, "pooling_mode_cls_token": True}
    (root / "1_Pooling" / "config.json").write_text(json.dumps(cls))


def write_prompts(root: Path) -> None:
    prompts = {"prompts": {"query": "passage: "}}
    (root / "config_sentence_transformers.json").write_text(json.dumps(prompts))


def test_an_index_is_not_searched_with_a_class_whose_file_changed_since(tmp_path: Path) -> None:
    code = tmp_path / "own.py"
    code.write_text(
        "import numpy as np\n\n\nclass Lengths:\n    dimension = 2\n\n"
        "    def encode(self, texts, kind):\n        return np.array([[len(text), 1] for text in texts])\n"
    )
    write_jsonl(tmp_path / "chunks.jsonl", make_chunks(["comet\nlander", "river\ncity"]))
    own = OwnEncoderConfig(name="own", code=f"{code}:Lengths")
    config = INDEX.model_copy(update={"encoder": own})
    build_index(tmp_path / "chunks.jsonl", tmp_path / "index", config, seed=0)
    code.write_text(code.read_text().replace("len(text), 1", "1, len(text)"))
    with pytest.raises(ArtifactError, match="changed since the index was built"):
        open_index(tmp_path / "index", retriever="dense")
