"""The names that ms-swift knows, as types of params.

They are read from the sources of the installed package: importing it takes 20 s, and params are
checked in one. Where it is not installed, any name passes; the stages that use the names run where
it is.
"""

import ast
import difflib
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

# Shares of a loss scale, as `last_round+ignore_think_prefix`; the first may be one of these
LOSS_STRATEGIES = frozenset({"default", "last_round", "all"})


@cache
def _names(file: str, holder: str) -> frozenset[str]:
    """Return the values of a class of names, or the keys of a table, in a file of the package; empty without it."""
    package = importlib.util.find_spec("swift")
    if package is None or package.origin is None:
        return frozenset()
    source = (Path(package.origin).parent / file).read_text(encoding="utf-8")
    return frozenset(_strings(ast.parse(source), holder))


def _strings(module: ast.Module, holder: str) -> Iterator[str]:
    found: list[ast.expr | None] = []
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == holder:
            found += [each.value for each in node.body if isinstance(each, ast.Assign)]
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == holder:
            assert isinstance(node.value, ast.Dict)
            found += node.value.keys

    for value in found:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def _require(kind: str, name: str, known: frozenset[str]) -> None:
    if known and name not in known:
        nearest = difflib.get_close_matches(name, sorted(known), n=4, cutoff=0.4)
        hint = f"the nearest are {', '.join(nearest)}" if nearest else "none is like it"
        raise ValueError(f"ms-swift has no {kind} {name!r}; {hint}")


def _one_of(kind: str, file: str, *holders: str) -> AfterValidator:
    def check(name: str) -> str:
        """Return the name; raise ValueError, with the nearest ones, where the package has no such name."""
        _require(kind, name, frozenset[str]().union(*(_names(file, each) for each in holders)))
        return name

    return AfterValidator(check)


def _loss_scale(name: str) -> str:
    """Return a chain of loss scales; raise ValueError for one that the package does not have."""
    scales = _names("loss_scale/mapping.py", "loss_scale_map")
    first, *others = name.split("+")
    _require("loss scale", first, scales and scales | LOSS_STRATEGIES)
    for each in others:
        _require("loss scale", each, scales)
    return name


_Name = Annotated[str, Field(min_length=1)]
_MODELS = ("LLMModelType", "MLLMModelType", "BertModelType", "RMModelType")
_TEMPLATES = ("LLMTemplateType", "MLLMTemplateType", "RMTemplateType")
SwiftModelType = Annotated[_Name, _one_of("model type", "model/constant.py", *_MODELS)]
SwiftTemplate = Annotated[_Name, _one_of("template", "template/constant.py", *_TEMPLATES)]
SwiftAgentTemplate = Annotated[
    _Name, _one_of("agent template", "agent_template/mapping.py", "agent_template_map")
]
SwiftLossScale = Annotated[_Name, AfterValidator(_loss_scale)]
