"""What lets a process start sooner: it leaves out what it never needs of the libraries that it loads."""

import gc
import importlib.metadata
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

# Modules that libraries load where they are installed, and that a process of ours never calls.
#
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


def leave_out_package_scan() -> None:
    """Have transformers ask for the packages that it looks for, and not for the files of all that are installed.

    It reads the whole of :func:`importlib.metadata.packages_distributions` to find their versions.
    """
    scan = cache(importlib.metadata.packages_distributions)
    importlib.metadata.packages_distributions = lambda: _Distributions(scan)


class _Distributions(dict[str, list[str]]):
    """The distributions that hold a package, looked up when they are asked for."""

    def __init__(self, scan: Callable[[], Mapping[str, list[str]]]) -> None:
        super().__init__()
        self._scan = scan

    def __missing__(self, package: str) -> list[str]:
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            # Named otherwise, as PIL of pillow is
            return self._scan()[package]

        return [package]


@contextmanager
def loading_libraries() -> Iterator[None]:
    """Keep the garbage collector from what is made in this block, now and later: a library that is loaded stays.

    To look through it again and again is a tenth of the time that loading takes.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
