"""Plant faults in the project's code, and see whether the smoke graph notices every one of them.

    python -m tests.pipeline.planted_faults FOLDER [--seed N] [--per-stage 5] [--stages chunk rl@sft] [--parts faults]

What DVC calls up to date has to be what the code gives. So a fault anywhere in the code of a stage
must make the stage run, and then fail or end with other outputs. A fault that leaves the old
outputs in place, and DVC content, is a *survivor*: the result is not that of the code. FOLDER is a
copy of the project in which the smoke graph has run to its end (:mod:`tests.pipeline.smoke_copy`);
it is left as it was. The parts:

``faults`` For each stage: modules outside of its closure (the source files that dvc.yaml lists) are
    broken, *all at once*, and DVC must call the stage unchanged. In this state the stage is run
    once by force, and must give the outputs that it had: so it loads nothing but its closure. This
    run writes down which functions it calls (:mod:`tests.pipeline.call_recorder`). Then, in some
    modules of the closure in turn, chosen by the seed, one function that the stage calls gets the
    first statement ``raise RuntimeError("planted fault")``. ``kills`` For each stage that has a
    scratch folder: it is killed at a random moment. With a fault planted it must not resume, must
    say in one line what changed, and fail or change. With the file put back it must resume what the
    killed run left, and end with the outputs of the run that nobody disturbed. ``edits`` For each
    stage that runs for some seconds: a source file or a param of it is edited at a random moment of
    its run, by `dvc repro`; for one stage also by what `make repro` calls, by the flow, and by a
    worker. The run must fail with the name of what was edited, and neither dvc.lock, nor the run
    cache, nor a remote may have it.

The kills and edits are in :mod:`tests.pipeline.disturbed_runs`. At the end stands a table, and the
exit status is 1 where anything survived. All of it runs every stage about ten times.
"""

import argparse
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.pipeline.disturbed_runs import LEAVES_NOTHING, SHORTEST_S, WAYS, edits, kills
from tests.pipeline.findings import Finding, faults
from tests.pipeline.finished_graph import FinishedGraph

PARTS = ("faults", "kills", "edits")
QUICK_S = 60.0


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def table(findings: Sequence[Finding]) -> str:
    """Return all findings as lines, those of a survivor marked."""
    rows = [
        ("part", "stage", "with", "ending"),
        *((row.part, row.stage, row.what, row.ending) for row in findings),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    marks = ["   ", *("!! " if row.is_survivor else "   " for row in findings)]
    lines: list[str] = []
    for mark, row in zip(marks, rows, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(f"{mark}{'  '.join(cells)}  {row[-1]}")
    return "\n".join(lines)


def experiments(graph: FinishedGraph, arguments: argparse.Namespace) -> Iterator[Finding]:
    """Yield the finding of every experiment, stage by stage."""
    stages: list[str] = arguments.stages or graph.stages()
    of_all_ways = stage_of_all_ways(graph, stages, arguments.seed)
    for stage in stages:
        if "faults" in arguments.parts:
            yield from faults(graph, stage, arguments.per_stage, arguments.seed)
        if "kills" in arguments.parts and has_scratch(graph, stage):
            yield from kills(graph, stage, arguments.seed)
        if "edits" in arguments.parts and graph.seconds(stage) >= SHORTEST_S:
            for way in arguments.ways or (WAYS if stage == of_all_ways else WAYS[:1]):
                yield from edits(graph, stage, arguments.seed, way)


def has_scratch(graph: FinishedGraph, stage: str) -> bool:
    """Return whether a stage leaves something behind from which it resumes when it is killed."""
    name = stage.partition("@")[0]
    return name not in LEAVES_NOTHING and "scratch: Scratch" in graph.read(f"stages/{name}.py")


def stage_of_all_ways(graph: FinishedGraph, stages: Sequence[str], seed: int) -> str | None:
    """Return the stage that is edited in every way of running it: some quick one."""
    quick = [stage for stage in stages if SHORTEST_S <= graph.seconds(stage) <= QUICK_S]
    return random.Random(f"ways {seed}").choice(quick) if quick else None


def interrupt(*_: object) -> None:
    """End by an exception, so that the experiment puts everything back."""
    raise KeyboardInterrupt


def main() -> None:
    """Command line; status 1 where a fault survived."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, help="a copy of the project with a finished smoke graph"
    )
    parser.add_argument("--seed", type=int, default=0, help="of modules, functions and moments (0)")
    parser.add_argument(
        "--per-stage",
        type=int,
        default=5,
        help="modules of a stage in which a fault is planted (5)",
    )
    parser.add_argument("--stages", nargs="+", help="all where none is named")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="all where none is named"
    )
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, help="ways to run a stage that is edited, for each stage"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    graph = FinishedGraph(arguments.folder)
    findings: list[Finding] = []
    try:
        for finding in experiments(graph, arguments):
            findings.append(finding)
            say(
                f"{'!! ' if finding.is_survivor else ''}{finding.stage}: {finding.what}: {finding.ending}"
            )
    finally:
        survivors = sum(finding.is_survivor for finding in findings)
        print(
            f"\n{table(findings)}\n\nseed {arguments.seed}: {len(findings)} experiments, {survivors} survivors"
        )
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
