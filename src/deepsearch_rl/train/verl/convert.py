"""veRL 0.9.1's ``model_merger`` without its rounding: it makes bfloat16 of all weights, whatever they are.

    python -m deepsearch_rl.train.verl.convert merge --backend fsdp --local_dir ... --target_dir ...

The method that rounds returns its tensor unchanged in this process, where nothing else asks for
bfloat16. A run in bfloat16 takes the merger as it is.
"""

import importlib
from typing import Any

import torch


def main() -> None:
    """Merge a checkpoint in the dtype that it has."""
    tensor: Any = torch.Tensor
    tensor.bfloat16 = lambda weights: weights
    merger: Any = importlib.import_module("verl.model_merger.__main__")
    merger.main()


if __name__ == "__main__":
    main()
