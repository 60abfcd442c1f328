"""`deepsearch compare` of two reports: what differs in settings, code and data, and F1 question by question.

A report is what the stage `track` makes of it (:mod:`deepsearch_rl.track.bundle`). It is read
from DVC, for a git revision or the workspace, or from its run in an MLflow store.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeAlias

import numpy as np
import typer
from dvc.api import DVCFileSystem
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.scm import resolve_rev
from pydantic import Field, RootModel

from deepsearch_rl.cli.terminal import print_table
from deepsearch_rl.core.errors import ArtifactError, CheckFailedError
from deepsearch_rl.core.files import read_record
from deepsearch_rl.core.profile import dvc_file
from deepsearch_rl.core.records import Record
from deepsearch_rl.evaluate.f1_row import F1TableRow
from deepsearch_rl.evaluate.holm import holm
from deepsearch_rl.evaluate.score import (
    PairedDifference,
    QuestionScores,
    paired_differences,
)
from deepsearch_rl.evaluate.tables import Figures
from deepsearch_rl.track.bundle import BUNDLE, FILES, PARAMS, QUESTION_F1, TABLE, ReportBundle
from deepsearch_rl.track.local_store import database_file
from deepsearch_rl.track.store import connected, public_uri
from deepsearch_rl.track.upload import DIGEST_TAG, PARENT_TAG, REPORT

DIGEST_SHOWN = 12
WORKSPACE = "workspace"
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{6,64}")
_QUOTE = re.compile("'")
Pair: TypeAlias = tuple[str | None, str | None]


class ReportSource(NamedTuple):
    """Where reports are looked for: those of a profile in the repository ``root``, and all of the MLflow store."""

    root: Path
    profile: str
    store: str
    timeout_s: float


class TrackedF1(NamedTuple):
    """A report as it was tracked; ``f1`` holds each question's mean F1 by model, run and question id."""

    bundle: ReportBundle
    params: Mapping[str, str]
    f1: Mapping[str, Mapping[str, Mapping[str, float]]]


class F1Difference(Record):
    """F1 of a model on a question set in both reports; null where a report has no such run."""

    model: str
    run: str = Field(
        description="question set, and what sets the run apart from the main one, e.g. greedy"
    )
    first: float | None
    second: float | None
    difference: PairedDifference | None = Field(
        description="first minus second; null where no question is shared"
    )
    shared: int = Field(ge=0, description="questions that both reports answered")
    questions: int = Field(ge=1, description="questions of the larger run")


class ReportComparison(Record):
    """What differs between two reports; of each pair, the first is the first report's."""

    names: tuple[str, str]
    code: tuple[str, str] = Field(
        description="commit that made the report, with -dirty where files differed from it"
    )
    params: dict[str, Pair] = Field(
        description="settings that differ, by dotted name; null: there is no such setting"
    )
    data: dict[str, Pair] = Field(
        description="digests that differ, of data sets, questions and models' weights"
    )
    f1: tuple[F1Difference, ...]


def compare_named(
    names: tuple[str, str], source: ReportSource, seed: int, draws: int
) -> ReportComparison:
    """Compare two reports by their names; raises as :func:`find_report` and :func:`compare_reports`.

    A name is ``workspace``, a git revision or a DVC experiment; or of a run in the MLflow store its
    id, its name, or the start of its report's digest (6 digits or more).
    """
    with TemporaryDirectory() as folder:
        # A folder for each: the two have files of the same names
        first = find_report(names[0], source, Path(folder, "0"))
        second = find_report(names[1], source, Path(folder, "1"))

    return compare_reports(first, second, seed, draws)


def compare_reports(first: TrackedF1, second: TrackedF1, seed: int, draws: int) -> ReportComparison:
    """Return what differs; ``draws`` resamples and sign patterns make intervals and p-values.

    Raise CheckFailedError where the reports have no run in common.
    """
    f1 = tuple(_f1_differences(first, second, seed, draws))
    if not any(row.difference for row in f1):
        raise CheckFailedError(
            f"{first.bundle.name} and {second.bundle.name} answered no question in common: other models or data sets."
        )

    return ReportComparison(
        names=(first.bundle.name, second.bundle.name),
        code=(first.bundle.tags["git.commit"], second.bundle.tags["git.commit"]),
        params=_differing(first.params, second.params),
        data=_differing(dict(_digests(first.bundle)), dict(_digests(second.bundle))),
        f1=f1,
    )


def _differing(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, Pair]:
    differing: dict[str, Pair] = {}
    for name in sorted(first.keys() | second.keys()):
        pair = (first.get(name), second.get(name))
        if pair[0] != pair[1]:
            differing[name] = pair

    return differing


def _digests(bundle: ReportBundle) -> Iterator[tuple[str, str]]:
    """Yield name and digest of everything that a report's figures were made of."""
    for name, data in bundle.datasets.items():
        yield name, data.digest
    for model, evaluated in bundle.models.items():
        yield f"weights of {model}", evaluated.sha256
        for name, data in evaluated.questions.items():
            yield f"questions of {name}", data.digest


def _f1_differences(
    first: TrackedF1, second: TrackedF1, seed: int, draws: int
) -> Iterator[F1Difference]:
    """Yield a difference for every model and run of either report, in the order of the F1 table."""
    first_rows = _rows_by_run(first)
    second_rows = _rows_by_run(second)

    # The first report's order, then what only the second one has
    for model, run in dict.fromkeys([*first_rows, *second_rows]):
        first_row = first_rows.get((model, run))
        second_row = second_rows.get((model, run))
        first_f1 = first.f1.get(model, {}).get(run, {})
        second_f1 = second.f1.get(model, {}).get(run, {})
        shared = tuple(sorted(first_f1.keys() & second_f1.keys()))

        difference: PairedDifference | None = None
        if shared:
            first_scores = _scores_of(first_f1, shared)
            second_scores = _scores_of(second_f1, shared)
            differences = paired_differences(first_scores, second_scores, seed, draws, ["f1"])
            difference = differences["f1"]

        yield F1Difference(
            model=model,
            run=run,
            first=first_row.f1 if first_row else None,
            second=second_row.f1 if second_row else None,
            difference=difference,
            shared=len(shared),
            questions=max(row.n for row in (first_row, second_row) if row),
        )


def _rows_by_run(report: TrackedF1) -> dict[tuple[str, str], F1TableRow]:
    rows = report.bundle.table.reading_order
    return {(row.model, row.run_name): row for row in rows}


def _scores_of(f1: Mapping[str, float], question_ids: tuple[str, ...]) -> QuestionScores:
    values_Q = np.array([f1[question_id] for question_id in question_ids])
    # Reports do not say a question's type
    return QuestionScores(question_ids, ("",) * len(question_ids), {"f1": values_Q})


def find_report(name: str, source: ReportSource, folder: Path) -> TrackedF1:
    """Return the report that a name stands for; ``folder`` is for what is fetched.

    Raises:
        ArtifactError: there is no such report, DVC does not find its files, or `track` has not run since it was made.
        ConfigError, EndpointError: see :func:`connected`.
    """
    tracked = Path("data", source.profile, "track")
    table = Path("reports", source.profile, TABLE)
    if name == WORKSPACE:
        shown = source.root / table
        _require_tracked(
            source, name, source.root / tracked, shown.read_text() if shown.is_file() else None
        )
        return _read_report(source.root / tracked)
    try:
        with Repo(str(source.root)) as repo:
            commit = resolve_rev(repo.scm, name)
    except DvcException:
        # No revision of this repository, or no repository
        return _fetch_from_mlflow(name, source, folder)

    try:
        with Repo(str(source.root), rev=commit) as repo:
            files = DVCFileSystem(repo=repo)
            files.get(tracked.as_posix(), str(folder), recursive=True)
            is_shown = files.exists(table.as_posix())
            shown_table = str(files.read_text(table.as_posix())) if is_shown else None
    except Exception as error:
        problem = f"neither cache nor remote of DVC has the report of {source.profile} at {name} ({error})."
        remedy = f"`dvc push {dvc_file(source.profile)}` where it was made, or run the profile at that revision."
        raise ArtifactError(f"{problem} {remedy}") from error

    _require_tracked(source, name, folder, shown_table)
    return _read_report(folder)


def _require_tracked(
    source: ReportSource, name: str, tracked: Path, shown_table: str | None
) -> None:
    """Raise ArtifactError where the F1 table that the project shows is not that of the tracked report."""
    path = tracked / FILES / TABLE
    if shown_table is not None and path.is_file() and path.read_text() != shown_table:
        raise ArtifactError(
            f"{name}: reports/{source.profile}/{TABLE} is not the table of data/{source.profile}/track, "
            "which is what is compared: the stage track has not run since the report was made. Run "
            f"`dvc repro {dvc_file(source.profile)}:track` there."
        )


def _fetch_from_mlflow(name: str, source: ReportSource, folder: Path) -> TrackedF1:
    if _RUN_ID.fullmatch(name):
        query = f"attributes.run_id = '{name}'"
    elif _DIGEST.fullmatch(name):
        query = f"tags.`{DIGEST_TAG}` LIKE '{name}%'"
    else:
        # MLflow's filters have no escape for a quote
        query = f"attributes.run_name = '{_QUOTE.sub('', name)}'"

    database = database_file(source.store)
    if database is not None and not database.is_file():
        # To connect would make the store
        raise _none_has(name, "no report", source.store)

    with connected(source.store, source.timeout_s) as client:
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        # The runs of a report's models have its digest as well
        runs = client.search_runs(experiments, query)
        reports = [run for run in runs if PARENT_TAG not in run.data.tags]

        if len(reports) != 1:
            problem = f"{len(reports)} reports" if reports else "no report"
            raise _none_has(name, problem, source.store)

        client.download_artifacts(reports[0].info.run_id, REPORT, str(folder))

    return _read_report(folder / REPORT)


def _none_has(name: str, problem: str, store: str) -> ArtifactError:
    """Return the error about a name that stands for nothing; ``problem`` is how many reports of the store have it."""
    return ArtifactError(
        f"{name!r} is no file and no git revision here, and {problem} at {public_uri(store)} has that name, "
        "run id or digest. Name a file of predictions; or a revision, an experiment or `workspace`; or take a run "
        "from MLflow's table of runs."
    )


def _read_report(folder: Path) -> TrackedF1:
    """Read a bundle, or the artifacts of its run; raise ArtifactError or RecordError where it is missing or malformed.

    A run's artifacts have the attached files beside the bundle, not in a folder of their own.
    """
    params = folder / FILES / PARAMS
    if not params.is_file():
        params = folder / PARAMS
    f1 = read_record(folder / QUESTION_F1, Figures).root
    return TrackedF1(
        read_record(folder / BUNDLE, ReportBundle),
        read_record(params, RootModel[dict[str, str]]).root,
        f1,
    )


def print_comparison(comparison: ReportComparison) -> None:
    """Print the tables of a comparison; p-values are corrected for their number."""
    first_name, second_name = comparison.names
    header = ["", f"first: {first_name}", f"second: {second_name}"]
    print_table("", header, [["code", *comparison.code]])
    _print_pairs("Settings that differ", comparison.params)

    digests: dict[str, Pair] = {}
    for name, (first_digest, second_digest) in comparison.data.items():
        digests[name] = (_short(first_digest), _short(second_digest))
    _print_pairs("Data and weights that differ", digests)
    _print_f1(comparison.f1)


def _print_f1(differences: Sequence[F1Difference]) -> None:
    # All tests that the table shows are one family
    p_values = [row.difference.p_value for row in differences if row.difference]
    corrected = iter(holm(p_values))
    rows: list[list[str]] = []
    for row in differences:
        rows.append(_f1_cells(row, next(corrected) if row.difference else None))

    header = [
        "model",
        "questions",
        "first",
        "second",
        "difference",
        "95 % interval",
        "p (Holm)",
        "n",
    ]
    print_table("F1, first minus second, question by question", header, rows)


def _print_pairs(title: str, pairs: Mapping[str, Pair]) -> None:
    if not pairs:
        typer.echo(f"{title}: none")
        return

    rows = [[name, first or "-", second or "-"] for name, (first, second) in pairs.items()]
    print_table(title, ["", "first", "second"], rows)


def _short(digest: str | None) -> str | None:
    return digest[:DIGEST_SHOWN] if digest else None


def _f1_cells(row: F1Difference, corrected: float | None) -> list[str]:
    """Return the cells of a line; ``n`` says how many questions both reports hold, if not all."""
    first = "-" if row.first is None else f"{row.first:.3f}"
    second = "-" if row.second is None else f"{row.second:.3f}"
    paired = row.difference
    interval = f"[{paired.low:+.3f}, {paired.high:+.3f}]" if paired else "-"
    difference = f"{paired.mean:+.3f}" if paired else "-"
    p_value = "-" if corrected is None else f"{corrected:.4f}"
    count = str(row.shared) if row.shared == row.questions else f"{row.shared} of {row.questions}"
    return [row.model, row.run, first, second, difference, interval, p_value, count]
