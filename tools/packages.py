"""`make params`: packages.json of every profile, the locked versions of what each stage imports.

    python -m tools.packages          # every packages.json alone; `make environment` does so after a changed lock

A result depends on the packages that made it, but not on all of a lock. So packages.json names for
each stage those that its source files import, by the interpreter that imports them: ``{stage:
{family: {distribution: version}}}``. Its stage's entry is a param of every stage in dvc.yaml, so
DVC compares and records it: an upgrade runs the stages again that import the package, and no other
one. The versions are those of ``uv.lock`` where an interpreter of the profile is ``.venv``, and of
``profiles/gpu/requirements/`` where it is one of ``.venvs``; for an interpreter of the user's own
the project knows none.

A package counts for a stage if a source file of its closure imports it, at any depth, or names it
in a list or tuple, as a command line (``["swift", "sft"]``) or a requirement does; and with it what
:data:`BENEATH` says. An entry has those of them that the interpreter's lock has.

JSON, because DVC reads the file once for every stage: a hundred times as fast as YAML.
"""

import ast
import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name

from deepsearch_rl.cli.package_parts import DISTRIBUTIONS
from deepsearch_rl.core.files import atomic_file
from deepsearch_rl.core.installed import EITHER, PackageVersions
from deepsearch_rl.core.locked import Versions, locked_versions
from deepsearch_rl.core.profile import PARAMS, read_values
from tools.imports import (
    PACKAGES,
    ROOT,
    closure,
    imported_names,
    parse,
    programs_in,
    unchosen,
)

PACKAGES_FILE = "packages.json"
# Programs, and modules that another package imports, which source files name in lists
NAMED = frozenset(
    {"flash_attn", "flash_attn_interface", "liger_kernel", "swift", "unsloth", "vllm"}
)
# What decides the result of a package's work though no stage imports it. What a package asks for
# in one version alone, as torch does for its CUDA libraries, changes with it and is left out.
BENEATH: Mapping[str, tuple[str, ...]] = {
    "chonkie": ("chonkie-core", "numpy"),
    "datasets": ("pyarrow",),
    # IFEval's words and sentences
    "evalscope": ("nltk",),
    "faiss-cpu": ("numpy",),
    "faiss-gpu": ("numpy",),
    # Where a plot's parts are
    "matplotlib": ("kiwisolver", "numpy"),
    "ms-swift": ("accelerate", "datasets", "numpy", "peft", "torch", "transformers", "trl"),
    "openpipe-art": ("peft", "torch", "transformers"),
    "pandas": ("numpy", "pyarrow"),
    "peft": ("safetensors", "torch", "transformers"),
    "pydantic": ("pydantic-core",),
    "scikit-learn": ("numpy", "scipy"),
    "scipy": ("numpy",),
    "sentence-transformers": ("numpy", "torch", "transformers"),
    "transformers": ("jinja2", "numpy", "safetensors", "tokenizers", "torch"),
    "unsloth": ("bitsandbytes", "peft", "torch", "transformers", "trl", "unsloth-zoo"),
    "vllm": ("numpy", "tokenizers", "torch", "transformers"),
}
# Distributions with the same modules, of which an environment has one
INSTEAD = {"faiss-cpu": "faiss-gpu"}


def packages_text(graph: str, values: Mapping[str, Any]) -> str:
    """Return the text of the packages.json of a profile with this text of dvc.yaml and these params."""
    versions: dict[str, dict[str, PackageVersions]] = {}
    for name, entry in yaml.load(graph, yaml.CSafeLoader)["stages"].items():
        # A stage of a matrix or foreach has its command below "do"
        command = entry.get("do", entry)["cmd"]
        versions[name] = stage_versions(command, values)

    return json.dumps(versions, indent=2, sort_keys=True) + "\n"


def stage_versions(command: str, values: Mapping[str, Any]) -> dict[str, PackageVersions]:
    """Return the versions of what the programs of a stage's command import, by the family of their interpreter."""
    families: dict[str, PackageVersions] = {}
    for family, module in programs_in(command):
        locked = locked_versions(ROOT, values["python"][family])
        versions = families.setdefault(family, {})
        for name in packages_of(module, locked, unchosen(values)):
            versions[name] = EITHER.join(locked[name])

    return families


def packages_of(module: str, locked: Versions, without: frozenset[Path] = frozenset()) -> set[str]:
    """Return the locked distributions that decide what a stage's program does, code ``without`` left out."""
    imported = set(map(distribution_of, third_party_modules(module, without)))
    waiting = imported | {INSTEAD[name] for name in imported & INSTEAD.keys()}
    packages: set[str] = set()

    while waiting:
        name = waiting.pop()
        if name in locked and name not in packages:
            packages.add(name)
            waiting.update(BENEATH.get(name, ()))

    return packages


@cache
def third_party_modules(module: str, without: frozenset[Path] = frozenset()) -> frozenset[str]:
    """Return the top-level modules, neither ours nor Python's, that a stage's program can load."""
    program = ROOT / "stages" / f"{module}.py"
    names: set[str] = set()
    for path in closure(program, without):
        if path.suffix == ".py":
            names |= _modules_of(path)
    return frozenset(names - sys.stdlib_module_names - PACKAGES.keys() - {""})


@cache
def _modules_of(path: Path) -> frozenset[str]:
    imported = {name.partition(".")[0] for name in imported_names(path, with_types=False)}
    return frozenset(imported | NAMED.intersection(_texts_in_lists(path)))


def _texts_in_lists(path: Path) -> Iterator[str]:
    """Yield the texts in the lists and tuples of a file; of ``"one|other"`` either will do."""
    for node in ast.walk(parse(path)):
        for item in node.elts if isinstance(node, ast.List | ast.Tuple) else ():
            if isinstance(item, ast.Constant) and isinstance(item.value, str):
                yield from item.value.split("|")


def distribution_of(module: str) -> str:
    """Return the canonical name of the distribution that has a module."""
    return canonicalize_name(DISTRIBUTIONS.get(module, module))


def generated_packages() -> dict[Path, str]:
    """Return the packages.json that belongs to each dvc.yaml and params.yaml as they are."""
    texts: dict[Path, str] = {}
    for folder in [ROOT, *sorted(path.parent for path in ROOT.glob("profiles/*/profile.yaml"))]:
        graph = (folder / "dvc.yaml").read_text(encoding="utf-8")
        texts[folder / PACKAGES_FILE] = packages_text(graph, read_values(folder / PARAMS))

    return texts


def write_changed(texts: Mapping[Path, str], root: Path, consequence: str = "") -> None:
    """Write every generated file whose text is another one, in place of a link too, and name it from ``root``."""
    for path, text in texts.items():
        is_file = path.is_file() and not path.is_symlink()
        if not is_file or path.read_text(encoding="utf-8") != text:
            with atomic_file(path) as partial:
                partial.write_text(text, encoding="utf-8")
            sys.stderr.write(f"{path.relative_to(root)}: written{consequence}\n")


def write_packages() -> None:
    """Rewrite every packages.json whose text is not the generated one."""
    write_changed(
        generated_packages(), ROOT, "; DVC runs the stages again that import what changed"
    )


if __name__ == "__main__":
    write_packages()
