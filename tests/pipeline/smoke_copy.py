"""A copy of the working tree in a temporary folder, in which the smoke graph runs and nobody's data are touched."""

import os
import shutil
import subprocess
from pathlib import Path

from deepsearch_rl.processes import LOOPBACK, free_port
from scripts.imports import ROOT

GRAPH = "profiles/smoke/dvc.yaml"


def copy_of_working_tree(folder: Path) -> Path:
    """What git would commit of the working tree, as a repository of its own with this environment linked into it."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listing.stdout.decode().split("\0"):
        source, target = ROOT / name, folder / name
        if name and (source.is_file() or source.is_symlink()) and not name.startswith("reports/smoke/"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    (folder / "profiles/smoke/dvc.lock").unlink(missing_ok=True)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    identity = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "Copy"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def run(folder: Path, *command: str) -> str:
    """Run a program of the environment in the copy, with the copy's own source."""
    places = {"PREFECT_HOME": str(folder / ".prefect"), "PREFECT_API_URL": f"http://{LOOPBACK}:{free_port()}/api"}
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), **places}
    result = subprocess.run(
        [str(ROOT / ".venv/bin" / command[0]), *command[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout[-6000:]}\n{result.stderr[-6000:]}"
    return result.stdout
