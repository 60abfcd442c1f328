"""An export in int8 beside the float32 export that it was made from."""

import platform
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.retrieve import app
from deepsearch_rl.core.errors import ArtifactError, ConfigError, DeepsearchError, UnavailableError
from deepsearch_rl.search.encoders import quantization as quantization_module
from deepsearch_rl.search.encoders.encoder import Kind, Vectors
from deepsearch_rl.search.encoders.onnx import OnnxEncoder
from deepsearch_rl.search.encoders.quantization import adds_in_16_bits, quantize_export
from tests.search.encoders.folders import onnx_config, write, write_bert, write_onnx

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
quantization = pytest.importorskip("onnxruntime.quantization")

TEXTS = ["comet", "a lander on a river on a comet on a river", "", "the probes", "river city"]
LINEAR_LAYERS = 6

# Rounding moves a product of int8 by about 1 %: a weight by .5 % of its size (1/127 of the greatest
# of 16 weights, evenly spread), an input by .6 % (1/255 of the range). Six layers one after another
# move a vector by 2.5 % at most, which is a cosine of .9997; the bound allows twice as much.
LEAST_COSINE = 0.999


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_onnx(tmp_path_factory.mktemp("onnx"))
    write(root / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    (root / "README.md").write_text("licence: mit")
    return root


@pytest.fixture(scope="module")
def quantized(folder: Path) -> Path:
    out = folder.with_name("int8")
    quantize_export(folder, out)
    return out


def vectors_of(folder: Path, other: Path, kind: Kind) -> tuple[Vectors, Vectors]:
    """Return the vectors of the texts by two exports."""
    exact, rounded = (OnnxEncoder(onnx_config(root)) for root in (folder, other))
    return exact.encode(TEXTS, kind), rounded.encode(TEXTS, kind)


def least_cosine(exact_ND: Vectors, rounded_ND: Vectors) -> float:
    """Return the least cosine of two vectors of a text; a blank text has none."""
    return float(np.delete((exact_ND * rounded_ND).sum(axis=1), TEXTS.index("")).min())


@pytest.mark.skipif(adds_in_16_bits(), reason="products of 8 bits overflow without VNNI")
@pytest.mark.parametrize("kind", ["query", "passage"])
def test_vectors_in_int8_are_near_those_in_float32(
    folder: Path, quantized: Path, kind: Kind
) -> None:
    exact_ND, rounded_ND = vectors_of(folder, quantized, kind)
    assert np.linalg.norm(rounded_ND, axis=1) == pytest.approx([1, 1, 0, 1, 1], abs=1e-5)
    assert least_cosine(exact_ND, rounded_ND) > LEAST_COSINE
    assert np.abs(exact_ND - rounded_ND).max() > 1e-5, "nothing was rounded"


def test_the_weights_of_linear_layers_are_int8_with_a_scale_for_each_output(
    quantized: Path,
) -> None:
    weights = weights_of(quantized)
    assert len(weights) == LINEAR_LAYERS
    assert max(np.abs(array).max() for array in weights.values()) == 127

    graph = onnx.load(quantized / "onnx" / "model.onnx").graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for name, array in weights.items():
        scale = arrays[name.replace("_quantized", "_scale")]
        assert scale.shape == (array.shape[1],)


def test_seven_bits_leave_one_unused_and_are_near_float32_on_every_processor(
    folder: Path, tmp_path: Path
) -> None:
    quantize_export(folder, tmp_path / "out", seven_bits=True)
    weights = weights_of(tmp_path / "out")
    assert max(np.abs(array).max() for array in weights.values()) <= 64

    assert least_cosine(*vectors_of(folder, tmp_path / "out", "query")) > LEAST_COSINE


def test_a_processor_without_vnni_is_told_by_its_flags(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu avx avx2 fma\n")
    is_x86 = platform.machine() == "x86_64"
    assert adds_in_16_bits(cpuinfo) == is_x86
    cpuinfo.write_text("flags\t\t: fpu avx2 avx512_vnni\n")
    assert not adds_in_16_bits(cpuinfo)
    assert not adds_in_16_bits(tmp_path / "none")


@pytest.mark.parametrize(("overflows", "seven_bits"), [(True, False), (True, True), (False, False)])
def test_eight_bits_on_a_processor_without_vnni_give_a_warning(
    folder: Path,
    tmp_path: Path,
    overflows: bool,
    seven_bits: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(quantization_module, "adds_in_16_bits", lambda: overflows)
    quantize_export(folder, tmp_path / "out", seven_bits)
    is_warned = any("--seven-bits" in message for message in caplog.messages)
    assert is_warned == (overflows and not seven_bits)


def weights_of(root: Path) -> dict[str, np.ndarray]:
    graph = onnx.load(root / "onnx" / "model.onnx").graph
    return {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 2
    }


def test_the_new_folder_has_what_encoders_read_and_no_weights_for_torch(
    folder: Path, quantized: Path
) -> None:
    copied = {path.relative_to(quantized).as_posix() for path in files(quantized)}
    assert copied == {
        "config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "README.md",
        "1_Pooling/config.json", "onnx/model.onnx",
    }  # fmt: skip
    for name in copied - {"onnx/model.onnx"}:
        assert (quantized / name).read_bytes() == (folder / name).read_bytes()


def test_an_export_beside_the_tokenizer_stays_there(folder: Path, tmp_path: Path) -> None:
    root = shutil.copytree(folder, tmp_path / "root")
    (root / "onnx" / "model.onnx").rename(root / "model.onnx")
    assert quantize_export(root, tmp_path / "out") == tmp_path / "out" / "model.onnx"
    assert OnnxEncoder(onnx_config(tmp_path / "out")).dimension == 16


def test_a_folder_that_cannot_be_quantized_is_refused_and_nothing_is_written(
    folder: Path, quantized: Path, tmp_path: Path
) -> None:
    bare = write_bert(tmp_path / "bare")
    untokenized = shutil.copytree(folder, tmp_path / "untokenized")
    (untokenized / "tokenizer.json").unlink()
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    (damaged / "onnx" / "model.onnx").write_bytes(b"nothing")
    unweighted = shutil.copytree(folder, tmp_path / "unweighted")
    write_identity(unweighted / "onnx" / "model.onnx")

    refuse(ArtifactError, bare, tmp_path / "out", r"neither model\.onnx nor")
    refuse(ArtifactError, tmp_path / "nowhere", tmp_path / "out", r"neither model\.onnx nor")
    refuse(ArtifactError, untokenized, tmp_path / "out", r"no tokenizer\.json")
    refuse(ArtifactError, damaged, tmp_path / "out", "is no ONNX model")
    refuse(ArtifactError, unweighted, tmp_path / "out", "no linear layer")
    refuse(ArtifactError, quantized, tmp_path / "out", "is quantized already")
    refuse(ConfigError, folder, folder / "int8", "lies in")


def write_identity(path: Path) -> None:
    shape = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [shape], [result])), path)


def refuse(kind: type[DeepsearchError], root: Path, out: Path, message: str) -> None:
    with pytest.raises(kind, match=message):
        quantize_export(root, out)
    assert not out.exists()


def test_a_folder_with_files_is_not_replaced(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        quantize_export(folder, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_quantization_that_fails_leaves_no_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_source: Path, target: Path, **_options: object) -> None:
        target.write_bytes(b"half of a model")
        raise RuntimeError("no such operator")

    monkeypatch.setattr(quantization, "quantize_dynamic", fail)
    refuse(ArtifactError, folder, tmp_path / "out", "cannot be quantized: no such operator")
    assert not list(tmp_path.iterdir())


def test_without_onnx_the_extra_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    refuse(UnavailableError, folder, tmp_path / "out", "make environment EXTRAS='--extra onnx'")


def test_the_command_says_what_it_wrote(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "int8"
    result = CliRunner().invoke(app, ["quantize", str(folder), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{out / 'onnx' / 'model.onnx'}: 0.1 MB")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--engine", "onnx"], "are of an encoder with weights"),
        (["--dtype", "bfloat16"], "are of an encoder with weights"),
        (["--encoder", "e", "--engine", "onnx", "--dtype", "bfloat16"], "an encoder in torch"),
    ],
)
def test_options_of_encoders_with_weights_are_refused_elsewhere(
    options: list[str], reason: str
) -> None:
    line = ["build", "--corpus", "corpus.jsonl", "--out", "index", *options]
    error = CliRunner().invoke(app, line).exception
    assert isinstance(error, ConfigError)
    assert reason in str(error)


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]
