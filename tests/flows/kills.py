"""kill -9 of flow, worker, Prefect's server, MLflow's server, S3 server or machine at random moments of a run.

    python -m tests.flows.kills --kills 50 --seed 7
    python -m tests.flows.kills --kills 20 --graph smoke --gap 60

A copy of the project in a temporary folder runs as on a real machine: `make ui`, `make worker`, a
DVC remote. The victim "machine" is the worker with all that it started, which ends at once without
a word, as by a power cut. A supervisor, as systemd would, starts what is killed again after ten
seconds (`make ui` starts its servers again by itself). Nobody starts runs again: crashed ones have
to come back by themselves. Only if none is left for a minute does one start as from a schedule, and
that is a defect too. The graph `trivial` has ten stages and begins anew with other parameters until
all kills are used; `smoke` is the project's smallest graph, once.

At the end these must hold, or the script ends with status 1 and names what does not:

- the last run is Completed, DVC calls every stage up to date, and its outputs are those of an
  undisturbed `dvc repro`;
- no run had to be started as from a schedule;
- no stage began again after DVC had recorded it, and MLflow has every report once and nothing
  unfinished;
- no run or stage says Running although its process is dead, and no run did for over 30 s after its
  worker was back;
- all processes of a killed run, and with them its locks, were gone within 30 s;
- no file is half-written, no lock is held, and no process is left.
"""

import argparse
import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from deepsearch_rl.core.processes import LOOPBACK, is_healthy
from tests.flows.kill_project import ROUNDS, KillProject, make_project, run
from tests.ports import free_port

MARKER = "DEEPSEARCH_KILLS"
"""An environment variable of all processes that belong to one call of this script; its value is the folder."""
VICTIMS = ("flow", "worker", "machine", "prefect", "mlflow")
RESTART_S = 10.0  # RestartSec of the worker's unit
SLOT_LIMIT_S = 30.0
GAP_S = 12.0
NO_RUN_LIMIT_S = 60.0
DOUBLE_SHARE = 0.2
"""Share of the kills that are followed by another one before anything has come back."""
PATIENCE_S = 400.0
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
WORKER = [sys.executable, "-m", "flows.worker", "start", "cpu"]


@dataclass
class Kill:
    """One kill: what, when, and how long until work went on, locks were free, and the run was called dead."""

    kind: str
    time_s: float
    run_id: str = ""
    running: list[str] = field(default_factory=list)
    processes: list[psutil.Process] = field(default_factory=list)
    resumed_s: float | None = None
    free_s: float | None = None
    closed_s: float | None = None

    def is_over(self) -> bool:
        return None not in (
            [self.resumed_s, self.free_s, self.closed_s] if self.run_id else [self.resumed_s]
        )


@dataclass
class Part:
    """A process under the supervisor."""

    command: list[str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    ended_s: float = 0.0
    started_s: float = 0.0


class Site:
    """The machine: the project's copy, its servers and its worker under a supervisor."""

    def __init__(self, project: KillProject, s3_port: int) -> None:
        folder, self.project = project.folder, project
        (folder / "tmp").mkdir()
        (folder / "logs").mkdir()
        self.mlflow, self.s3_port = f"http://{LOOPBACK}:{free_port()}", s3_port
        self.api = f"http://{LOOPBACK}:{free_port()}/api"
        (folder / ".env").write_text(
            f"PREFECT_API_URL={self.api}\nMLFLOW_TRACKING_URI={self.mlflow}\n"
        )
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PREFECT", "MLFLOW"))
        }
        self.environment = {
            **inherited,
            MARKER: str(folder),
            "TMPDIR": str(folder / "tmp"),
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        code = f"from flows import ui; ui.MLFLOW_PORT = {self.mlflow.rpartition(':')[2]}; ui.main()"
        self.parts = {
            "ui": Part([sys.executable, "-c", code], folder / "logs" / "ui.log"),
            "worker": Part(WORKER, folder / "logs" / "worker.log"),
        }
        if s3_port:
            s3 = [sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(s3_port)]
            self.parts["s3"] = Part(s3, folder / "logs" / "s3.log")

    def start(self, name: str) -> None:
        part = self.parts[name]
        with part.log.open("a") as log:
            part.process = subprocess.Popen(
                part.command, cwd=self.project.folder, env=self.environment, stdout=log, stderr=log
            )
        part.started_s = time.time()
        if name == "s3":
            wait_for(
                lambda: is_healthy(f"http://{LOOPBACK}:{self.s3_port}/moto-api/data.json"),
                "S3's server",
                60,
            )
            httpx.put(f"http://{LOOPBACK}:{self.s3_port}/dvc").raise_for_status()

    def supervise(self) -> None:
        """Start what has ended again, ten seconds after it was seen to have ended."""
        for name, part in self.parts.items():
            if part.process is not None and part.process.poll() is not None:
                part.process, part.ended_s = None, time.time()
            elif part.process is None and time.time() - part.ended_s > RESTART_S:
                self.start(name)

    def processes(self) -> list[psutil.Process]:
        """All processes of ours, apart from this one."""
        ours: list[psutil.Process] = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARKER) == self.environment[MARKER] and is_alive(process):
                    ours.append(process)
        return ours

    def find(self, kind: str, chance: random.Random) -> psutil.Process | None:
        """Return a process of a kind, or None where there is none now."""
        wanted = {
            "flow": ("prefect.flow_engine", "prefect.engine"),
            "worker": (chance.choice(["flows.worker start", "prefect worker start"]),),
            "prefect": ("prefect server start",),
            "mlflow": (chance.choice(["-m mlflow server", "mlflow.server.fastapi_app"]),),
            "s3": ("moto.server",),
        }[kind]
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if "deepsearch_rl.core.processes" not in line and any(
                    words in line for words in wanted
                ):
                    return process
        return None

    def machine(self) -> list[psutil.Process]:
        """The worker with everything that it started."""
        part = self.parts["worker"]
        if part.process is None or part.process.poll() is not None:
            return []
        worker = psutil.Process(part.process.pid)
        return [worker, *worker.children(recursive=True)]

    def of_run(self, run_id: str) -> list[psutil.Process]:
        """All processes that work for a flow run."""
        found: list[psutil.Process] = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("PREFECT__FLOW_RUN_ID") == run_id:
                    found.append(process)
        return found

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the answer of Prefect's server; None while it is away."""
        try:
            method = "GET" if body is None else "POST"
            answer = httpx.request(method, f"{self.api}{path}", json=body, timeout=10)
            answer.raise_for_status()
        except httpx.HTTPError:
            return None
        return answer.json()

    def runs(self) -> list[dict[str, Any]] | None:
        """Return all flow runs, the newest first; None while Prefect's server is away."""
        return self.ask("/flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC"})

    def start_run(self) -> bool:
        deployment = self.ask(f"/deployments/name/reproduce/{self.project.profile}")
        return deployment is not None and bool(
            self.ask(f"/deployments/{deployment['id']}/create_flow_run", {})
        )

    def end(self) -> list[psutil.Process]:
        """End everything as Ctrl-C would, and return what is left after half a minute."""
        for part in self.parts.values():
            if part.process is not None:
                part.process.send_signal(signal.SIGTERM)
        deadline = time.time() + SLOT_LIMIT_S
        while self.processes() and time.time() < deadline:
            for part in self.parts.values():
                if part.process is not None:
                    part.process.poll()
            time.sleep(0.5)
        return self.processes()


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def wait_for(condition: Any, what: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.time() + timeout_s
    while not condition():
        if time.time() > deadline:
            raise RuntimeError(f"{what} did not come within {timeout_s:g} s")
        time.sleep(0.2)


class Rehearsal:
    """The kills, one after another, and what they did."""

    def __init__(
        self, site: Site, kills: int, seed: int, kinds: Sequence[str], gap_s: float = GAP_S
    ) -> None:
        self.site, self.project, self.chance, self.gap_s = (
            site,
            site.project,
            random.Random(seed),
            gap_s,
        )
        self.deck = [kinds[number % len(kinds)] for number in range(kills)]
        self.chance.shuffle(self.deck)
        self.kills: list[Kill] = []
        self.round, self.scheduled, self.rounds = 0, 0, 1
        self.recorded_s: dict[tuple[int, str], float] = {}
        self.executions: Counter[tuple[int, str]] = Counter()
        self.again: list[str] = []
        self.lines_seen = 0
        self.last_run_s = self.server_back_s = time.time()

    def go(self) -> None:
        """Kill until the deck is empty and the graph is complete."""
        stages = self.project.stage_names()
        next_kill_s = time.time() + self.chance.uniform(5, 20)
        begun_s = time.time()
        while True:
            self.site.supervise()
            self.look(stages)
            runs = self.site.runs()
            if runs is None:
                self.server_back_s = time.time()
            is_complete = self.is_complete(stages, runs)
            open_kills = [kill for kill in self.kills if not kill.is_over()]
            for kill in open_kills:
                self.follow(kill, runs, is_complete)
            if is_complete and not self.deck and not open_kills:
                return
            if is_complete and self.project.profile == "tiny" and not open_kills:
                self.next_round()
                next_kill_s = max(next_kill_s, time.time() + self.chance.uniform(2, 15))
            elif is_complete and not open_kills:
                self.deck.clear()
            self.start_as_from_a_schedule(runs, is_complete)
            is_time = time.time() > next_kill_s and (not open_kills or self.is_double)
            if self.deck and is_time and self.kill(self.deck[-1]):
                self.deck.pop()
                self.is_double = self.chance.random() < DOUBLE_SHARE
                next_kill_s = time.time() + self.chance.uniform(
                    0.5, 3 if self.is_double else self.gap_s
                )
                begun_s = time.time()
            if time.time() - begun_s > PATIENCE_S * (1 if self.project.profile == "tiny" else 4):
                raise RuntimeError(f"nothing went on for {PATIENCE_S:g} s; open: {open_kills}")
            time.sleep(0.2)

    is_double = False

    def is_complete(self, stages: set[str], runs: list[dict[str, Any]] | None) -> bool:
        """Whether DVC has recorded all stages of this round and a run that began in it is Completed."""
        is_recorded = all((self.round, stage) in self.recorded_s for stage in stages)
        return (
            is_recorded
            and bool(runs)
            and all(run["state_type"] in FINAL for run in runs or [])
            and runs is not None
        )

    def look(self, stages: set[str]) -> None:
        """Note what DVC has recorded since the last look, and stages that began after that."""
        for name, (params, _) in self.project.recorded().items():  # type: ignore[misc]
            of_round = (
                self.project.profile != "tiny" or params["params.yaml"]["round"] == self.round
            )
            if name in stages and of_round:
                self.recorded_s.setdefault((self.round, name), time.time())
        lines = self.project.lines()
        for line in lines[self.lines_seen :]:
            if line.event == "start":
                self.executions[self.round, line.stage] += 1
                if line.time_s > self.recorded_s.get((self.round, line.stage), float("inf")):
                    self.again.append(f"round {self.round}: {line.stage}")
        self.lines_seen = len(lines)

    def next_round(self) -> None:
        if self.site.runs() is not None:
            self.round = (self.round + 1) % ROUNDS
            self.rounds += 1
            self.recorded_s = {
                key: time_s for key, time_s in self.recorded_s.items() if key[0] != self.round
            }
            self.project.set_round(self.round)
            wait_for(self.site.start_run, "a run of the next round")
            self.last_run_s = time.time()

    def start_as_from_a_schedule(
        self, runs: list[dict[str, Any]] | None, is_complete: bool
    ) -> None:
        if runs is None or is_complete or any(run["state_type"] not in FINAL for run in runs):
            self.last_run_s = time.time()
        elif time.time() - self.last_run_s > NO_RUN_LIMIT_S and self.site.start_run():
            say(f"no run for {NO_RUN_LIMIT_S:g} s: one starts as from a schedule")
            self.scheduled += 1

    def kill(self, kind: str) -> bool:
        """Kill a process of a kind; False where there is none now."""
        victims = self.site.machine() if kind == "machine" else [self.site.find(kind, self.chance)]
        flow = self.site.find("flow", self.chance)
        with contextlib.suppress(psutil.Error):
            run_id = (
                flow.environ()["PREFECT__FLOW_RUN_ID"]
                if flow and kind in ("flow", "worker", "machine")
                else ""
            )
            stages = {line.stage for line in self.project.lines()} if run_id else set[str]()
            running = sorted(filter(self.is_running, stages))
            processes = self.site.of_run(run_id) if run_id else []
            for victim in filter(None, victims):
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.kill()
            if not any(victims):
                return False
            self.kills.append(Kill(kind, time.time(), run_id, running, processes))
            say(f"kill {len(self.kills)}: {kind}" + f", in {', '.join(running)}" * bool(running))
            return True
        return False

    def is_running(self, stage: str) -> bool:
        last = [line.event for line in self.project.lines() if line.stage == stage]
        return bool(last) and last[-1] == "start"

    def follow(self, kill: Kill, runs: list[dict[str, Any]] | None, is_complete: bool) -> None:
        """Note what has come back since a kill."""
        now_s = time.time()
        after_s = now_s - kill.time_s
        if kill.run_id and kill.free_s is None and not any(map(is_alive, kill.processes)):
            kill.free_s = after_s
        if kill.run_id and kill.closed_s is None and runs is not None:
            state = next((run["state_type"] for run in runs if run["id"] == kill.run_id), "")
            if state in FINAL:
                worker = self.site.parts["worker"]
                kill.closed_s = now_s - max(kill.time_s, worker.started_s, self.server_back_s)
        if kill.resumed_s is None and self.has_resumed(kill, is_complete):
            kill.resumed_s = after_s

    def has_resumed(self, kill: Kill, is_complete: bool) -> bool:
        # A server's children may outlive it for a moment
        if time.time() - kill.time_s < 3:
            return False
        if kill.kind == "prefect":
            return is_healthy(f"{self.site.api}/health")
        if kill.kind == "mlflow":
            return is_healthy(f"{self.site.mlflow}/health")
        if kill.kind == "s3":
            return is_healthy(f"http://{LOOPBACK}:{self.site.s3_port}/moto-api/data.json")
        if kill.run_id:
            lines = self.project.lines()
            return is_complete or (
                kill.free_s is not None
                and any(line.time_s > kill.time_s + kill.free_s for line in lines)
            )
        # No run was under way
        return self.site.find("worker", random.Random(0)) is not None


def say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def check(site: Site, rehearsal: Rehearsal, reference: dict[str, object]) -> list[str]:
    """Return what does not hold at the end, while the servers are still there."""
    project, problems = site.project, []
    runs = site.runs() or []
    names = Counter(run["state_name"] for run in runs)
    last = max(runs, key=lambda run: run["start_time"] or "")
    if last["state_name"] != "Completed":
        problems.append(f"the last run is {last['state_name']}")
    if rehearsal.scheduled:
        problems.append(f"{rehearsal.scheduled} runs had to be started as from a schedule")
    problems += [
        f"run {run['id']} says {run['state_name']}"
        for run in runs
        if run["state_type"] not in FINAL
    ]
    running = {"task_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}
    problems += [
        f"stage {stage['name']} says Running"
        for stage in site.ask("/task_runs/filter", running) or []
    ]
    status = run([sys.executable, "-m", "dvc", "status", project.dvc_yaml], project.folder)
    if "up to date" not in status:
        problems.append(f"dvc status: {status}")
    recorded = project.recorded()
    problems += [
        f"{name} is not what an undisturbed run makes"
        for name in reference
        if recorded.get(name) != reference[name]
    ]
    problems += [f"{name} was not made" for name in project.stage_names() - recorded.keys()]
    problems += [f"ran again although DVC had recorded it: {text}" for text in rehearsal.again]
    problems += mlflow_problems(site, rehearsal)
    problems += [f"half-written: {path}" for path in torn_files(project.folder)]
    for kill in rehearsal.kills:
        for name, seconds in (
            ("held its locks for", kill.free_s),
            ("said it was running for", kill.closed_s),
        ):
            if seconds is not None and seconds > SLOT_LIMIT_S:
                problems.append(f"after a kill of {kill.kind}, the run {name} {seconds:.0f} s")
    problems += [f"{path} is held" for path in held_locks(project.folder)]
    say(f"flow runs: {dict(names)}")
    return problems


def mlflow_problems(site: Site, rehearsal: Rehearsal) -> Iterator[str]:
    """Compare the reports in MLflow with the rounds; a report's own run has no parent."""
    from mlflow.tracking import MlflowClient  # noqa: PLC0415 - takes seconds

    client = MlflowClient(site.mlflow)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(ids, max_results=1000)
    yield from (
        f"MLflow's run {run.info.run_name} is {run.info.status}"
        for run in runs
        if run.info.status != "FINISHED"
    )
    digests = Counter(
        (run.data.tags.get("report.digest", ""), run.data.tags.get("model", "report"))
        for run in runs
    )
    yield from (f"MLflow has {count} runs of {key}" for key, count in digests.items() if count > 1)
    expected = min(rehearsal.rounds, ROUNDS)
    reports = sum(model == "report" for _, model in digests)
    if reports != expected:
        yield f"MLflow has {reports} reports, not {expected}"
    waiting = list((site.project.folder / "work" / site.project.profile / "outbox").glob("[!.]*"))
    if waiting:
        yield f"reports still wait for MLflow: {waiting}"


def torn_files(folder: Path) -> Iterator[Path]:
    """Yield the JSON and YAML files of the project that cannot be read to their end."""
    readers: dict[str, Callable[[str], object]] = {".json": json.loads, ".dir": json.loads}
    # parse: tags have a meaning
    readers |= dict.fromkeys((".yaml", ".lock"), lambda text: list(yaml.parse(text)))
    for path in folder.rglob("*"):
        is_ours = (
            path.suffix in readers
            and path.name != "uv.lock"
            and not {".git", ".venv"} & {*path.parts}
        )
        if is_ours and path.is_file():
            try:
                readers[path.suffix](path.read_text())
            except (ValueError, yaml.YAMLError):
                yield path


def held_locks(folder: Path) -> Iterator[Path]:
    """Yield the locks of runs and of the GPU that somebody holds."""
    for path in [*folder.glob("work/*/run.lock"), *folder.glob("tmp/deepsearch-gpu-*.lock")]:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield path


def table(rehearsal: Rehearsal) -> str:
    """Return what the kills did, a row for each kind of victim."""
    lines = [
        "| killed | kills | work went on, longest (mean) | locks free after | called dead after | stages cut off |"
    ]
    lines += ["| --- | ---: | ---: | ---: | ---: | --- |"]
    for kind in dict.fromkeys(kill.kind for kill in rehearsal.kills):
        kills = [kill for kill in rehearsal.kills if kill.kind == kind]
        resumed = [kill.resumed_s or 0 for kill in kills]
        free = max((kill.free_s or 0 for kill in kills if kill.run_id), default=None)
        closed = max((kill.closed_s or 0 for kill in kills if kill.run_id), default=None)
        cut = sum(len(kill.running) for kill in kills)
        cells = [f"{max(resumed):.1f} s ({sum(resumed) / len(resumed):.1f} s)"]
        cells += ["" if value is None else f"{value:.1f} s" for value in (free, closed)]
        lines.append(f"| {kind} | {len(kills)} | {' | '.join(cells)} | {cut or 'none'} |")
    return "\n".join(lines)


def undisturbed(site: Site, folder: Path, remote: str) -> dict[str, object]:
    """Return what a plain `dvc repro` of the same graph records, in a copy of its own."""
    graph = "trivial" if site.project.profile == "tiny" else site.project.profile
    other = make_project(folder, graph, remote)
    shutil.copyfile(
        site.project.folder / Path(site.project.dvc_yaml).with_name("params.yaml"),
        folder / Path(site.project.dvc_yaml).with_name("params.yaml"),
    )
    store = f"sqlite:///{folder}/mlruns/mlflow.db"
    run([sys.executable, "-m", "dvc", "repro", other.dvc_yaml], folder, MLFLOW_TRACKING_URI=store)
    return other.recorded()


def rehearse(
    kills: int,
    seed: int,
    graph: str,
    s3: bool = False,
    keep: bool = False,
    victims: Sequence[str] = VICTIMS,
    gap_s: float = GAP_S,
) -> list[str]:
    """Run everything in a temporary folder, print the table, and return the problems."""
    home = Path(tempfile.mkdtemp(prefix="deepsearch-kills-"))
    say(f"seed {seed}, {kills} kills, graph {graph}, folder {home}")
    s3_port = free_port() if s3 else 0
    remote = "s3://dvc" if s3 else str(home / "remote")
    (home / "project").mkdir()
    (home / "undisturbed").mkdir()
    project = make_project(
        home / "project", graph, remote, f"http://{LOOPBACK}:{s3_port}" if s3 else ""
    )
    site = Site(project, s3_port)
    problems: list[str] = []
    try:
        for name in sorted(site.parts):
            site.start(name)
            if name == "ui":
                wait_for(
                    lambda: (
                        is_healthy(f"{site.api}/health") and is_healthy(f"{site.mlflow}/health")
                    ),
                    "make ui",
                )
        wait_for(site.start_run, "the deployment")
        began_s = time.time()
        rehearsal = Rehearsal(site, kills, seed, [*victims, *(["s3"] if s3 else [])], gap_s)
        rehearsal.go()
        minutes = (time.time() - began_s) / 60
        problems += check(
            site, rehearsal, undisturbed(site, home / "undisturbed", str(home / "other-remote"))
        )
        repeated = sum(rehearsal.executions.values()) - len(rehearsal.executions)
        print(
            f"{table(rehearsal)}\n\n{rehearsal.rounds} rounds in {minutes:.1f} min; executions of stages: "
            f"{sum(rehearsal.executions.values())}, of which {repeated} repeat one that was cut off; runs that a "
            f"schedule had to start: {rehearsal.scheduled}"
        )
    except RuntimeError as error:
        problems.append(str(error))
    finally:
        left = site.end()
        problems += [f"left: {process.pid} {' '.join(process.cmdline())}" for process in left]
        for process in left:
            process.kill()
        if not keep and not problems:
            shutil.rmtree(home)
    return problems


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Command line; status 1 where something does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="how many")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(10_000),
        help="of the random moments",
    )
    parser.add_argument("--graph", choices=["trivial", "smoke"], default="trivial")
    parser.add_argument(
        "--victims", nargs="+", choices=VICTIMS, default=VICTIMS, help="all where none is named"
    )
    parser.add_argument(
        "--gap",
        type=float,
        default=GAP_S,
        help="most seconds that work goes on before the next kill",
    )
    parser.add_argument(
        "--s3", action="store_true", help="DVC's remote is an S3 server (moto), which is killed too"
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the folder; it stays anyway where something is wrong",
    )
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)
    problems = rehearse(
        arguments.kills,
        arguments.seed,
        arguments.graph,
        arguments.s3,
        arguments.keep,
        arguments.victims,
        arguments.gap,
    )
    for problem in problems:
        print(f"WRONG: {problem}")
    print(
        f"seed {arguments.seed}: {'nothing is wrong' if not problems else f'{len(problems)} things are wrong'}"
    )
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
