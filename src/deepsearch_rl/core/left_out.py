"""Modules that libraries load where they are installed, and that a process of ours never calls."""

import sys
from collections.abc import Iterable

# Each with the library that loads it and what for, in a process that loads transformers or NLTK.
# These libraries take a module that is None for one that is not installed.
UNUSED = (
    # transformers, for assisted generation, and NLTK, for classifiers; pandas comes with it
    "sklearn",
    # transformers, for losses of object detection, and NLTK, for measures of association
    "scipy",
    # accelerate, for SageMaker
    "boto3",
    # torch.fx, for drawings of graphs
    "pydot",
    # httpx, for its command line, with rich and pygments
    "httpx._main",
    # httpcore, for HTTP/2
    "h2",
    # httpcore, in place of asyncio
    "trio",
)


def leave_out(modules: Iterable[str]) -> None:
    """Have this process load none of these modules: to import one is ModuleNotFoundError."""
    for module in modules:
        # Python's own way to say that a module cannot be imported, which typeshed does not know
        sys.modules[module] = None  # pyright: ignore[reportArgumentType]
