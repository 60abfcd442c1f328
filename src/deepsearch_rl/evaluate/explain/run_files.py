"""Runs of any system: our trajectories, or predictions with what they retrieved.

A row of predictions is that of `deepsearch score`, with what was retrieved beside the answer:

    retrievals   [{"query", "chunk_ids": [id]} or {"query", "passages": [text or {"id", "contents"}]}]
    output       FlashRAG's {"pred", "retrieval_result": [{"id", "contents"}]}

``metadata`` may hold the gold evidence, as in a question file. ``stop_reason`` is one of ours where
it is known. A row without ``retrievals`` and ``retrieval_result`` does not say what was searched;
one with an empty list says that nothing was.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from deepsearch_rl.core.answers import ZERO, score
from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.records import (
    Chunk,
    ForeignRecord,
    OptionalRowName,
    OptionalText,
    Question,
    QuestionMetadata,
    RowName,
    StopReason,
    Text,
    is_missing,
)
from deepsearch_rl.data.flashrag import numbered_rows
from deepsearch_rl.evaluate.explain.causes import FAILED
from deepsearch_rl.evaluate.explain.runs import (
    NAMELESS,
    Answer,
    Row,
    Run,
    Search,
    gather,
    text_passage,
    trajectory_rows,
)
from deepsearch_rl.evaluate.predictions import Prediction, first_line


class PassageRow(ForeignRecord):
    """A passage that another system retrieved."""

    id: OptionalRowName = None
    contents: Text = ""
    title: Text = ""
    text: Text = ""


def _passage(value: object) -> object:
    """Return a passage that is written as its text alone as a row."""
    return {"contents": value} if isinstance(value, str) else value


def _list_or_nothing(value: object) -> object:
    return None if is_missing(value) else value


Passages = tuple[Annotated[PassageRow, BeforeValidator(_passage)], ...]


class RetrievalRow(ForeignRecord):
    """One search of another system."""

    query: Text = ""
    chunk_ids: tuple[RowName, ...] = ()
    passages: Passages = ()


class OutputRow(ForeignRecord):
    """FlashRAG's ``output``."""

    pred: OptionalText = None
    retrieval_result: Annotated[Passages | None, BeforeValidator(_list_or_nothing)] = None


class ExplainedRow(Prediction):
    """A prediction with what was retrieved for it."""

    metadata: QuestionMetadata | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    retrievals: Annotated[tuple[RetrievalRow, ...] | None, BeforeValidator(_list_or_nothing)] = None
    output: OutputRow | None = None
    stop_reason: OptionalText = None

    @property
    def stop(self) -> str:
        """Why the rollout ended, as far as the row says."""
        if self.stop_reason is not None:
            return self.stop_reason
        if self.error is not None:
            return StopReason.MODEL_ERROR
        if self.failed:
            return FAILED
        return StopReason.ANSWERED if self.answer else StopReason.NO_ANSWER_TAG

    @property
    def answer(self) -> str:
        """The answer, also where FlashRAG writes it."""
        if self.pred or self.output is None:
            return self.pred
        return self.output.pred or ""


def read_run(path: Path) -> Run:
    """Read a file of trajectories or predictions.

    Raise ArtifactError where it is missing or empty, RecordError where a row does not fit, or
    repeats another's question and sample.
    """
    if not path.is_file():
        raise ArtifactError(
            f"{path} does not exist; give a JSON Lines file of trajectories or predictions, or the "
            "folder of an evaluated model, data/<profile>/evaluate/<model>."
        )

    return gather(path, trajectory_rows(path) if _is_of_trajectories(path) else _predictions(path))


def _is_of_trajectories(path: Path) -> bool:
    line = first_line(path)
    return b'"schema_version"' in line and b'"messages"' in line


def _predictions(path: Path) -> Iterator[Row]:
    for number, row in numbered_rows(path, ExplainedRow):
        pred = row.answer
        stop = row.stop
        # As `deepsearch score` has it; how the rollout ended only explains the score
        is_failure = row.failed or row.error is not None
        scores = ZERO if is_failure else score(pred, row.golden_answers)
        metadata = row.metadata or QuestionMetadata()
        if row.question_type:
            metadata = metadata.model_copy(update={"question_type": row.question_type})

        answer = Answer(
            question_id=row.id,
            sample=row.sample,
            pred=pred,
            last_text=pred,
            stop=stop,
            error=row.error or "",
            scores=scores,
            searches=_foreign_searches(row),
        )
        question = Question(
            id=row.id,
            question=row.question or row.id,
            golden_answers=row.golden_answers,
            metadata=metadata,
        )
        yield number, answer, question, ("", None, None)


def _foreign_searches(row: ExplainedRow) -> tuple[Search, ...] | None:
    if row.retrievals is not None:
        searches: list[Search] = []
        for retrieval in row.retrievals:
            # A row's own texts count for more than ids, which need not be those of the corpus
            chunk_ids = () if retrieval.passages else retrieval.chunk_ids
            searches.append(Search(retrieval.query, chunk_ids, _texts(retrieval.passages)))

        return tuple(searches)

    if row.output is not None and row.output.retrieval_result is not None:
        passages = _texts(row.output.retrieval_result)
        return (Search(row.question, (), passages),) if passages else ()
    return None


def _texts(passages: Sequence[PassageRow]) -> tuple[Chunk, ...]:
    chunks: list[Chunk] = []
    for passage in passages:
        contents = passage.contents or f"{passage.title}\n{passage.text}"
        chunks.append(text_passage(contents, passage.id or NAMELESS))
    return tuple(chunks)
