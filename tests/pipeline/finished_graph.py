"""A finished smoke graph in a folder of its own, for experiments that leave it as it was.

    graph = FinishedGraph(folder)
    with graph.experiment("chunk"):
        graph.write("src/deepsearch_rl/core/files.py", text)
        run = graph.repro("chunk")

After the block every file that was written, dvc.lock and the outputs of the stage are what they
were before.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from deepsearch_rl.core.scratch import STATE_FILE
from deepsearch_rl.core.stage_graph import SOURCES, DeclaredStage, read_stage, stage_names
from deepsearch_rl.core.stage_state import code_digests

from deepsearch_rl.cli.summary import latest_runs
from deepsearch_rl.core.processes import LOOPBACK
from deepsearch_rl.core.profile import Profile, load_profile
from tests.pipeline.smoke_copy import GRAPH
from tests.ports import free_port

PROFILE = "smoke"
BEGUN_LIMIT_S = 300.0
END_LIMIT_S = 1800.0
_POLL_S = 0.05
_BEGINS = "Running stage "
_FROM_RUN_CACHE = "is cached - skipping run"


@dataclass(frozen=True, slots=True)
class Run:
    """How a command ended: its exit status and all that it said."""

    status: int
    output: str

    @property
    def has_run(self) -> bool:
        """Whether DVC ran the stage, and did not call it unchanged or take its outputs from the run cache."""
        return _BEGINS in self.output and _FROM_RUN_CACHE not in self.output

    def last_line(self) -> str:
        """Return the last line that is the stage's own."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        own = [line for line in lines if not line.startswith("ERROR: failed to")]
        return own[-1] if own else ""


class FinishedGraph:
    """The project's copy in which the smoke graph has run to its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.lock = self.folder / "profiles" / PROFILE / "dvc.lock"
        self._before: dict[Path, bytes] = {}
        self._started: list[RunningCommand] = []
        home = self.folder / ".prefect"
        address = f"http://{LOOPBACK}:{free_port()}/api"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PREFECT", "MLFLOW"))
        }
        self.environment: Mapping[str, str] = {
            **inherited,
            "PYTHONPATH": str(self.folder / "src"),
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": address,
            "PYTHONUNBUFFERED": "1",
        }

    def profile(self) -> Profile:
        """Return the params as they are now."""
        return load_profile(self.folder / "profiles" / PROFILE / "params.yaml")

    def stages(self) -> list[str]:
        """Return the names of all stages, in the order of the graph's file."""
        return stage_names(self.profile(), self.folder)

    def declared(self, stage: str) -> DeclaredStage:
        """Return what a stage declares."""
        return read_stage(self.profile(), stage, self.folder)

    def source_files(self, stage: str) -> list[str]:
        """Return all files of the folders with code that a stage depends on, as paths from the copy."""
        declared = self.declared(stage)
        # A teacher that params name is code, too
        named = [path for path in declared.data if path.startswith(SOURCES)]
        return sorted(code_digests([*declared.sources, *named], self.folder))

    def recorded(self, stage: str) -> dict[str, Any]:
        """Return the entry of a stage in dvc.lock."""
        return yaml.safe_load(self.lock.read_text())["stages"][stage]

    def outputs(self, stage: str) -> dict[str, str]:
        """Return the digests that dvc.lock has of a stage's outputs."""
        return {out["path"]: out["md5"] for out in self.recorded(stage)["outs"]}

    def seconds(self, stage: str) -> float:
        """Return how long the last finished run of a stage took."""
        runs = {run.stage: run.seconds for run in latest_runs(self.folder, PROFILE)}
        return runs[stage]

    def scratch(self, stage: str) -> list[Path]:
        """Return the scratch folders of a stage that hold more than the state that they belong to."""
        folders = (self.folder / "work" / PROFILE / "scratch" / stage).glob("*")
        return [
            folder
            for folder in folders
            if any(path.name != STATE_FILE for path in folder.iterdir())
        ]

    def run_cache(self) -> set[str]:
        """Return the entries of DVC's run cache."""
        return entries(self.folder / ".dvc" / "cache" / "runs")

    def read(self, name: str) -> str:
        """Return the text of a file of the copy."""
        return (self.folder / name).read_text(encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        """Write a file of the copy, which the experiment puts back at its end."""
        path = self.folder / name
        self._before.setdefault(path, path.read_bytes())
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(text, encoding="utf-8")
        # As an editor does it; a process that reads the file sees the old or the new one
        partial.replace(path)

    @contextmanager
    def experiment(self, stage: str) -> Iterator[None]:
        """Leave files, dvc.lock, the outputs of a stage and its scratch as they were before the block."""
        lock = self.lock.read_bytes()
        try:
            yield
        finally:
            # An experiment that was interrupted leaves one
            for command in self._started:
                if command.process.poll() is None:
                    command.kill()
            self._started.clear()
            for path, content in self._before.items():
                path.write_bytes(content)
            self._before.clear()
            self.lock.write_bytes(lock)
            shutil.rmtree(self.folder / "work" / PROFILE / "scratch" / stage, ignore_errors=True)
            restored = self.call(self.dvc("checkout", "--force", address(stage)))
            if restored.status:
                raise RuntimeError(
                    f"the outputs of {stage} cannot be restored: {restored.output[-2000:]}"
                )

    def dvc(self, *arguments: str) -> list[str]:
        """Return a command of DVC."""
        return [sys.executable, "-m", "dvc", *arguments]

    def repro_command(self, stage: str, *options: str) -> list[str]:
        """Return the command that reproduces one stage."""
        return self.dvc("repro", "--single-item", *options, address(stage))

    def repro(self, stage: str, *options: str, **variables: str) -> Run:
        """Reproduce one stage."""
        return self.call(self.repro_command(stage, *options), **variables)

    def call(self, command: list[str], **variables: str) -> Run:
        """Run a command in the copy, to its end."""
        return self.start(command, **variables).end()

    def start(self, command: list[str], **variables: str) -> "RunningCommand":
        """Start a command in the copy, in a process group of its own."""
        log = self.folder / "work" / "experiment.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**self.environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        running = RunningCommand(process, log)
        self._started.append(running)
        return running


@dataclass(slots=True)
class RunningCommand:
    """A command that was started in the copy, and the file that has its output."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def output(self) -> str:
        """Return what it has said up to now."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def end(self) -> Run:
        """Wait for its end."""
        status = self.process.wait(END_LIMIT_S)
        return Run(status, self.output())

    def wait_for(self, is_so: Callable[[], bool], limit_s: float = BEGUN_LIMIT_S) -> bool:
        """Return True as soon as something is so, or False where the command ended before, or the time is up."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if is_so():
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(_POLL_S)
        return False

    def kill(self) -> None:
        """Kill the command's process group at once, and wait until all that it had started is gone.

        What a process guard runs is in a session of its own; its supervisor ends it when the stage
        is dead.
        """
        children: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children(recursive=True)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(END_LIMIT_S)
        _, alive = psutil.wait_procs(children, timeout=60)
        if alive:
            raise RuntimeError(f"a minute after the kill there is still {alive}")


def stage_process(stage: str, folder: Path) -> psutil.Process | None:
    """Return the process of a stage that runs in a folder, whoever started it."""
    module, _, item = stage.partition("@")
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        is_program = (
            f"stages.{module}" in words and "-m" in words and (not item or words[-1] == item)
        )
        if is_program and process.info["cwd"] == str(folder):
            return process
    return None


def address(stage: str) -> str:
    """Return DVC's name of a stage of the smoke graph."""
    return f"{GRAPH}:{stage}"


def entries(folder: Path) -> set[str]:
    """Return the paths of all files of a folder, from it on."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
