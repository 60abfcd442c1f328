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
    """Have libraries that ask which distribution holds a package look for that one alone.

    transformers and trl ask for a few. :func:`importlib.metadata.packages_distributions` reads the
    files of all that are installed.
    """
    scan = cache(importlib.metadata.packages_distributions)
    importlib.metadata.packages_distributions = lambda: _Distributions(scan)


class _Distributions(Mapping[str, list[str]]):
    """The distributions that hold each package; all are read for a package that has no distribution of its name."""

    def __init__(self, scan: Callable[[], Mapping[str, list[str]]]) -> None:
        self._scan = scan

    def __getitem__(self, package: str) -> list[str]:
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            # As PIL, which is of pillow
            return self._scan()[package]

        return [package]

    def __iter__(self) -> Iterator[str]:
        return iter(self._scan())

    def __len__(self) -> int:
        return len(self._scan())


def begin_loading() -> None:
    """Collect no garbage until :func:`end_loading`: what libraries make while they load stays.

    To look through it again and again is a tenth of the time that loading takes.
    """
    gc.disable()


def end_loading() -> None:
    """Collect garbage from here on, and never among what was made until now."""
    gc.freeze()
    gc.enable()


@contextmanager
def loading_libraries() -> Iterator[None]:
    """Collect no garbage in this block, as between :func:`begin_loading` and :func:`end_loading`."""
    begin_loading()
    try:
        yield
    finally:
        end_loading()
