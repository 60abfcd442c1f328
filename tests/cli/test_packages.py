"""pyproject.toml names, part by part, what the code of that part imports."""

import tomllib
from functools import cache
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deepsearch_rl.cli.package_parts import (
    DISTRIBUTIONS,
    explain_missing_module,
    packages_of_graph,
    read_parts,
)
from tests.conftest import ROOT
from tools.imports import imported_names

PARTS = {
    "src/deepsearch_rl/": "base",
    "src/deepsearch_rl/corpora/": "retrieval",
    "src/deepsearch_rl/data/token_counts.py": "encoders",
    "src/deepsearch_rl/evaluate/ifeval_prompts.yaml": "train",
    "src/deepsearch_rl/evaluation/report/": "train",
    "src/deepsearch_rl/evaluation/rl_comparison/": "train",
    "src/deepsearch_rl/data/chonkie_spans.py": "chonkie",
    "src/deepsearch_rl/corpora/documents/": "documents",
    "src/deepsearch_rl/evaluate/explain/figure.py": "train",
    "src/deepsearch_rl/evaluate/explain/page.py": "train",
    "src/deepsearch_rl/chat/chat_format.py": "train",
    "src/deepsearch_rl/chat/text_tokens.py": "train",
    "src/deepsearch_rl/engines/": "retrieval",
    "src/deepsearch_rl/search/encoders/model_folder.py": "encoders",
    "src/deepsearch_rl/indexing/": "retrieval",
    "src/deepsearch_rl/measurement/": "retrieval",
    "src/deepsearch_rl/question_writing/": "retrieval",
    "src/deepsearch_rl/retrieval/": "retrieval",
    "src/deepsearch_rl/search_server/": "retrieval",
    "src/deepsearch_rl/search/encoders/encoding.py": "ray",
    "src/deepsearch_rl/search/encoders/onnx.py": "onnx",
    "src/deepsearch_rl/search/encoders/quantization.py": "onnx",
    "src/deepsearch_rl/engines/encoders/transformers/": "encoders",
    "src/deepsearch_rl/server/rerank.py": "encoders",
    "src/deepsearch_rl/search/bm25/lucene.py": "pyserini",
    "src/deepsearch_rl/serving/": "train",
    "src/deepsearch_rl/tracking/": "track",
    "src/deepsearch_rl/environment/": "train",
    "src/deepsearch_rl/training/": "train",
    "src/deepsearch_rl/train/training_set.py": "train",
    "flows/": "orchestrate",
    "stages/": "all",
}
"""The part of a file: that of the longest beginning of its path."""
NEEDS = {
    "encoders": "retrieval",
    "onnx": "encoders",
    "ray": "retrieval",
    "pyserini": "retrieval",
    "chonkie": "retrieval",
    "documents": "retrieval",
    "orchestrate": "all",
}
"""Parts that build on another; all build on the base."""
UNNAMED = {"fastapi", "msgspec", "pillow", "pyarrow", "sqlalchemy", "uvloop", "wandb"}
"""What other packages import or use: pyproject.toml says beside each who does."""
COMMANDS = {
    "boto3",
    "dvc",
    "dvc-gs",
    "dvc-s3",
    "dvc-ssh",
    "evalscope",
    "psycopg2-binary",
    "pyserini",
}
"""Used by their command lines, or loaded by another package by their name."""
ONLY_HERE = {"vllm", "unsloth"}
"""Imported where the gpu profile's own environments have them (profiles/gpu/requirements)."""


def part_of(path: str) -> str:
    return PARTS[max((beginning for beginning in PARTS if path.startswith(beginning)), key=len)]


def declared() -> dict[str, set[str]]:
    """The packages of every part, with those of the parts below it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = {"base": project["dependencies"], **project["optional-dependencies"]}
    own = {
        part: {canonicalize_name(Requirement(line).name) for line in lines[part]} for part in lines
    }
    own["all"] = {
        name for line in lines["all"] for part in Requirement(line).extras for name in own[part]
    }
    return {part: own[part] | own["base"] | below(part, own) for part in own}


def below(part: str, own: dict[str, set[str]]) -> set[str]:
    return own[NEEDS[part]] | below(NEEDS[part], own) if part in NEEDS else set()


@cache
def third_party_imports() -> dict[str, set[str]]:
    """The packages that a file imports, by its path; first-party and standard modules belong to no distribution."""
    distributions = packages_distributions()
    imports = {}
    for folder in ("src", "stages", "flows"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            modules = (
                {name.partition(".")[0] for name in imported_names(path)}
                - ONLY_HERE
                - {"deepsearch_rl"}
            )
            names = {
                canonicalize_name(distribution_of(module, distributions))
                for module in modules & set(distributions)
            }
            imports[path.relative_to(ROOT).as_posix()] = names
    return imports


def distribution_of(module: str, distributions: dict[str, list[str]]) -> str:
    """The distribution of a module; of several that share it, the one called so."""
    names = sorted({canonicalize_name(name) for name in distributions[module]})
    return module if module in names else names[0]


@pytest.mark.slow
def test_every_import_is_declared_in_the_part_of_its_file() -> None:
    allowed = declared()
    undeclared = {
        (path, name)
        for path, names in third_party_imports().items()
        for name in names - allowed[part_of(path)]
    }
    assert not undeclared


@pytest.mark.slow
def test_every_declared_package_is_imported_or_has_its_reason() -> None:
    imported = set().union(*third_party_imports().values())
    own = {package.name for part, packages in read_parts().items() for package in packages}
    assert own - imported - UNNAMED - COMMANDS == set()


def test_base_and_retrieval_ask_for_no_torch_and_pin_no_version_of_it() -> None:
    parts = read_parts()
    assert not {"torch", "transformers"} & {
        package.name for part in ("base", "retrieval") for package in parts[part]
    }
    models = [package for package in parts["encoders"] if package.name in {"torch", "transformers"}]
    assert [package.required for package in models] == ["", ""]


def test_the_graph_needs_every_part_but_further_backends_and_what_servers_and_remotes_need() -> (
    None
):
    further = {"onnx", "ray", "pyserini", "chonkie", "documents", "s3", "gs", "ssh", "postgres"}
    names = {
        package.name
        for part, packages in read_parts().items()
        if part not in further
        for package in packages
    }
    assert packages_of_graph() == names


@pytest.mark.slow
def test_modules_with_another_name_than_their_distribution_are_listed() -> None:
    names = {package.name for packages in read_parts().values() for package in packages}
    modules = {
        name.partition(".")[0]
        for path in (ROOT / "src").rglob("*.py")
        for name in imported_names(path)
    }
    distributions = packages_distributions()
    for module in modules & set(distributions):
        for name in names & {canonicalize_name(name) for name in distributions[module]}:
            assert (
                not module[0].isalpha()
                or canonicalize_name(DISTRIBUTIONS.get(module, module)) == name
            )


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            "faiss",
            "the package faiss-cpu, which is not installed; run `pip install 'deepsearch-rl[retrieval]'`.",
        ),
        (
            "mlflow.tracking",
            "the package mlflow, which is not installed; run `pip install 'deepsearch-rl[track]'`.",
        ),
        (
            "prometheus_client",
            "the package prometheus-client, which is not installed; run `pip install",
        ),
        ("yaml", "the package pyyaml, which is not installed; run `pip install deepsearch-rl`."),
    ],
)
def test_a_missing_module_is_explained_by_the_part_that_brings_it(
    module: str, message: str
) -> None:
    assert message in (explain_missing_module(ModuleNotFoundError(name=module)) or "")


def test_a_module_that_no_part_brings_is_not_explained() -> None:
    assert explain_missing_module(ModuleNotFoundError(name="nowhere")) is None
