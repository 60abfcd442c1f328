"""An export made here against the torch model that it was made from."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from deepsearch_rl.core.errors import ArtifactError, ConfigError, UnavailableError
from deepsearch_rl.search.encoders.onnx import OnnxEncoder
from deepsearch_rl.search.encoders.transformer import TransformersEncoder
from tests.search.encoders.folders import (
    onnx_config,
    transformers_config,
    write,
    write_bert,
    write_onnx,
    write_sentence_bert,
)

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
TEXTS = [
    "comet",
    "a lander on a river on a comet on a river",
    "",
    "the probes \ud83d of 🚀",
    "river city",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_onnx(tmp_path_factory.mktemp("onnx"))


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
@pytest.mark.parametrize("kind", ["query", "passage"])
def test_an_export_gives_the_models_vectors(folder: Path, pooling: str, kind: str) -> None:
    exported_ND = OnnxEncoder(onnx_config(folder, pooling=pooling)).encode(TEXTS, kind)
    computed_ND = TransformersEncoder(transformers_config(folder, pooling=pooling)).encode(
        TEXTS, kind
    )
    assert np.abs(exported_ND - computed_ND).max() < 1e-4
    assert np.linalg.norm(exported_ND, axis=1) == pytest.approx([1, 1, 0, 1, 1], abs=1e-5)


def test_a_folder_without_an_export_a_tokenizer_or_a_readable_graph_is_refused(
    folder: Path, tmp_path: Path
) -> None:
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
def test_a_pooling_that_only_torch_computes_is_refused(
    tmp_path: Path, pooling: dict[str, object]
) -> None:
    root = write_sentence_bert(tmp_path, pooling=pooling)
    with pytest.raises(ConfigError, match="only the encoder `transformers` computes"):
        OnnxEncoder(onnx_config(root, pooling=None))


def test_a_step_that_only_torch_computes_is_refused(tmp_path: Path) -> None:
    root = write_sentence_bert(tmp_path)
    write(
        root / "modules.json", [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]
    )
    with pytest.raises(
        ConfigError, match=r"a step Dense \(modules.json\), which only the encoder `transformers`"
    ):
        OnnxEncoder(onnx_config(root))


def test_without_onnxruntime_the_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UnavailableError, match="make environment EXTRAS='--extra onnx'"):
        OnnxEncoder(onnx_config(folder))


def test_a_missing_gpu_is_named(folder: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("onnxruntime can use a GPU here")
    with pytest.raises(UnavailableError, match="onnxruntime-gpu"):
        OnnxEncoder(onnx_config(folder, device="cuda"))
