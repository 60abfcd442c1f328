"""The ONNX export of an encoder in a plain transformers folder, as published models have it beside their weights."""

import warnings
from pathlib import Path

import torch
from transformers import AutoModel

INPUTS = ("input_ids", "attention_mask")
HIDDEN = "last_hidden_state"


class TokenVectors(torch.nn.Module):
    """The encoder as a function of ids and mask, which is what an export is."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(folder, attn_implementation="eager")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the vectors of all tokens."""
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def export_encoder(folder: Path) -> None:
    """Write ``onnx/model.onnx`` beside the weights of a plain transformers folder."""
    (folder / "onnx").mkdir(exist_ok=True)
    example = torch.ones((2, 5), dtype=torch.int64)
    with warnings.catch_warnings():
        # The older exporter is deprecated; the newer one gives other vectors than torch
        warnings.simplefilter("ignore")
        torch.onnx.export(
            TokenVectors(folder).eval(),
            (example, example),
            str(folder / "onnx" / "model.onnx"),
            input_names=INPUTS,
            output_names=(HIDDEN,),
            dynamic_axes={name: {0: "batch", 1: "tokens"} for name in (*INPUTS, HIDDEN)},
            dynamo=False,
        )
