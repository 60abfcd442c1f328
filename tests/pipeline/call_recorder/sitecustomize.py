"""Write down which first-party functions a process calls; every Python that has this folder on its path runs this file.

    PYTHONPATH=tests/pipeline/call_recorder DEEPSEARCH_CALLS=/tmp/calls.txt python -m stages.chunk params.yaml

Each first-party module is compiled with one more statement in every function, which notes the
function at its first call: ``src/deepsearch_rl/core/files.py:31:atomic_file``. Libraries run at full
speed, and a process that is killed has written all that it called. A call while a module is being
imported is not noted: such a function fails as soon as anything loads its module, whether a stage
needs it or not.
"""

import ast
import builtins
import os
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType, FrameType

LOG = os.environ.get("DEEPSEARCH_CALLS")
PACKAGES = ("src/deepsearch_rl/", "stages/")
NOTE = "_deepsearch_note_call"
_ROOT = os.path.join(os.getcwd(), "")  # noqa: PTH109, PTH118 - every Python loads this, and pathlib is slow
_noted: set[str] = set()
_original = SourceFileLoader.get_code


class _Instrument(ast.NodeTransformer):
    """Puts the statement ``_deepsearch_note_call("<file>:<line>:<name>")`` at the beginning of every function."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._names: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._names.append(node.name)
        self.generic_visit(node)
        self._names.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._names.append(node.name)
        self.generic_visit(node)
        place = f"{self._file}:{node.lineno}:{'.'.join(self._names)}"
        self._names.pop()
        note = ast.Expr(ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(place)], []))
        has_docstring = ast.get_docstring(node, clean=False) is not None
        node.body.insert(1 if has_docstring else 0, note)
        return node


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether a module that is not the program itself is being run further up the stack."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            return True
        frame = frame.f_back
    return False


def _note_call(place: str) -> None:
    if place in _noted or _is_importing(sys._getframe(1)):
        return
    _noted.add(place)
    # One short write of a file opened for appending: lines never mix
    os.write(_log, f"{place}\n".encode())


def _get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
    """Compile a first-party module with its notes, always from its source; other modules as Python does."""
    path = self.get_filename(fullname)
    file = os.path.abspath(path).removeprefix(_ROOT)  # noqa: PTH100
    if not file.startswith(PACKAGES):
        return _original(self, fullname)
    tree = _Instrument(file).visit(ast.parse(self.get_data(path), path))
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


if LOG:
    _log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    setattr(builtins, NOTE, _note_call)
    SourceFileLoader.get_code = _get_code  # pyright: ignore[reportAttributeAccessIssue]
