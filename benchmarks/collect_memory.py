"""Memory of a bulk run over the number of questions: ``collect``, then the row of the F1 table from its artifact.

    OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks.collect_memory                                   # half a minute

Every size runs in a process of its own with a scripted agent, whose trajectories hold a few
kilobytes of passages as real ones do. Measured is how far the process's peak of resident memory
(VmHWM) rises above what it holds once the questions are made: over ``collect`` with its log and
artifact, and over :func:`build_row` after it. What trajectories would take if they were kept is
beside it, from a list of the first 1,000 (tracemalloc).
"""

import contextlib
import multiprocessing
import random
import tempfile
import tracemalloc
from itertools import islice
from pathlib import Path

from benchmarks.data import make_trajectory, row_key
from benchmarks.measure import parse_options, publish, restart_peak, status_kb
from deepsearch_rl.agent.collect import BulkRun, collect
from deepsearch_rl.core.records import Question, Trajectory
from deepsearch_rl.evaluate.score import build_row

CONCURRENCY = 30
SAMPLE = 1000
SEARCHES = 2
PASSAGE_BYTES = 1800
DRAWS = 1000
KEY = row_key("base", "multihoprag", temperature=0.7, samples=1)


class ScriptedAgent:
    """Searches twice and answers."""

    async def answer(self, question: Question, sample: int) -> Trajectory:
        """Return a trajectory of about five kilobytes, different for every question."""
        rng = random.Random(question.id)
        searches: list[tuple[str, str]] = []
        for _ in range(SEARCHES):
            query = f"{question.id} {rng.random()}"
            searches.append((query, rng.randbytes(PASSAGE_BYTES // 2).hex()))
        return make_trajectory(question, sample, KEY, searches, "Vienna")


def measure(count: int) -> list[int]:
    """Collect and score questions in this process.

    Return bytes in the order of the table's columns: the artifact, the growth of the peak by
    ``collect`` and by the row, and what the trajectories would take if they were kept.
    """
    questions: list[Question] = []
    for number in range(count):
        text = f"Number {number}?"
        questions.append(Question(id=f"q{number}", question=text, golden_answers=("Vienna",)))

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.jsonl")
        out = Path(folder, "out.jsonl")
        agent = contextlib.nullcontext(ScriptedAgent())
        held_kb = restart_peak()
        run = BulkRun(
            questions, samples=1, make_agents=[lambda: agent], log=log, label="collect", out=out
        )
        trajectories = collect(run, CONCURRENCY)
        collect_kb = status_kb("VmHWM") - held_kb
        held_kb = restart_peak()
        row = build_row(KEY, trajectories, generated=True, draws=DRAWS)
        row_kb = status_kb("VmHWM") - held_kb
        assert row.n == count
        tracemalloc.start()
        sample = list(islice(trajectories, SAMPLE))
        kept_bytes = tracemalloc.get_traced_memory()[0] // len(sample) * count
        return [out.stat().st_size, collect_kb * 1024, row_kb * 1024, kept_bytes]


def main() -> None:
    """Measure every size and print the table."""
    options = parse_options(__doc__, questions=[2_000, 20_000, 100_000])
    rows: list[tuple[str, ...]] = []

    for count in options.questions:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            sizes = pool.apply(measure, (count,))
        rows.append((f"{count:,}", *(f"{size / 1e6:.1f}" for size in sizes)))

    publish(
        options,
        "collect_memory",
        ("questions", "artifact, MB", "collect, MB", "row, MB", "if kept, MB"),
        rows,
    )


if __name__ == "__main__":
    main()
