"""An encoder's ONNX export in int8: a folder that the encoder `onnx` opens as it opens the float32 export.

The weights of linear layers become int8, with a scale for each output; the inputs of a layer are
rounded to 8 bits when it runs, by a scale of the whole batch. So no texts are needed to quantize.
Word vectors, norms and attention stay in float32. docs/measurements.md has what this costs and gains.

No stage loads this module.
"""

import contextlib
import logging
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deepsearch_rl.core.errors import ArtifactError, ConfigError, UnavailableError, install_hint
from deepsearch_rl.core.files import atomic_directory
from deepsearch_rl.core.outputs import require_new_folder
from deepsearch_rl.search.encoders.encoder import first_line
from deepsearch_rl.search.encoders.model_folder import DESCRIPTIONS
from deepsearch_rl.search.encoders.onnx import find_export

# Copied beside the new model: what encoders read, and what the authors say of the weights. The
# weights in float32 are not: nobody shall open them in this folder by mistake.
COPIED = (*DESCRIPTIONS, "*.md", "LICENSE*", "NOTICE*")

# The operators of linear layers, and those that only a quantized model has
LINEAR = ("MatMul", "Gemm")
QUANTIZED = {
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "QLinearMatMul",
    "QuantizeLinear",
}

# What Linux calls the instructions that add products of int8 in 32 bits
VNNI_FLAGS = {"avx512_vnni", "avx_vnni"}
CPUINFO = Path("/proc/cpuinfo")

_LOG = logging.getLogger(__name__)


def adds_in_16_bits(cpuinfo: Path = CPUINFO) -> bool:
    """Return whether this processor is an x86 without VNNI, on which products of int8 overflow."""
    if platform.machine() != "x86_64" or not cpuinfo.is_file():
        return False

    return VNNI_FLAGS.isdisjoint(cpuinfo.read_text(encoding="utf-8").split())


def quantize_export(folder: Path, out: Path, seven_bits: bool = False) -> Path:
    """Write the encoder of ``folder`` to the new folder ``out`` with int8 weights; return the new model's path.

    ``seven_bits`` leaves a bit of the weights unused: processors without VNNI add products in 16
    bits, which overflow otherwise. A warning says so where this processor is one. The folder appears
    whole or not at all.

    Raises:
        ArtifactError: there is no export or no tokenizer, the export cannot be read, is quantized
            already or has no linear layer; or the disk is full.
        ConfigError: ``out`` holds files, or lies in ``folder``.
        UnavailableError: the extra `onnx` is not installed.
    """
    export = _require_export(folder)
    _require_new(folder, out)
    _require_linear_layers(folder / export)
    if not seven_bits and adds_in_16_bits():
        _LOG.warning(
            "this processor has no VNNI, so products of 8 bits overflow: vectors differ more from float32 than on "
            "other processors. Weights of 7 bits (--seven-bits) do not overflow."
        )

    with atomic_directory(out) as partial:
        for path in _copied_files(folder):
            target = partial / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)

        (partial / export).parent.mkdir(exist_ok=True)
        _quantize(folder / export, partial / export, seven_bits)

    return out / export


def _require_export(folder: Path) -> Path:
    """Return the path of the export inside the folder."""
    export = find_export(folder)
    if export is None:
        raise ArtifactError(
            f"{folder} holds neither model.onnx nor onnx/model.onnx: export the encoder first, e.g. by "
            "`optimum-cli export onnx --task feature-extraction`."
        )

    if not any(folder.rglob("tokenizer.json")):
        raise ArtifactError(f"{folder} has no tokenizer.json, which belongs beside an ONNX export.")
    return export


def _require_new(folder: Path, out: Path) -> None:
    require_new_folder(out)
    if out.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{out} lies in {folder}, the folder that is read; name another one.")


def _require_linear_layers(path: Path) -> None:
    """Raise ArtifactError unless the model has linear layers in float."""
    onnx, _ = _libraries()

    # The errors of protobuf and of ONNX have no other root than Exception.
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except Exception as error:
        raise ArtifactError(f"{path} is no ONNX model: {first_line(error)}.") from error

    operators = {node.op_type for node in graph.node}
    if quantized := sorted(operators & QUANTIZED):
        raise ArtifactError(
            f"{path} is quantized already (it has {quantized[0]}): name the folder of the float32 export."
        )

    weights = {tensor.name for tensor in graph.initializer}
    weights |= {node.output[0] for node in graph.node if node.op_type in ("Constant", "Identity")}
    layers = [node for node in graph.node if node.op_type in LINEAR and node.input[1] in weights]
    if not layers:
        raise ArtifactError(f"{path} has no linear layer with weights ({' or '.join(LINEAR)}).")


def _copied_files(folder: Path) -> Iterator[Path]:
    """Yield the files that are copied, without those in hidden folders."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_hidden = any(part.startswith(".") for part in parts)
        if path.is_file() and not is_hidden and any(map(path.match, COPIED)):
            yield path


def _quantize(source: Path, target: Path, seven_bits: bool) -> None:
    _, quantization = _libraries()

    try:
        with _no_advice():
            quantization.quantize_dynamic(
                source,
                target,
                op_types_to_quantize=list(LINEAR),
                # QUInt8 is computed at the speed of float32, and one scale for all outputs is
                # coarser and no faster
                weight_type=quantization.QuantType.QInt8,
                per_channel=True,
                reduce_range=seven_bits,
            )
    except OSError:
        raise
    except Exception as error:
        raise ArtifactError(f"{source} cannot be quantized: {first_line(error)}.") from error


@contextlib.contextmanager
def _no_advice() -> Iterator[None]:
    """Keep onnxruntime's advice to preprocess, which linear layers do not need, out of the log."""

    def is_other(record: logging.LogRecord) -> bool:
        return "pre-processing before quantization" not in record.getMessage()

    # It is logged by the root logger itself
    root = logging.getLogger()
    root.addFilter(is_other)
    try:
        yield
    finally:
        root.removeFilter(is_other)


def _libraries() -> tuple[Any, Any]:
    """Return the packages ``onnx`` and ``onnxruntime.quantization``."""
    try:
        import onnx  # noqa: PLC0415 - an extra
        from onnxruntime import quantization  # noqa: PLC0415 - and it imports onnx
    except ImportError as error:
        raise UnavailableError(
            f"quantizing needs the packages onnx and onnxruntime: {install_hint('onnx')}."
        ) from error

    return onnx, quantization
