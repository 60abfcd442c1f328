"""The parts of the package: which packages they need, and what a missing one is explained by."""

from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

from deepsearch_rl.cli.package_parts import explain_missing_module


def test_the_base_and_retrieval_ask_for_no_torch() -> None:
    for line in map(Requirement, requires("deepsearch-rl") or []):
        for extra in ("", "retrieval"):
            if line.marker is None or line.marker.evaluate({"extra": extra}):
                assert line.name != "torch", extra


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("faiss", "faiss-cpu", "[retrieval]"),
        ("Stemmer", "pystemmer", "[retrieval]"),
        ("swift.llm", "ms-swift", "[train]"),
        ("docx", "python-docx", "[documents]"),
        ("httpx", "httpx", ""),
    ],
)
def test_a_missing_module_is_explained_by_the_part_that_brings_it(
    module: str, package: str, extra: str
) -> None:
    text = explain_missing_module(ModuleNotFoundError(name=module))
    command = f"'deepsearch-rl{extra}'" if extra else "deepsearch-rl"
    assert text == (
        f"this needs the package {package}, which is not installed; run `pip install {command}`."
    )


def test_a_module_that_no_part_brings_is_not_explained() -> None:
    assert explain_missing_module(ModuleNotFoundError(name="no_such_module")) is None
