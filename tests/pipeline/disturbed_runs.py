"""Stages of the smoke graph that are killed, or whose inputs are edited, while they run (for planted_faults.py).

Every experiment begins with a comment in the stage's own file: so the stage has a state that nobody
has run, and DVC runs it without being forced. The comment changes no output.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from prefect import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from deepsearch_rl.core.processes import is_healthy
from deepsearch_rl.core.stage_state import DIGESTS
from tests.pipeline.findings import Finding, Function, called_functions, chosen, verdict
from tests.pipeline.finished_graph import (
    PROFILE,
    FinishedGraph,
    RunningCommand,
    address,
    entries,
    stage_process,
)
from tests.pipeline.planting import with_fault_in_function

WAYS = ("dvc repro", "make repro", "flow", "worker")
SCRATCH_IS_OPEN = "src/deepsearch_rl/core/unchanged.py"
"""The first call in this module comes after the scratch folder of a stage is open."""
MOMENTS = (0.1, 0.7)
"""The share of a stage's time after which it is disturbed; the end is left out, when nobody looks any more."""
SHORTEST_S = 4.0
"""Stages that take less are not edited: they would be over."""
ATTEMPTS = 6
STARTS_ANEW = "starts anew"
KEEPS_NOTHING = ("prepare_model",)
"""Stages that begin from the beginning after a kill: pretraining takes minutes and saves no checkpoint."""
LEAVES_NOTHING = ("choose_checkpoint",)
"""Stages that copy a folder in a moment: its scratch folder is for rollouts of dev, which smoke asks for none of."""
REMOTE = "experiments"
LIMIT_S = 900.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the text of a file, and the name that an error has to give it."""

    file: str
    change: Callable[[str], str]
    name: str


def kills(graph: FinishedGraph, stage: str, seed: int) -> Iterator[Finding]:
    """Yield what came of a kill: with a fault planted after it, and with the file as it was."""
    generator = random.Random(f"kill {seed} {stage}")
    functions = functions_after_scratch(graph, stage)
    with graph.experiment(stage):
        undisturbed = graph.outputs(stage)
        mark(graph, stage)
        moment_s = killed(graph, stage, generator)
        if moment_s is None:
            yield Finding("kill", stage, "a kill", "NOT TRIED: it was over before each time", True)
            return

        begin = "its start" if stage in KEEPS_NOTHING else "its first scratch file"
        what = f"killed {moment_s:.1f} s after {begin}"
        (function,) = chosen(functions, 1, generator, graph)
        yield fault_after_kill(graph, stage, function, what)
        yield resumed(graph, stage, undisturbed, what)


def mark(graph: FinishedGraph, stage: str) -> None:
    """Give a stage a state that it never had, by a comment in its own file."""
    own = f"stages/{stage.partition('@')[0]}.py"
    graph.write(own, graph.read(own) + f"\n# {time.time()}\n")


def functions_after_scratch(graph: FinishedGraph, stage: str) -> list[Function]:
    """Return the functions that a stage calls for the first time when its scratch folder is open."""
    functions = called_functions(graph, stage)
    begun = next(
        number for number, function in enumerate(functions) if function.file == SCRATCH_IS_OPEN
    )
    return [function for function in functions[begun:] if function.file != SCRATCH_IS_OPEN]


def killed(graph: FinishedGraph, stage: str, generator: random.Random) -> float | None:
    """Kill a stage when its scratch folder has had something in it for some seconds, and return how many.

    One that keeps nothing is killed some seconds after its start. Return None where it was over
    each time.
    """
    share = generator.uniform(*MOMENTS)
    for attempt in range(ATTEMPTS):
        command = graph.start(graph.repro_command(stage))
        delay_s = share * graph.seconds(stage) / 2**attempt
        if stage in KEEPS_NOTHING:
            wait_while_running(graph, stage, delay_s)
        else:
            command.wait_for(lambda: bool(graph.scratch(stage)), LIMIT_S)
            command.wait_for(lambda: False, delay_s)

        if command.process.poll() is None:
            command.kill()
            # DVC may have been killed when its stage was over
            if stage in KEEPS_NOTHING or graph.scratch(stage):
                return delay_s
        mark(graph, stage)
    return None


def fault_after_kill(graph: FinishedGraph, stage: str, function: Function, what: str) -> Finding:
    """Run a killed stage with a fault in its code: it may not resume, and says why."""
    before = graph.outputs(stage)
    text = graph.read(function.file)
    graph.write(function.file, with_fault_in_function(text, function.line))
    run = graph.repro(stage)
    ending, is_survivor = verdict(run, before, graph.outputs(stage))
    graph.write(function.file, text)
    lines = [
        line for line in run.output.splitlines() if STARTS_ANEW in line and function.file in line
    ]
    if len(lines) != 1:
        ending, is_survivor = f"{ending}, and NO LINE SAYS that it starts anew", True
    what = f"{what}, then a fault in {function.file}:{function.line} {function.name}"
    return Finding("kill", stage, what, f"starts anew, {ending}", is_survivor)


def resumed(graph: FinishedGraph, stage: str, undisturbed: Mapping[str, str], what: str) -> Finding:
    """Run a killed stage with the file put back: it resumes where it keeps anything, and its outputs
    are those of an undisturbed run.
    """
    run = graph.repro(stage)
    problems: list[str] = []
    if run.status:
        problems.append(f"FAILED: {run.last_line()[:300]}")
    elif graph.outputs(stage) != undisturbed:
        problems.append("OTHER OUTPUTS than those of the undisturbed run")
    if STARTS_ANEW in run.output or not run.has_run:
        problems.append("it DID NOT RESUME")
    begun = "began again" if stage in KEEPS_NOTHING else "resumed"
    ending = "; ".join(problems) or f"{begun}, the outputs of the undisturbed run"
    return Finding("kill", stage, f"{what}, then the file put back", ending, bool(problems))


def edits(graph: FinishedGraph, stage: str, seed: int, way: str) -> Iterator[Finding]:
    """Yield what came of an edit of a source file, and of a param, while a stage ran."""
    for make_edit in (source_edit, param_edit):
        generator = random.Random(f"edit {seed} {stage} {way} {make_edit.__name__}")
        edit = make_edit(graph, stage, generator)
        if edit is not None:
            yield edited(graph, stage, edit, way, generator.uniform(*MOMENTS))


def edited(graph: FinishedGraph, stage: str, edit: Edit, way: str, share: float) -> Finding:
    """Edit an input after a share of the stage's time, or after less where it was over by then."""
    for attempt in range(ATTEMPTS):
        with graph.experiment(stage), remote(graph) as store:
            mark(graph, stage)
            finding = edit_while_running(graph, stage, edit, way, share / 2**attempt, store)
        if finding is not None:
            return finding
    return Finding(
        "edit", stage, f"{way}: {edit.name}", "NOT TRIED: the stage was over each time", True
    )


def source_edit(graph: FinishedGraph, stage: str, generator: random.Random) -> Edit:
    """Return a comment at the end of some module of a stage's closure."""
    file = generator.choice([name for name in graph.source_files(stage) if name.endswith(".py")])
    return Edit(file, lambda text: f"{text}\n# edited\n", file)


def param_edit(graph: FinishedGraph, stage: str, generator: random.Random) -> Edit | None:
    """Return another value of some number among a stage's params; None where it has none."""
    file = f"profiles/{PROFILE}/params.yaml"
    values = yaml.safe_load(graph.read(file))
    sections = [
        name for path, name in graph.declared(stage).params if path == file and "." not in name
    ]
    names = [leaf for section in sections for leaf in numbers(section, values[section])]
    if not names:
        return None
    name = generator.choice(names)
    *path, last = name.split(".")
    fields: Any = values
    for key in path:
        fields = fields[key]
    fields[last] += 1
    return Edit(file, lambda _: yaml.safe_dump(values), f"{file}: {name}")


def numbers(name: str, value: Any) -> Iterator[str]:
    """Yield the dotted names of all numbers in a section."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(f"{name}.{key}", inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name


def edit_while_running(
    graph: FinishedGraph, stage: str, edit: Edit, way: str, share: float, store: Path
) -> Finding | None:
    """Start a stage in some way, edit one of its inputs, and see that its result is recorded nowhere.

    Return None where the stage was over before the edit.
    """
    before, cached = graph.recorded(stage), graph.run_cache()

    def change(delay_s: float) -> bool:
        is_running = wait_while_running(graph, stage, delay_s)
        if is_running:
            graph.write(edit.file, edit.change(graph.read(edit.file)))
        return is_running

    delay_s = share * graph.seconds(stage)
    has_failed, output, is_edited = RUNNERS[way](graph, stage, lambda: change(delay_s))
    if not is_edited:
        return None
    what = f"{way}: {edit.name} edited after {delay_s:.1f} s"
    problems: list[str] = []
    if not has_failed:
        problems.append("SUCCESS")
    if edit.name not in output:
        problems.append(f"its name is NOT SHOWN: {output.strip()[-300:]}")
    if graph.recorded(stage) != before:
        problems.append("dvc.lock HAS IT")
    if graph.run_cache() - cached:
        problems.append("the run cache HAS IT")
    problems += pushed(graph, stage, cached, store)
    return Finding(
        "edit", stage, what, "; ".join(problems) or "failed, recorded nowhere", bool(problems)
    )


def wait_while_running(graph: FinishedGraph, stage: str, delay_s: float) -> bool:
    """Return True when a stage has run for so many seconds, and False where it ends before or does not begin.

    It begins when it has read its state, and has written the digests of its data: a param that is
    edited while the process still loads its modules is one that the stage runs with, and is rightly
    recorded.
    """
    deadline = time.monotonic() + LIMIT_S
    while (process := stage_process(stage, graph.folder)) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    digests = graph.folder / DIGESTS
    while is_alive(process):
        begun = digests.stat().st_mtime if digests.exists() else 0.0
        if begun > process.create_time() and time.time() - begun > delay_s:
            return True
        time.sleep(_POLL_S)
    return False


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process has not ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pushed(graph: FinishedGraph, stage: str, cached: set[str], store: Path) -> list[str]:
    """Push the run cache, and return what is wrong with what the remote then holds."""
    push = graph.call(graph.dvc("push", "--run-cache", address(stage)))
    runs = entries(store / "runs")
    if push.status and not runs:
        return [f"the push FAILED: {push.last_line()[:200]}"]
    if not runs:
        return ["the remote is EMPTY, so it proves nothing"]
    return ["the remote HAS IT"] if runs - cached else []


@contextmanager
def remote(graph: FinishedGraph) -> Iterator[Path]:
    """Give the copy a folder as DVC's default remote."""
    store = graph.folder / "work" / "remote"
    graph.call(graph.dvc("remote", "add", "--local", "--default", "--force", REMOTE, str(store)))
    try:
        yield store
    finally:
        graph.call(graph.dvc("remote", "remove", "--local", REMOTE))


def by_command(
    command: list[str], graph: FinishedGraph, change: Callable[[], bool]
) -> tuple[bool, str, bool]:
    """Run a command, change something while it runs, and return whether it failed, what it said, and the change."""
    running = graph.start(command)
    is_edited = change()
    run = running.end()
    return run.status != 0, run.output, is_edited


def by_dvc(graph: FinishedGraph, stage: str, change: Callable[[], bool]) -> tuple[bool, str, bool]:
    """As `dvc repro` does it."""
    return by_command(graph.repro_command(stage), graph, change)


def by_make(graph: FinishedGraph, stage: str, change: Callable[[], bool]) -> tuple[bool, str, bool]:
    """As `make repro` does it."""
    return by_command([sys.executable, "-m", "flows.driver", PROFILE, stage], graph, change)


def by_flow(graph: FinishedGraph, stage: str, change: Callable[[], bool]) -> tuple[bool, str, bool]:
    """As `make flow` does it, with a Prefect server of its own."""
    return by_command([sys.executable, "-m", "flows.reproduce", PROFILE, stage], graph, change)


def by_worker(
    graph: FinishedGraph, stage: str, change: Callable[[], bool]
) -> tuple[bool, str, bool]:
    """As a run that somebody asks for in the UI: by a real server, and a worker that takes it."""
    api = graph.environment["PREFECT_API_URL"]
    worker = graph.start([sys.executable, "-m", "flows.worker", "start", "cpu"])
    try:
        with temporary_settings({PREFECT_API_URL: api}):
            state = _run_of_worker(worker, api, stage, change)
    finally:
        worker.process.terminate()
        worker.process.wait(60)
    has_failed, is_edited = state
    return has_failed, worker.output(), is_edited


def _run_of_worker(
    worker: RunningCommand, api: str, stage: str, change: Callable[[], bool]
) -> tuple[bool, bool]:
    is_up = worker.wait_for(lambda: is_healthy(f"{api}/health") and "Worker" in worker.output())
    if not is_up:
        raise RuntimeError(f"the worker does not start: {worker.output()[-2000:]}")
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name(f"reproduce/{PROFILE}")
        parameters = {"profile": PROFILE, "targets": [stage]}
        flow_run = client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
        is_edited = change()

        def state() -> Any:
            return client.read_flow_run(flow_run.id).state

        worker.wait_for(lambda: bool(state() and state().is_final()), LIMIT_S)
        return bool(state() and state().is_failed()), is_edited


RUNNERS: Mapping[
    str, Callable[[FinishedGraph, str, Callable[[], bool]], tuple[bool, str, bool]]
] = {
    "dvc repro": by_dvc,
    "make repro": by_make,
    "flow": by_flow,
    "worker": by_worker,
}
