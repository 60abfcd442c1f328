"""A copy of the project in a temporary folder whose stages note when they start and end, for kills.py.

Every stage of the project runs as ``tools/python INTERPRETER -m stages.NAME PARAMS [ITEM]``. In
the copy that script appends a line to ``executed.log`` before the stage and another one after it;
short lines of a file opened with O_APPEND never mix. The graph ``trivial`` takes the place of
tiny's: ten stages that sleep for a second or two, two of them on the "GPU", and a report with its
upload to MLflow. The graph ``smoke`` is the project's own.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.repository import commit_all

ROOT = Path(__file__).resolve().parents[2]
WRAPPER = """#!/bin/sh
for word; do case $word in stages.*) name=${word#stages.};; profiles/*|params.yaml) ;; *) item=$word;; esac; done
[ "$item" = -m ] || name=$name@$item
note() { echo "$1 $(date +%s.%N) $name" >> LOG; }
note start
tools/project_python "$@" || exit $?
note end
"""
STEP = '''"""Sleep, and write what its inputs were."""
import hashlib, pathlib, sys, time, yaml
name, params = pathlib.Path(__file__).stem, yaml.safe_load(pathlib.Path("params.yaml").read_text())
stage = yaml.safe_load(pathlib.Path("dvc.yaml").read_text())["stages"][name]
time.sleep(params["seconds"])
text = "".join([str(params["round"]), *(pathlib.Path(path).read_text() for path in stage.get("deps", []))])
(output,) = map(pathlib.Path, stage["outs"])
output.parent.mkdir(parents=True, exist_ok=True)
output.write_text(name + " " + hashlib.sha256(text.encode()).hexdigest() + "\\n")
'''
TRACK = '''"""A real bundle to MLflow, as the project's stage `track` sends it."""
import logging, os, pathlib, shutil, tempfile, yaml
from deepsearch_rl.track.build_bundle import build_bundle
from deepsearch_rl.track.upload import FailedUpload, put_into_outbox, upload_all
from tests.track.conftest import CONFIG, PROVENANCE, SEED, make_results
bundle, outbox = pathlib.Path("data/tiny/track"), pathlib.Path("work/tiny/outbox")
right = yaml.safe_load(pathlib.Path("params.yaml").read_text())["round"]
with tempfile.TemporaryDirectory() as folder:
    report = build_bundle(make_results(pathlib.Path(folder), right), PROVENANCE, CONFIG, SEED, bundle)
for outcome in upload_all(bundle, outbox, os.environ["MLFLOW_TRACKING_URI"], CONFIG.timeout_s):
    if isinstance(outcome, FailedUpload):
        folder = put_into_outbox(bundle, outbox) if outcome.folder == bundle else outcome.folder
        logging.warning("NOT SENT to MLflow: %s waits in %s", outcome.error, folder)
pathlib.Path("data/tiny/track.txt").write_text(report.digest + "\\n")
'''
EDGES = {
    "download": [],
    "prepare": [],
    "chunk": ["download"],
    "index": ["chunk"],
    "sft": ["prepare", "chunk"],
    "rl": ["sft", "index"],
    "evaluate": ["rl", "index"],
    "ifeval": ["sft"],
    "report": ["evaluate", "ifeval"],
    "track": ["report"],
}
PARAMS = {
    "profile": "tiny",
    "python": {"core": ".venv/bin/python"},
    "flow": {"gpu_stages": ["sft", "rl"], "outside_stages": []},
    "requires": {
        "memory_gib": 0.1,
        "disk_gib": 0.1,
        "gpu_memory_gib": 0,
        "java": False,
        "keys": [],
        "max_hours": None,
    },
    "track": {"experiment": "tests"},
    "round": 0,
    "seconds": 1.5,
}
ROUNDS = 13
"""How many rounds of the trivial graph have a report of their own."""


class Line(NamedTuple):
    """A line of executed.log: ``start`` or ``end``, when (seconds since the epoch), and the stage."""

    event: str
    time_s: float
    stage: str


class KillProject(NamedTuple):
    """The copy: its folder, and the profile that runs."""

    folder: Path
    profile: str

    @property
    def dvc_yaml(self) -> str:
        """The graph's file, from the folder on."""
        return "dvc.yaml" if self.profile == "tiny" else f"profiles/{self.profile}/dvc.yaml"

    def lines(self) -> list[Line]:
        """Return what executed.log says."""
        words = map(str.split, (self.folder / "executed.log").read_text().splitlines())
        return [Line(event, float(time_s), stage) for event, time_s, stage in words]

    def recorded(self) -> dict[str, object]:
        """Return the stages that DVC has recorded, with the digests of their outputs and their parameters."""
        path = self.folder / Path(self.dvc_yaml).with_suffix(".lock")
        stages = yaml.safe_load(path.read_text())["stages"] if path.exists() else {}
        return {name: [stage.get("params"), stage.get("outs")] for name, stage in stages.items()}

    def stage_names(self) -> set[str]:
        """Return all stages of the graph, as DVC names them."""
        listed = run(
            [sys.executable, "-m", "dvc", "stage", "list", "--name-only", self.dvc_yaml],
            self.folder,
        )
        return {name.rpartition(":")[2] for name in listed.split()}

    def set_round(self, number: int) -> None:
        """Give the trivial graph other parameters, so that all of it runs anew."""
        text = yaml.safe_dump({**PARAMS, "round": number})
        partial = self.folder / "params.partial"
        partial.write_text(text)
        partial.rename(self.folder / "params.yaml")


def run(command: list[str], folder: Path, **variables: str) -> str:
    """Run a command and return its output; its error output is the error's text where it fails."""
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stdout[-2000:]}{result.stderr[-2000:]}")
    return result.stdout


def make_project(folder: Path, graph: str, remote: str, endpoint: str = "") -> KillProject:
    """Copy the project with the given graph into a new folder, with git, DVC and a remote of its own."""
    files = run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT
    ).split("\0")
    for name in filter(lambda name: (ROOT / name).is_file(), filter(None, files)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
    (folder / "tools" / "python").rename(folder / "tools" / "project_python")
    (folder / "tools" / "python").write_text(WRAPPER.replace("LOG", str(folder / "executed.log")))
    (folder / "tools" / "python").chmod(0o755)
    (folder / "executed.log").touch()
    project = KillProject(folder, "tiny" if graph == "trivial" else graph)
    if graph == "trivial":
        _write_trivial_graph(project)
    with (folder / ".gitignore").open("a") as ignored:
        ignored.write("/executed.log\n/tmp/\n/logs/\n/.venv\n/params.partial\n/out/\n")
    run(["git", "init", "--quiet"], folder)
    run([sys.executable, "-m", "dvc", "remote", "add", "--default", "storage", remote], folder)
    if endpoint:
        run(
            [sys.executable, "-m", "dvc", "remote", "modify", "storage", "endpointurl", endpoint],
            folder,
        )
    commit_all(folder, "copy")
    return project


def _write_trivial_graph(project: KillProject) -> None:
    folder, outputs = project.folder, {name: f"out/{name}.txt" for name in EDGES}
    outputs |= {"report": "reports/tiny/f1_table.md", "track": "data/tiny/track.txt"}
    stages: dict[str, object] = {}
    for name, before in EDGES.items():
        stages[name] = {
            "cmd": f"tools/python .venv/bin/python -m stages.{name} params.yaml",
            "params": ["round"],
            "deps": [outputs[other] for other in before],
            "outs": [outputs[name]],
        }
        (folder / "stages" / f"{name}.py").write_text(TRACK if name == "track" else STEP)
    shutil.rmtree(folder / "profiles")
    (folder / "dvc.lock").unlink(missing_ok=True)
    shutil.rmtree(folder / "reports", ignore_errors=True)
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    project.set_round(0)
