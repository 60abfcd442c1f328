"""Minutes from a clean clone to an F1 on 200 questions: one command measures a row of docs/speedrun.md.

    make speedrun WHAT="half of the rows"
    .venv/bin/python -m benchmarks.speedrun "half of the rows"
    .venv/bin/python -m benchmarks.speedrun --table     # write docs/speedrun.md again from benchmarks/speedrun.csv

It clones HEAD into ``work/speedrun/<commit>``, beside everything that earlier runs left, and runs the graph of
profiles/speedrun there by `dvc repro --no-run-cache` without a dvc.lock, so that nothing comes from a cache. The clock
runs while DVC does. What the figure depends on is compared as soon as it is there: the questions and the corpus, the
base weights, and that no question is trained on; the evaluation at the end. A run that differs gives no row.
"""

import argparse
import csv
import datetime
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pydantic import Field

from benchmarks.measure import fill_section, markdown_table
from deepsearch_rl.cli.summary import latest_runs
from deepsearch_rl.core.answers import normalise, word_similarity
from deepsearch_rl.core.errors import CheckFailedError, ConfigError
from deepsearch_rl.core.files import read_jsonl, read_record, sha256_file, sha256_json
from deepsearch_rl.core.hardware import usable_cores
from deepsearch_rl.core.processes import ProcessGuard
from deepsearch_rl.core.profile import Profile, dvc_file, find_profile
from deepsearch_rl.core.records import Document, Question, Record
from deepsearch_rl.evaluate.f1_row import F1TableRow, ModelEvaluation
from deepsearch_rl.train.swift_rows import SwiftRow
from flows.driver import one_paragraph_errors, print_line, run_dvc

PROFILE = "speedrun"
SET = "hotpotqa"
QUESTIONS = 200
LEVELS = (0.2, 0.3)
ROWS = Path("benchmarks/speedrun.csv")
DIGESTS = Path("benchmarks/speedrun.json")
DOCUMENT = Path("docs/speedrun.md")
CLONES = Path("work/speedrun")
# Not in git; a clone gets links to them
SOURCES = (Path("data/sources"), Path("models/sources"))
# The best first, by the names that Linux gives them
INSTRUCTION_SETS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "bf16", "asimd")
# Of the words of two questions that ask the same
SAME_WORDS = 0.8
LONGEST_STAGES = 3
HEADER = (
    *("date", "minutes", "F1", "searches", "record", "what changed"),
    *("the longest stages, s", "GiB", "machine", "commit"),
)


class Inputs(Record):
    """SHA-256 of the questions by id with their golden answers, and of the corpus's documents, in sorted order."""

    questions: str
    corpus: str


class Digests(Record):
    """``benchmarks/speedrun.json``: what every row has in common, by source (folder or hub)."""

    download: dict[str, Inputs]
    base: dict[str, str] = Field(description="of model.safetensors, by prepare_model.source")


class Row(Record):
    """One line of ``benchmarks/speedrun.csv``."""

    date: str
    commit: str
    machine: str = Field(
        description="cores and instruction set, or the GPU: rows of equal ones compete"
    )
    cpu: str
    source: str = Field(description="download.source and prepare_model.source")
    minutes: float
    f1: float
    f1_low: float = Field(description="lower end of the 95 % interval")
    f1_high: float
    searches: float = Field(description="mean per question")
    peak_gib: float = Field(description="of the stage with the largest process and child")
    stages: str = Field(description="seconds of each, imports left out")
    what: str

    @property
    def competitors(self) -> tuple[str, str]:
        """What rows that compete with one another have in common."""
        return self.machine, self.source


def measure(root: Path, what: str) -> Row:
    """Run the graph of HEAD in a clone and return its row.

    Raises:
        ConfigError: the tree has uncommitted changes, HEAD was measured here, or its profile cannot be compared.
        CheckFailedError: questions, corpus, base or evaluation differ, or a question was trained on.
        StageFailedError: a stage failed.
    """
    commit = _committed(root)
    profile = find_profile(root, PROFILE)
    source = profile.value("download.source")
    base = profile.value("prepare_model.source")
    digests = read_record(root / DIGESTS, Digests)
    if source not in digests.download or base not in digests.base:
        raise ConfigError(
            f"{DIGESTS} has no digests for download.source {source!r} with prepare_model.source {base!r}; commit "
            "those of a run that nobody doubts first."
        )
    if len(profile.value("models")) != 1:
        raise ConfigError(
            f"the profile {PROFILE} evaluates {', '.join(profile.value('models'))}; a row is of one model."
        )

    clone = _clone(root, commit)
    graph = dvc_file(PROFILE)
    seconds = _repro(clone, f"{graph}:download", f"{graph}:prepare_model")
    data = clone / profile.data
    val = require_inputs(data, digests.download[source])
    weights = sha256_file(clone / profile.models / "base" / "model.safetensors")
    _require_equal("base weights", weights, digests.base[base])

    seconds += _repro(clone, graph)
    for rows in sorted(data.glob("sft/*.jsonl")):
        require_unseen(val, _asked(rows), f"{rows.parent.name}/{rows.name}")
    score = read_score(data, profile)
    stages = latest_runs(clone, PROFILE)
    return Row(
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        commit=commit[:8],
        machine=_machine(),
        cpu=_cpu("model name"),
        source=f"{source}, {base}",
        minutes=round(seconds / 60, 2),
        f1=score.f1,
        f1_low=score.f1_low,
        f1_high=score.f1_high,
        searches=round(score.mean_tool_calls, 2),
        peak_gib=round(max((run.peak_mb for run in stages), default=0) / 1024, 1),
        stages=", ".join(f"{run.stage} {run.seconds:.0f}" for run in stages),
        what=what,
    )


def _committed(root: Path) -> str:
    """Return HEAD; raise ConfigError where files differ from it, other than the table."""
    changed = _git(root, "status", "--porcelain", "--", ".", f":!{ROWS}", f":!{DOCUMENT}")
    if changed:
        raise ConfigError(
            f"the working tree has changes that no commit has ({changed.split()[1]}), and a row names a commit; "
            "commit or stash them."
        )
    return _git(root, "rev-parse", "HEAD")


def _clone(root: Path, commit: str) -> Path:
    clone = root / CLONES / commit[:8]
    if clone.exists():
        raise ConfigError(
            f"{clone.relative_to(root)} has the outputs of an earlier run of this commit; remove it to measure again."
        )

    _git(root, "clone", "--quiet", str(root), str(clone))
    _git(clone, "checkout", "--quiet", "--detach", commit)
    # With it DVC would take outputs from a cache that is shared on this machine
    (clone / dvc_file(PROFILE)).with_name("dvc.lock").unlink(missing_ok=True)
    for path in SOURCES:
        if (root / path).exists():
            (clone / path).parent.mkdir(exist_ok=True)
            (clone / path).symlink_to((root / path).resolve())
    return clone


def _git(folder: Path, *arguments: str) -> str:
    run = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise ConfigError(f"`git {' '.join(arguments)}` failed: {run.stderr.strip()}")
    return run.stdout.strip()


def _repro(clone: Path, *targets: str) -> float:
    """Run stages in a clone, and return the seconds that it took."""
    started_s = time.monotonic()
    with ProcessGuard() as guard:
        say = partial(print_line, PROFILE)
        run_dvc(["repro", "--no-run-cache", *targets], clone, guard, say)
    return time.monotonic() - started_s


def require_inputs(data: Path, expected: Inputs) -> list[Question]:
    """Return the questions; raise CheckFailedError where they or the corpus are others, or one is among train's."""
    found = digest_inputs(data)
    _require_equal(f"{QUESTIONS} questions", found.questions, expected.questions)
    _require_equal("corpus", found.corpus, expected.corpus)

    val = list(read_jsonl(data / "questions" / SET / "val.jsonl", Question))
    for path in sorted(data.glob("questions/*/train.jsonl")):
        require_unseen(val, read_jsonl(path, Question), f"{path.parent.name}/{path.name}")
    return val


def digest_inputs(data: Path) -> Inputs:
    """Return the digests of a profile's questions and corpus, whatever readers add to them."""
    questions: list[tuple[str, str, list[str]]] = []
    for each in read_jsonl(data / "questions" / SET / "val.jsonl", Question):
        questions.append((each.id, each.question, sorted(each.golden_answers)))

    documents = read_jsonl(data / "corpora" / f"{SET}.jsonl", Document)
    return Inputs(
        questions=sha256_json(sorted(questions)),
        corpus=sha256_json(sorted(document.contents for document in documents)),
    )


def _require_equal(name: str, found: str, expected: str) -> None:
    if found != expected:
        raise CheckFailedError(
            f"this run has other {name} than the table's rows, so it gives no row (SHA-256 {found}; {DIGESTS} has "
            f"{expected})."
        )


def require_unseen(val: Sequence[Question], trained: Iterable[Question], where: str) -> None:
    """Raise CheckFailedError where a question is trained on, as it is or in other words.

    Two questions ask the same where most of their words are the same, or where their gold documents and one of their
    golden answers are.
    """
    val_words = [_words(question) for question in val]
    for other in trained:
        words = _words(other)
        for question, own in zip(val, val_words, strict=True):
            alike = word_similarity(words, own) >= SAME_WORDS
            if alike or (_gold(question) and _gold(question) & _gold(other)):
                raise CheckFailedError(
                    f"{where} has {other.question!r}, which asks what {question.id} of the {QUESTIONS} questions asks "
                    f"({question.question!r}), so this run gives no row."
                )


def _words(question: Question) -> set[str]:
    return set(normalise(question.question).split())


def _gold(question: Question) -> set[tuple[tuple[str, ...], str]]:
    """Return the titles of the gold documents with each golden answer; empty where the titles are not known."""
    titles = tuple(sorted(question.metadata.supporting_titles or ()))
    return {(titles, normalise(answer)) for answer in question.golden_answers} if titles else set()


def _asked(rows: Path) -> Iterator[Question]:
    """Yield what training rows ask."""
    for row in read_jsonl(rows, SwiftRow):
        asked = next(message.content for message in row.messages if message.role == "user")
        yield Question(id="row", question=asked, golden_answers=("",))


def read_score(data: Path, profile: Profile) -> F1TableRow:
    """Return the only row of the evaluation; raise CheckFailedError unless it is of greedy answers to all questions."""
    [model] = profile.value("models")
    rows = read_record(data / "evaluate" / model / "rows.json", ModelEvaluation).rows
    found = [(row.dataset, row.n, row.temperature, row.samples) for row in rows]
    if found != [(SET, QUESTIONS, 0.0, 1)]:
        raise CheckFailedError(
            f"the evaluation has {len(rows)} rows, the first of {rows[0].n} questions of {rows[0].dataset} at "
            f"temperature {rows[0].temperature:g}; a row of the table is one greedy answer to each of {QUESTIONS}."
        )
    return rows[0]


def _machine() -> str:
    import torch  # noqa: PLC0415 - seconds, which a refusal does not need

    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    features = f"{_cpu('flags')} {_cpu('Features')}".split()
    known = [name for name in INSTRUCTION_SETS if name in features]
    cores = usable_cores()
    return f"{cores} core{'s' if cores > 1 else ''}, {known[0] if known else 'unknown'}"


def _cpu(field: str) -> str:
    """Return a field of the first processor, empty where Linux does not give it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""


def read_rows(root: Path) -> list[Row]:
    """Return the rows that were measured, in their order."""
    with (root / ROWS).open(encoding="utf-8", newline="") as lines:
        return [Row.model_validate(line) for line in csv.DictReader(lines)]


def append_row(root: Path, row: Row) -> None:
    """Write a row below the others."""
    with (root / ROWS).open("a", encoding="utf-8", newline="") as lines:
        csv.DictWriter(lines, list(Row.model_fields), lineterminator="\n").writerow(
            row.model_dump()
        )


def records(rows: Sequence[Row]) -> list[tuple[float, ...]]:
    """Return of each row the levels of F1 that no earlier row of its competitors reached in fewer minutes."""
    best: dict[tuple[float, tuple[str, str]], float] = {}
    reached: list[tuple[float, ...]] = []
    for row in rows:
        levels: list[float] = []
        for level in LEVELS:
            if row.f1 >= level and row.minutes < best.get((level, row.competitors), float("inf")):
                best[level, row.competitors] = row.minutes
                levels.append(level)
        reached.append(tuple(levels))

    return reached


def table(rows: Sequence[Row]) -> str:
    """Return the table of the document."""
    if not rows:
        return "No run has been measured yet."

    lines: list[tuple[object, ...]] = []
    for row, levels in zip(rows, records(rows), strict=True):
        f1 = f"{row.f1:.3f} [{row.f1_low:.3f}, {row.f1_high:.3f}]"
        record = ", ".join(f"**{level:.2f}**" for level in levels)
        machine = f"{row.machine} ({row.cpu}); {row.source}"
        figures = (row.date, str(row.minutes), f1, f"{row.searches:.2f}", record, row.what)
        lines.append((*figures, _longest(row.stages), f"{row.peak_gib:.1f}", machine, row.commit))

    return markdown_table(HEADER, lines)


def _longest(stages: str) -> str:
    seconds: dict[str, float] = {}
    for each in stages.split(", ") if stages else ():
        name, value = each.split(" ")
        seconds[name] = float(value)

    longest = sorted(seconds, key=lambda name: -seconds[name])[:LONGEST_STAGES]
    return ", ".join(f"{name} {seconds[name]:.0f}" for name in longest)


def main() -> None:
    """Measure a row and write it, or write the table alone."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", help="what changed since the rows above, in a few words")
    parser.add_argument("--table", action="store_true", help="write the document again, no more")
    options = parser.parse_args()
    if not (options.what or options.table):
        parser.error("say what changed: the row shows it (WHAT of make)")

    root = Path.cwd()
    with one_paragraph_errors():
        if not options.table:
            row = measure(root, options.what)
            append_row(root, row)
            sys.stdout.write(
                f"{row.minutes} minutes, F1 {row.f1:.3f} [{row.f1_low:.3f}, {row.f1_high:.3f}]: in {ROWS} and "
                f"{DOCUMENT}; commit them. The run is in {CLONES / row.commit}.\n"
            )
        fill_section(root / DOCUMENT, PROFILE, table(read_rows(root)))


if __name__ == "__main__":
    main()
