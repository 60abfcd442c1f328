"""`deepsearch compare` of two reports: what differs in settings, code and data, and F1 question by question.

A report is what the stage `track` makes of it (:mod:`deepsearch_rl.tracking.bundle`). It is read
from DVC, for a git revision or the workspace, or from its run in an MLflow store.
"""

import re
from collections.abc import Iterator, Mapping
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

from deepsearch_rl.commands.terminal import print_table
from deepsearch_rl.core.errors import ArtifactError, CheckFailedError
from deepsearch_rl.core.files import read_record
from deepsearch_rl.core.profile import dvc_file
from deepsearch_rl.core.records import Record
from deepsearch_rl.evaluation.scoring.score import (
    PairedDifference,
    QuestionScores,
    paired_differences,
)
from deepsearch_rl.evaluation.tables.holm import holm
from deepsearch_rl.evaluation.tables.tables import Figures
from deepsearch_rl.tracking.bundle import BUNDLE, FILES, PARAMS, QUESTION_F1, Bundle
from deepsearch_rl.tracking.store import connected, public_uri
from deepsearch_rl.tracking.upload import DIGEST_TAG, PARENT_TAG, REPORT

DIGEST_SHOWN = 12
WORKSPACE = "workspace"
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{6,64}")
_QUOTE = re.compile("'")
Pair: TypeAlias = tuple[str | None, str | None]


class Source(NamedTuple):
    """Where reports are looked for: those of a profile in the repository ``root``, and all of the MLflow store."""

    root: Path
    profile: str
    store: str
    timeout_s: float


class Report(NamedTuple):
    """A report as it was tracked; ``f1`` holds each question's mean F1 by model, run and question id."""

    bundle: Bundle
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
    names: tuple[str, str], source: Source, seed: int, draws: int
) -> ReportComparison:
    """Compare two reports by their names; raises as :func:`find_report` and :func:`compare_reports`.

    A name is ``workspace``, a git revision or a DVC experiment; or of a run in the MLflow store its
    id, its name, or the start of its report's digest (6 digits or more).
    """
    with TemporaryDirectory() as folder:
        first, second = (
            find_report(name, source, Path(folder, str(place))) for place, name in enumerate(names)
        )

    return compare_reports(first, second, seed, draws)


def compare_reports(first: Report, second: Report, seed: int, draws: int) -> ReportComparison:
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
    names = sorted(first.keys() | second.keys())
    return {
        name: (first.get(name), second.get(name))
        for name in names
        if first.get(name) != second.get(name)
    }


def _digests(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """Yield name and digest of everything that a report's figures were made of."""
    yield from ((name, data.digest) for name, data in bundle.datasets.items())
    for model, evaluated in bundle.models.items():
        yield f"weights of {model}", evaluated.sha256
        yield from (
            (f"questions of {name}", data.digest) for name, data in evaluated.questions.items()
        )


def _f1_differences(first: Report, second: Report, seed: int, draws: int) -> Iterator[F1Difference]:
    """Yield a difference for every model and run of either report, in the order of the F1 table."""
    rows = [
        {(row.model, row.run_name): row for row in report.bundle.table.reading_order}
        for report in (first, second)
    ]
    for model, run in dict.fromkeys([*rows[0], *rows[1]]):
        pair = [of_report.get((model, run)) for of_report in rows]
        f1, other_f1 = (row.f1 if row else None for row in pair)
        answered = [report.f1.get(model, {}).get(run, {}) for report in (first, second)]
        shared = tuple(sorted(answered[0].keys() & answered[1].keys()))
        scores = [
            QuestionScores(
                shared, ("",) * len(shared), {"f1": np.array([of_run[name] for name in shared])}
            )
            for of_run in answered
        ]
        yield F1Difference(
            model=model,
            run=run,
            first=f1,
            second=other_f1,
            difference=paired_differences(scores[0], scores[1], seed, draws, ["f1"])["f1"]
            if shared
            else None,
            shared=len(shared),
            questions=max(row.n for row in pair if row),
        )


def find_report(name: str, source: Source, folder: Path) -> Report:
    """Return the report that a name stands for; ``folder`` is for what is fetched.

    Raises:
        ArtifactError: there is no such report, or DVC does not find its files.
        ConfigError, EndpointError: see :func:`connected`.
    """
    tracked = Path("data", source.profile, "track")
    if name == WORKSPACE:
        return _read_report(source.root / tracked)
    try:
        with Repo(str(source.root)) as repo:
            commit = resolve_rev(repo.scm, name)
    except DvcException:  # no revision of this repository, or no repository
        return _fetch_from_mlflow(name, source, folder)

    try:
        with Repo(str(source.root), rev=commit) as repo:
            DVCFileSystem(repo=repo).get(tracked.as_posix(), str(folder), recursive=True)
    except Exception as error:
        problem = f"neither cache nor remote of DVC has the report of {source.profile} at {name} ({error})."
        remedy = f"`dvc push {dvc_file(source.profile)}` where it was made, or run the profile at that revision."
        raise ArtifactError(f"{problem} {remedy}") from error

    return _read_report(folder)


def _fetch_from_mlflow(name: str, source: Source, folder: Path) -> Report:
    if _RUN_ID.fullmatch(name):
        wanted = f"attributes.run_id = '{name}'"
    elif _DIGEST.fullmatch(name):
        wanted = f"tags.`{DIGEST_TAG}` LIKE '{name}%'"
    else:
        wanted = f"attributes.run_name = '{_QUOTE.sub('', name)}'"

    with connected(source.store, source.timeout_s) as client:
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        found = client.search_runs(experiments, wanted)
        reports = [run for run in found if PARENT_TAG not in run.data.tags]

        if len(reports) != 1:
            problem = f"{len(reports)} reports" if reports else "no report"
            raise ArtifactError(
                f"{name!r} is no git revision here, and {problem} at {public_uri(source.store)} has that name, "
                "run id or digest. Take it from MLflow's table of runs, or name a revision, an experiment or "
                "`workspace`."
            )

        client.download_artifacts(reports[0].info.run_id, REPORT, str(folder))

    return _read_report(folder / REPORT)


def _read_report(folder: Path) -> Report:
    """Read a bundle, or the artifacts of its run; raise ArtifactError or RecordError where it is missing or malformed.

    A run's artifacts have the attached files beside the bundle, not in a folder of their own.
    """
    params = next(
        (path for path in (folder / FILES / PARAMS, folder / PARAMS) if path.is_file()),
        folder / PARAMS,
    )
    f1 = read_record(folder / QUESTION_F1, Figures).root
    return Report(
        read_record(folder / BUNDLE, Bundle),
        read_record(params, RootModel[dict[str, str]]).root,
        f1,
    )


def print_comparison(comparison: ReportComparison) -> None:
    """Print the tables of a comparison; p-values are corrected for their number."""
    names = [
        f"{title}: {name}"
        for title, name in zip(("first", "second"), comparison.names, strict=True)
    ]
    print_table("", ["", *names], [["code", *comparison.code]])
    _print_pairs("Settings that differ", comparison.params)
    digests = {name: (_short(one), _short(other)) for name, (one, other) in comparison.data.items()}
    _print_pairs("Data and weights that differ", digests)
    corrected = iter(holm([row.difference.p_value for row in comparison.f1 if row.difference]))
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
    cells = [_f1_cells(row, next(corrected) if row.difference else None) for row in comparison.f1]
    print_table("F1, first minus second, question by question", header, cells)


def _print_pairs(title: str, pairs: Mapping[str, Pair]) -> None:
    if pairs:
        print_table(
            title,
            ["", "first", "second"],
            [[name, one or "-", two or "-"] for name, (one, two) in pairs.items()],
        )
    else:
        typer.echo(f"{title}: none")


def _short(digest: str | None) -> str | None:
    return digest[:DIGEST_SHOWN] if digest else None


def _f1_cells(row: F1Difference, corrected: float | None) -> list[str]:
    """Return the cells of a line; ``n`` says how many questions both reports hold, if not all."""
    f1 = ["-" if value is None else f"{value:.3f}" for value in (row.first, row.second)]
    paired = row.difference
    interval = f"[{paired.low:+.3f}, {paired.high:+.3f}]" if paired else "-"
    difference = f"{paired.mean:+.3f}" if paired else "-"
    p_value = "-" if corrected is None else f"{corrected:.4f}"
    count = str(row.shared) if row.shared == row.questions else f"{row.shared} of {row.questions}"
    return [row.model, row.run, *f1, difference, interval, p_value, count]
