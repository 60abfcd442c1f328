"""Linear layers for inference on a CPU, with weights in the layout in which oneDNN multiplies them.

torch's own linear layer brings the weights into that layout in every call, or reads them as they
lie. That is a tenth to a third of the time (docs/measurements.md). The operators are those that
``torch.compile`` writes for such a layer, without compiling. Results differ from torch's in the last
bits.
"""

import ctypes

import torch

# glibc's names for the size from which an allocation is mapped and unmapped by itself, and for the
# free memory above which the heap is given back (mallopt(3))
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
KEPT_BYTES = 32 * 2**20


class PackedLinear(torch.nn.Module):
    """A linear layer whose weights were packed when it was made."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.bias = layer.bias
        self.in_features = layer.in_features
        self.out_features = layer.out_features
        self._packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())  # pyright: ignore[reportPrivateUsage]

    @property
    def weight(self) -> torch.Tensor:
        """The weights as the layer had them, unpacked anew."""
        return self._packed.to_dense()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the layer's outputs."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self._packed, self.bias, "none", [], "")


def pack_linear_layers(model: torch.nn.Module) -> None:
    """Replace the linear layers of a model on a CPU, where torch was built with oneDNN."""
    if not torch.backends.mkldnn.is_available():
        return

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Linear and child.weight.dtype == torch.float32:
                setattr(module, name, PackedLinear(child))


def keep_freed_memory() -> None:
    """Let the C library keep what one forward pass frees for the next one.

    It would give activations back to the kernel, which clears every page again for the next pass: a
    tenth of the time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
