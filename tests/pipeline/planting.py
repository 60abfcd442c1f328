"""Faults in Python source: a statement that raises, at the beginning of a function or of a module."""

import ast
from collections.abc import Iterator

FAULT = 'raise RuntimeError("planted fault")'


class CannotPlantError(Exception):
    """A function whose body stands on the line of its ``def``."""


def with_fault_in_function(text: str, line: int) -> str:
    """Return a module's text in which the function that is defined in a line raises at its first statement.

    Raises:
        CannotPlantError: the function's body stands on the line of its ``def``.
    """
    function = next(node for node in _functions(text) if node.lineno == line)
    first, *others = function.body
    indent = " " * first.col_offset
    lines = text.splitlines(keepends=True)
    if first.lineno == line:
        raise CannotPlantError(f"line {line}: {function.name} has its body on the line of its name")
    if ast.get_docstring(function, clean=False) is None:
        place = _first_line(first) - 1
    elif others:
        place = _first_line(others[0]) - 1
    else:
        place = first.end_lineno or first.lineno
    lines.insert(place, f"{indent}{FAULT}\n")
    return "".join(lines)


def with_fault_in_module(text: str) -> str:
    """Return a module's text that raises as soon as the module is imported; what it says stays in its place."""
    body = ast.parse(text).body
    after = [node for node in body if not _may_stand_first(node)]
    lines = text.splitlines(keepends=True)
    place = _first_line(after[0]) - 1 if after else len(lines)
    lines.insert(place, f"{FAULT}\n")
    return "".join(lines)


def _may_stand_first(node: ast.stmt) -> bool:
    """Return whether a statement is a docstring or an import of __future__, before which nothing may stand."""
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def _functions(text: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _first_line(node: ast.stmt) -> int:
    """Return the first line of a statement, with its decorators."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])
