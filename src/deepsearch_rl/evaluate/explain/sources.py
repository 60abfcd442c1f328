"""Where a run's questions, index and setting are: beside it in a finished graph, or as somebody names them.

The rollouts of a graph are ``data/<profile>/evaluate/<model>/<file>``; ``rows.json`` beside them
has the setting of every file and the digests of what was answered and searched. Beside the rollouts
of `deepsearch evaluate`, ``data.json`` says where its questions and indexes are. They are taken only
where they still have these digests.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from deepsearch_rl.core.errors import ArtifactError, UnknownNameError
from deepsearch_rl.core.files import read_record, sha256_file
from deepsearch_rl.core.records import Record
from deepsearch_rl.evaluate.explain.records import ControlFigure, Setting
from deepsearch_rl.evaluate.f1_row import F1TableRow, ModelEvaluation
from deepsearch_rl.evaluate.score import Interval
from deepsearch_rl.evaluate.tables import DATASET_ORDER, MODEL_ORDER, in_order

ROWS = "rows.json"
DATA = "data.json"

# What a run was made with, beside its setting
Input = Literal["questions", "index"]


class DataFolder(Record):
    """``data.json`` of an evaluation outside a graph: the folder of its ``questions``, ``index`` and ``chunks``."""

    data: Path = Field(description="absolute path")


@dataclass(frozen=True, slots=True)
class Source:
    """A run's file, and what is known about it before it is read."""

    path: Path
    model: str = ""
    setting: Setting = field(default_factory=Setting)
    questions: Path | None = None
    index: Path | None = None
    chunks: Path | None = None
    retriever: str | None = None
    # The greedy answers of the same model to the same questions
    greedy: Path | None = None
    controls: dict[str, ControlFigure] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # SHA-256 of what was answered and searched, by name; empty where nothing is known of it
    inputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Searched:
    """Folders with an index and a passage file for every corpus of a profile."""

    index: Path
    chunks: Path


def find_sources(
    paths: Sequence[Path], dataset: str | None, named: Collection[Input] = ()
) -> list[Source]:
    """Return the runs that paths name: a file, an evaluated model's folder, or the folder of all of them.

    Of a folder, the main run of every question set is taken, or of ``dataset`` alone. ``named`` are
    the inputs that the caller names for all runs, so that those beside a run do not matter. Raise
    ArtifactError where a path or another input is missing, or the input has changed since the run;
    UnknownNameError where no run is of ``dataset``.
    """
    sources: list[Source] = []
    for path in paths:
        if path.is_dir():
            sources.extend(_of_folder(path))
        else:
            sources.append(_of_file(path))

    if dataset is not None:
        sources = _of_dataset(sources, dataset)

    for source in sources:
        _require_inputs(source, named)
    return _in_reading_order(sources)


def _of_dataset(sources: Sequence[Source], dataset: str) -> list[Source]:
    """Return the sources of one question set, and those of an unknown one, which is then taken to be this."""
    chosen: list[Source] = []
    others: set[str] = set()
    for source in sources:
        own = source.setting.dataset
        if own in ("", dataset):
            setting = source.setting.model_copy(update={"dataset": dataset})
            chosen.append(replace(source, setting=setting))
        else:
            others.add(own)

    if not chosen:
        raise UnknownNameError("question set", dataset, others)
    return chosen


def _in_reading_order(sources: Sequence[Source]) -> list[Source]:
    """Return the sources by question set and by model in training order; others keep their place."""
    datasets = in_order([source.setting.dataset for source in sources], DATASET_ORDER)
    models = in_order([source.model for source in sources], MODEL_ORDER)
    if all(source.model for source in sources):
        return sorted(
            sources,
            key=lambda each: (datasets.index(each.setting.dataset), models.index(each.model)),
        )
    return list(sources)


def _of_folder(folder: Path) -> Iterator[Source]:
    if (folder / ROWS).is_file():
        evaluation = read_record(folder / ROWS, ModelEvaluation)
        for row in evaluation.rows:
            if not row.kind:
                yield _of_row(folder, evaluation, row)
        return

    # A name with a dot is what a killed evaluation has left
    models = sorted(path.parent for path in folder.glob(f"[!.]*/{ROWS}"))
    if not models:
        raise ArtifactError(
            f"{folder} holds no {ROWS}, and no folder in it does: name a file of trajectories or "
            "predictions, or data/<profile>/evaluate/<model> of a graph whose stage evaluate has "
            "run."
        )
    for model in models:
        yield from _of_folder(model)


def _of_file(path: Path) -> Source:
    if not (path.parent / ROWS).is_file():
        return Source(path)

    evaluation = read_record(path.parent / ROWS, ModelEvaluation)
    for row in evaluation.rows:
        if row.rollouts_file == path.name:
            return _of_row(path.parent, evaluation, row)
    return Source(path, model=evaluation.model)


def evaluated_sources(
    evaluations: Mapping[str, Path], questions: Mapping[str, Path], searched: Searched | None
) -> list[Source]:
    """Return the main run of every model and question set of a profile, whose files belong together.

    ``evaluations`` are folders by model, ``questions`` files by set. Without ``searched`` a run is
    explained by its rollouts alone.
    """
    sources: list[Source] = []
    for folder in evaluations.values():
        evaluation = read_record(folder / ROWS, ModelEvaluation)
        for row in evaluation.rows:
            if not row.kind:
                file = questions[row.dataset]
                sources.append(_source(folder, evaluation, row, file, searched))

    return _in_reading_order(sources)


def _of_row(folder: Path, evaluation: ModelEvaluation, row: F1TableRow) -> Source:
    """Return the source of a run, with questions and index where its graph or its ``data.json`` has them."""
    file = folder / DATA
    data = read_record(file, DataFolder).data if file.is_file() else folder.absolute().parents[1]
    split = _split(evaluation, row.dataset)
    questions = data / "questions" / row.dataset / f"{split}.jsonl"
    return _source(folder, evaluation, row, questions, Searched(data / "index", data / "chunks"))


def _source(
    folder: Path,
    evaluation: ModelEvaluation,
    row: F1TableRow,
    questions: Path,
    searched: Searched | None,
) -> Source:
    notes: list[str] = []
    index: Path | None = None
    chunks: Path | None = None
    base, _, reranker = row.retriever.partition("+")
    if base == "online":
        notes.append("Passages came from an online search, which cannot be asked again.")
    elif searched is not None:
        index = searched.index / row.corpus
        chunks = searched.chunks / f"{row.corpus}.jsonl"
        if reranker:
            notes.append(
                "The run's searches had a reranker; what other queries would have found is ranked "
                "without it."
            )

    greedy = None
    if row.main and not row.variant:
        for other in evaluation.rows:
            if other.kind == "greedy" and other.dataset == row.dataset:
                greedy = folder / other.rollouts_file

    return Source(
        path=folder / row.rollouts_file,
        model=row.model if not row.kind else f"{row.model}, {row.kind}",
        setting=Setting(
            dataset=row.dataset,
            split=_split(evaluation, row.dataset),
            generated=row.generated,
            corpus=row.corpus,
            prompt=row.prompt,
            top_k=row.top_k,
            chunk_size=row.chunk_size,
            retriever=row.retriever or None,
            temperature=row.temperature,
            samples=row.samples,
        ),
        questions=questions,
        index=index,
        chunks=chunks,
        retriever="hybrid" if base.startswith("hybrid") else base or None,
        greedy=greedy,
        controls=_controls(row),
        notes=tuple(notes),
        inputs=evaluation.inputs,
    )


def _split(evaluation: ModelEvaluation, dataset: str) -> str:
    """Return the split whose questions were answered, as the digests name it."""
    prefix = f"questions/{dataset}/"
    for name in evaluation.inputs:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return "val"


def _require_inputs(source: Source, named: Collection[Input]) -> None:
    """Raise ArtifactError where the questions or the index of a run are not those that it was made with."""
    setting = source.setting
    if source.questions is not None and "questions" not in named:
        sha256 = source.inputs.get(f"questions/{setting.dataset}/{setting.split}")
        _require_same(source.questions, sha256, sha256_file)

    if source.index is not None and "index" not in named:
        # Here, because it loads the encoders
        from deepsearch_rl.search.manifest import digest_index  # noqa: PLC0415

        _require_same(source.index, source.inputs.get(f"index/{setting.corpus}"), digest_index)


def _require_same(path: Path, sha256: str | None, digest: Callable[[Path], str]) -> None:
    """Raise ArtifactError where a file or an index is missing, or is another one than the run was made with."""
    if not path.exists():
        raise ArtifactError(
            f"{path} does not exist, and the run was made with it; name questions and index "
            "yourself (--questions, --index, or --corpus)."
        )
    if sha256 is not None and digest(path) != sha256:
        raise ArtifactError(
            f"{path} is another one than the run was made with; run the stage evaluate again (`dvc "
            "repro`), or name questions and index yourself (--questions, --index, or --corpus)."
        )


def _controls(row: F1TableRow) -> dict[str, ControlFigure]:
    figures: dict[str, ControlFigure] = {}
    for name, score in row.controls.items():
        interval = Interval(mean=score.f1, low=score.f1_low, high=score.f1_high)
        figures[name] = ControlFigure(
            n=score.n, f1=interval, searched_f1=score.searched_f1, failures=score.failures
        )

    return figures
