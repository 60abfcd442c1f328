"""What a stage calls, what a fault in it does, and findings of experiments with both (for planted_faults.py)."""

import ast
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.pipeline.finished_graph import FinishedGraph, Run
from tests.pipeline.planting import (
    FAULT,
    CannotPlantError,
    with_fault_in_function,
    with_fault_in_module,
)

RECORDER = Path(__file__).with_name("call_recorder")
CALLS = Path("work", "calls")
"""Where the copy keeps, for each stage, the functions that it calls: they are recorded once."""
PROCESS_SETTINGS = (
    "src/deepsearch_rl/__init__.py",
    "src/deepsearch_rl/core/loopback.py",
    "stages/__init__.py",
    "stages/environment.py",
)
"""Modules of every process that no stage lists (``tools/imports.py``): a version, and environment variables."""
HARMLESS = {
    "src/deepsearch_rl/core/unchanged.py:_Watch.poll": "looks while the stage runs; at its end another function looks",
}
"""Functions that may fail in a run whose result is right all the same, and why."""
TEXT_OF_FAULT = "planted fault"
NEW_START = "It starts again after the last step"
"""What the watchdog of RL says of a failure."""
RECORDS_THE_CODE = ("track",)
"""Stages whose output names the commit and whether a file differs from it: other output with broken modules."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a first-party module: its file from the copy on, the line of its ``def``, and its name."""

    file: str
    line: int
    name: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One experiment: with what, and how it ended; ``is_survivor`` where it ended as it may not."""

    part: str
    stage: str
    what: str
    ending: str
    is_survivor: bool = False


def faults(graph: FinishedGraph, stage: str, per_stage: int, seed: int) -> Iterator[Finding]:
    """Yield what came of the faults outside and inside of a stage's closure."""
    yield from faults_outside(graph, stage)
    for function in chosen(
        called_functions(graph, stage), per_stage, random.Random(f"{seed} {stage}"), graph
    ):
        yield fault_inside(graph, stage, function)


def fault_inside(graph: FinishedGraph, stage: str, function: Function) -> Finding:
    """Run a stage with a fault in a function that it calls."""
    with graph.experiment(stage):
        graph.write(function.file, with_fault_in_function(graph.read(function.file), function.line))
        before = graph.outputs(stage)
        run = graph.repro(stage)
        ending, is_survivor = verdict(run, before, graph.outputs(stage))
    return Finding(
        "fault", stage, f"{function.file}:{function.line} {function.name}", ending, is_survivor
    )


def verdict(run: Run, before: dict[str, str], after: dict[str, str]) -> tuple[str, bool]:
    """Return in words how a stage with a fault ended, and whether the fault survived."""
    if not run.has_run:
        return f"DID NOT RUN: {run.last_line()}", True
    if run.status:
        return (
            "failed" if TEXT_OF_FAULT in run.output else f"failed: {run.last_line()[:160]}"
        ), False
    if before == after:
        # Training starts again behind the last step that it saved, and says why. A fault that is
        # logged and otherwise passed over survives.
        if TEXT_OF_FAULT in run.output and NEW_START in run.output:
            return "the same outputs, after new starts that name the fault", False
        return "SUCCESS with the same outputs", True
    return (
        f"other outputs: {', '.join(sorted(path for path in after if before.get(path) != after[path]))}",
        False,
    )


def faults_outside(graph: FinishedGraph, stage: str) -> Iterator[Finding]:
    """Break all modules outside of a stage's closure: nothing may run, and by force the outputs are the same."""
    others = modules_outside(graph, stage)
    what = f"{len(others)} modules outside of its closure"
    log = graph.folder / CALLS / f"{stage}.txt"
    with graph.experiment(stage):
        for name in others:
            graph.write(name, with_fault_in_module(graph.read(name)))
        run = graph.repro(stage)
        ending = "RAN" if run.has_run or run.status else "nothing ran"
        yield Finding("outside", stage, what, ending, ending == "RAN")
        if log.exists():
            return
        before = graph.outputs(stage)
        partial = record_calls(graph, stage, log)
        run, after = partial, graph.outputs(stage)

    records_the_code = stage in RECORDS_THE_CODE
    is_right = run.status == 0 and (before == after or records_the_code)
    if not is_right:
        log.unlink()
        ending = f"NOT THE SAME (status {run.status}): {run.last_line()[:300]}"
    else:
        ending = "success; its output names the code" if records_the_code else "the same outputs"
    yield Finding("outside", stage, f"{what}, by force", ending, not is_right)


def modules_outside(graph: FinishedGraph, stage: str) -> list[str]:
    """Return all first-party modules that a stage does not list, but for the process's settings."""
    sources = graph.source_files(stage)
    inside = {*sources, *PROCESS_SETTINGS}
    folders = [graph.folder / "src" / "deepsearch_rl", graph.folder / "stages"]
    names = sorted(
        path.relative_to(graph.folder).as_posix()
        for folder in folders
        for path in folder.rglob("*.py")
    )
    return [name for name in names if name not in inside and _has_code(graph.read(name))]


def _has_code(text: str) -> bool:
    """Return whether a module is more than a docstring."""
    return len(ast.parse(text).body) > 1


def record_calls(graph: FinishedGraph, stage: str, log: Path) -> Run:
    """Run a stage by force and write down the functions that it calls."""
    log.parent.mkdir(parents=True, exist_ok=True)
    path = f"{RECORDER}:{graph.environment['PYTHONPATH']}"
    return graph.repro(
        stage, "--force", PYTHONPATH=path, DEEPSEARCH_CALLS=str(log), DEEPSEARCH_RESUME="0"
    )


def called_functions(graph: FinishedGraph, stage: str) -> list[Function]:
    """Return what a stage calls of its closure, in the order of first calls; record it where nobody has."""
    log = graph.folder / CALLS / f"{stage}.txt"
    if not log.exists():
        with graph.experiment(stage):
            run = record_calls(graph, stage, log)
        if run.status:
            raise RuntimeError(f"{stage} does not run as it is: {run.output[-2000:]}")
    sources = set(graph.source_files(stage))
    functions: list[Function] = []
    # Each process of the stage has its first calls
    for line in dict.fromkeys(log.read_text().splitlines()):
        file, number, name = line.split(":")
        if file in sources:
            functions.append(Function(file, int(number), name))
    return functions


def chosen(
    functions: Iterable[Function], number: int, generator: random.Random, graph: FinishedGraph
) -> list[Function]:
    """Return a called function of each of ``number`` modules, or of all where the stage calls fewer."""
    of_module: dict[str, list[Function]] = {}
    for function in functions:
        if f"{function.file}:{function.name}" not in HARMLESS and _can_be_planted(graph, function):
            of_module.setdefault(function.file, []).append(function)
    modules = generator.sample(sorted(of_module), min(number, len(of_module)))
    return [generator.choice(of_module[module]) for module in modules]


def _can_be_planted(graph: FinishedGraph, function: Function) -> bool:
    try:
        return FAULT in with_fault_in_function(graph.read(function.file), function.line)
    except CannotPlantError:
        return False
