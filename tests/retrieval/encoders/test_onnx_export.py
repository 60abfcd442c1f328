"""An export made here against the torch model that it was made from."""

import builtins
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

from deepsearch_rl.errors import ArtifactError, ConfigError, UnavailableError
from deepsearch_rl.retrieval.encoders.onnx_export import OnnxConfig, OnnxEncoder
from deepsearch_rl.retrieval.encoders.transformer import TransformersEncoder
from tests.retrieval.encoders.folders import transformers_config, write, write_bert, write_sentence_bert

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
TEXTS = ["comet", "a lander on a river on a comet on a river", "", "the probes \ud83d of 🚀", "river city"]


class TokenVectors(torch.nn.Module):
    """A BERT as a function of ids and mask, which is what an export is."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.bert = AutoModel.from_pretrained(folder, attn_implementation="eager")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_bert(tmp_path_factory.mktemp("onnx"))
    (root / "onnx").mkdir()
    names = ("input_ids", "attention_mask", "last_hidden_state")
    example = torch.ones((2, 5), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter is deprecated; the newer gives other vectors than torch
        torch.onnx.export(
            TokenVectors(root).eval(),
            (example, example),
            str(root / "onnx" / "model.onnx"),
            input_names=names[:2],
            output_names=names[2:],
            dynamic_axes={name: {0: "batch", 1: "tokens"} for name in names},
            dynamo=False,
        )
    return root


def onnx_config(folder: Path, **changes: object) -> OnnxConfig:
    shared = transformers_config(folder).model_dump(exclude={"dtype"})
    return OnnxConfig.model_validate({**shared, "name": "onnx", **changes})


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
@pytest.mark.parametrize("kind", ["query", "passage"])
def test_an_export_gives_the_models_vectors(folder: Path, pooling: str, kind: str) -> None:
    exported_ND = OnnxEncoder(onnx_config(folder, pooling=pooling)).encode(TEXTS, kind)
    computed_ND = TransformersEncoder(transformers_config(folder, pooling=pooling)).encode(TEXTS, kind)
    assert np.abs(exported_ND - computed_ND).max() < 1e-4
    assert np.linalg.norm(exported_ND, axis=1) == pytest.approx([1, 1, 0, 1, 1], abs=1e-5)


def test_a_vector_does_not_depend_on_its_neighbours(folder: Path) -> None:
    encoder = OnnxEncoder(onnx_config(folder))
    alone_ND = np.vstack([encoder.encode([text], "query") for text in TEXTS])
    assert encoder.encode(TEXTS, "query") == pytest.approx(alone_ND, abs=1e-5)


def test_a_folder_without_an_export_a_tokenizer_or_a_readable_graph_is_refused(folder: Path, tmp_path: Path) -> None:
    bare = write_bert(tmp_path / "bare")
    with pytest.raises(ArtifactError, match=r"neither model\.onnx nor"):
        OnnxEncoder(onnx_config(bare))
    (bare / "model.onnx").write_bytes(b"nothing")
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        OnnxEncoder(onnx_config(bare))
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "tokenizer.json").unlink()
    with pytest.raises(ArtifactError, match=r"tokenizer\.json, which belongs .* No such file"):
        OnnxEncoder(onnx_config(tmp_path / "copy"))


@pytest.mark.parametrize("pooling", [{"pooling_mode": "max"}, {"include_prompt": False}])
def test_a_pooling_that_only_torch_computes_is_refused(tmp_path: Path, pooling: dict[str, object]) -> None:
    root = write_sentence_bert(tmp_path, pooling=pooling)
    with pytest.raises(ConfigError, match="only the encoder `transformers` computes"):
        OnnxEncoder(onnx_config(root, pooling=None))


def test_a_step_that_only_torch_computes_is_refused(tmp_path: Path) -> None:
    root = write_sentence_bert(tmp_path)
    write(root / "modules.json", [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}])
    with pytest.raises(ConfigError, match=r"a step Dense \(modules.json\), which only the encoder `transformers`"):
        OnnxEncoder(onnx_config(root))


def test_without_onnxruntime_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_onnxruntime(name: str, *arguments: object, **options: object) -> object:
        if name == "onnxruntime":
            raise ImportError(name)
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_onnxruntime)
    with pytest.raises(UnavailableError, match="--extra onnx"):
        OnnxEncoder(onnx_config(folder))


def test_a_missing_gpu_is_named(folder: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("onnxruntime can use a GPU here")
    with pytest.raises(UnavailableError, match="onnxruntime-gpu"):
        OnnxEncoder(onnx_config(folder, device="cuda"))
