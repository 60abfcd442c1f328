"""``deepsearch retrieve quantize``: an encoder's ONNX export in int8."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deepsearch_rl.cli.targets import writable_folder


def quantize_command(
    model_folder: Annotated[
        Path,
        typer.Argument(
            help="Encoder folder with an export in float32: `model.onnx` or `onnx/model.onnx`, beside "
            "`tokenizer.json`."
        ),
    ],
    out: Annotated[
        Path,
        Option(help="Folder to write; it must not exist, or be empty.", callback=writable_folder),
    ],
    seven_bits: Annotated[
        bool,
        Option(
            "--seven-bits",
            help="For x86 processors without VNNI: weights of 7 bits, which cannot overflow there.",
        ),
    ] = False,
) -> None:
    """Write an encoder's ONNX export with int8 weights, for about half of the time on a CPU.

    The new folder has the export in int8 and the tokenizer, pooling and prompts of the old one; the
    encoder `onnx` opens it as any export. Nothing is learnt from texts. Weights for torch are not
    copied. The folder appears when it is complete. Vectors change a little: compare both folders on
    your own questions before you keep the faster one.

        deepsearch retrieve quantize models/minilm --out models/minilm-int8
        deepsearch retrieve build --corpus corpus.jsonl --out index --encoder models/minilm-int8 --engine onnx
        deepsearch retrieve eval --index index --questions questions.jsonl --retriever dense
    """
    # It loads the reader of encoder folders
    from deepsearch_rl.search.encoders.quantization import quantize_export  # noqa: PLC0415

    model = quantize_export(model_folder, out, seven_bits)
    typer.echo(f"{model}: {model.stat().st_size / 1e6:.1f} MB")
