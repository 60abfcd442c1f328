"""The rules of the source tree that no linter knows."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.imports import PACKAGES, imported_names, module_file

LAYERS = (
    (
        *("copies", "errors", "records", "answers", "files", "frames", "progress", "redaction", "retries"),
        *(
            "processes",
            "dvc_cache",
            "dvc_lock",
            "loopback",
            "project_state",
            "profile",
            "presets",
            "stage_graph",
            "stage_state",
            "scratch",
            "installed",
            "locked",
        ),
    ),
    ("corpora",),
    ("retrieval",),
    ("agent",),
    ("serving",),
    ("trajectories",),
    ("training",),
    ("evaluation",),
    ("tracking",),
    ("planning",),
    ("commands",),
    ("cli",),
)
SOURCES = sorted(PACKAGES["deepsearch_rl"].rglob("*.py"))


def layer(path: Path) -> int:
    name = path.relative_to(PACKAGES["deepsearch_rl"]).parts[0].removesuffix(".py")
    return next(number for number, names in enumerate(LAYERS) if name in names)


def relative(path: Path) -> str:
    return path.relative_to(PACKAGES["deepsearch_rl"]).as_posix()


@pytest.mark.parametrize("path", [path for path in SOURCES if relative(path) != "__init__.py"], ids=relative)
def test_a_module_imports_only_its_own_layer_and_those_below(path: Path) -> None:
    imported = {file for name in imported_names(path) if (file := module_file(name))}
    upward = [relative(file) for file in imported if layer(file) > layer(path)]
    assert not upward


def test_only_tracking_knows_mlflow_and_nothing_dvc_or_prefect() -> None:
    found = {(relative(path), name.partition(".")[0]) for path in SOURCES for name in imported_names(path)}
    orchestration = {(path, name) for path, name in found if name in {"dvc", "prefect", "mlflow"}}
    assert {name for _, name in orchestration} == {"mlflow"}
    assert all(path.startswith("tracking/") for path, _ in orchestration)


def test_only_its_own_backend_imports_an_rl_engine() -> None:
    art = {relative(path) for path in SOURCES for name in imported_names(path) if name.partition(".")[0] == "art"}
    assert art
    assert all(path.startswith("training/backends/art/") for path in art)


def test_the_rl_loop_imports_no_backend() -> None:
    loop = [path for path in SOURCES if relative(path).startswith("training/rl/")]
    backends = [name for path in loop for name in imported_names(path) if ".training.backends" in name]
    assert not backends


def test_importing_the_package_is_quick_and_loads_no_torch() -> None:
    code = (
        "import sys, time; started = time.process_time(); import deepsearch_rl; "
        "print(time.process_time() - started, 'torch' in sys.modules)"
    )
    seconds, torch = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    assert float(seconds) < 0.3
    assert torch == "False"
