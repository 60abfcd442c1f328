"""Runs to explain, of any system: our trajectories, or predictions with what they retrieved.

A row of predictions is that of `deepsearch score`, with what was retrieved beside the answer:

    retrievals   [{"query", "chunk_ids": [id]} or {"query", "passages": [text or {"id", "contents"}]}]
    output       FlashRAG's {"pred", "retrieval_result": [{"id", "contents"}]}

``metadata`` may hold the gold evidence, as in a question file. ``stop_reason`` is one of ours where
it is known. A row without ``retrievals`` and ``retrieval_result`` does not say what was searched;
one with an empty list says that nothing was.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from deepsearch_rl.core.answers import ZERO, AnswerScores, score
from deepsearch_rl.core.errors import ArtifactError, RecordError
from deepsearch_rl.core.files import numbered_records
from deepsearch_rl.core.records import (
    Chunk,
    ChunkMetadata,
    ForeignRecord,
    OptionalRowName,
    OptionalText,
    Question,
    QuestionMetadata,
    RowName,
    StopReason,
    Text,
    Trajectory,
    is_missing,
)
from deepsearch_rl.data.flashrag import numbered_rows
from deepsearch_rl.evaluate.explain.causes import FAILED
from deepsearch_rl.evaluate.predictions import Prediction, first_line
from deepsearch_rl.evaluate.trajectory_statistics import has_turns

# What begins a passage in a tool's result under the protocol function_calling
_NUMBERED = re.compile(r"(?:^|\n\n)\[\d+\] ")
# The same under search_tags
_TAGGED = re.compile(r"(?:^|\n)(?:<information>)?Doc \d+\(Title: ")
# The id of a passage of which a run shows the text alone
NAMELESS = "shown"


@dataclass(frozen=True, slots=True)
class Search:
    """One search: its query, the ids of the passages that were shown, and their texts as far as the run has them."""

    query: str
    chunk_ids: tuple[str, ...]
    passages: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to one question; ``searches`` is None where the run does not say what was searched."""

    question_id: str
    sample: int
    pred: str
    last_text: str
    stop: str
    error: str
    scores: AnswerScores
    searches: tuple[Search, ...] | None


@dataclass(frozen=True, slots=True)
class Run:
    """The answers of one file, and what it says about their questions and how they were made."""

    path: Path
    model: str
    answers: tuple[Answer, ...]
    questions: Mapping[str, Question]
    prompt: str | None
    temperature: float | None

    @property
    def top_k(self) -> int:
        """Passages of the largest search; 0 where no search is known."""
        sizes: list[int] = []
        for answer in self.answers:
            for search in answer.searches or ():
                sizes.append(max(len(search.chunk_ids), len(search.passages)))

        return max(sizes, default=0)

    @property
    def samples(self) -> int:
        """Answers per question, the most of any."""
        return 1 + max(answer.sample for answer in self.answers)

    def shown_ids(self) -> set[str]:
        """Return the ids of all passages whose texts the run does not hold itself."""
        ids: set[str] = set()
        for answer in self.answers:
            for search in answer.searches or ():
                ids.update(search.chunk_ids)
        return ids

    def texts_alone(self) -> dict[str, str]:
        """Return the passages that searches show without naming those of a corpus, by the run's own ids for them."""
        texts: dict[str, str] = {}
        for answer in self.answers:
            for search in answer.searches or ():
                for passage in search.passages if not search.chunk_ids else ():
                    texts[passage.id] = passage.contents
        return texts


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

    return _gather(
        path, _trajectory_rows(path) if _is_of_trajectories(path) else _predictions(path)
    )


# A row's line, its answer, its question, and the model, prompt and temperature that made it
Row = tuple[int, Answer, Question, tuple[str, str | None, float | None]]


def _gather(path: Path, rows: Iterable[Row]) -> Run:
    """Return the run that a file's rows make; errors as :func:`read_run`."""
    answers: dict[tuple[str, int], Answer] = {}
    questions: dict[str, Question] = {}
    settings: set[tuple[str, str | None, float | None]] = set()

    for number, answer, question, setting in rows:
        key = answer.question_id, answer.sample
        if key in answers:
            problem = f"{answer.question_id!r} is answered twice; several answers need different `sample`s"
            raise RecordError(path, number, "id", problem)

        first = questions.setdefault(question.id, question)
        if first.golden_answers != question.golden_answers:
            problem = f"{question.id!r} has other golden answers further up"
            raise RecordError(path, number, "golden_answers", problem)

        answers[key] = answer
        settings.add(setting)

    if not answers:
        raise ArtifactError(f"{path} holds no answers.")

    ordered = tuple(answers[key] for key in sorted(answers))
    # A file of several runs has no model, prompt and temperature of its own
    model, prompt, temperature = settings.pop() if len(settings) == 1 else ("", None, None)
    return Run(path, model or path.stem, ordered, questions, prompt, temperature)


def _trajectory_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file of trajectories, as :func:`_gather` takes them."""
    for number, rollout in numbered_records(path, Trajectory):
        if not rollout.golden_answers:
            problem = "there is none, so the answer cannot be scored"
            raise RecordError(path, number, "golden_answers", problem)

        answer = Answer(
            question_id=rollout.question_id,
            sample=rollout.sample,
            pred=rollout.answer,
            last_text=_last_text(rollout),
            stop=rollout.stop_reason,
            error=rollout.error or "",
            scores=rollout.score(lambda each: score(each.answer, each.golden_answers), ZERO),
            searches=_searches(rollout),
        )
        question = Question(
            id=rollout.question_id,
            question=rollout.question,
            golden_answers=rollout.golden_answers,
            metadata=QuestionMetadata(question_type=rollout.question_type),
        )
        yield number, answer, question, (rollout.model, rollout.prompt, rollout.temperature)


def _last_text(rollout: Trajectory) -> str:
    """Return the text of the last turn of the model."""
    turns = rollout.turns
    return turns[-1].content if turns else ""


def _searches(rollout: Trajectory) -> tuple[Search, ...] | None:
    """Return the executed searches with the passages as the conversation shows them.

    None for results of other systems, which hold the last text alone.
    """
    if not has_turns(rollout):
        return None

    # The passages of every search that found some, in their order
    listed: list[tuple[Chunk, ...]] = []
    for message in rollout.messages:
        passages = _split(message.content) if message.role == "tool" else ()
        if passages:
            listed.append(passages)

    searches: list[Search] = []
    successful = [retrieval for retrieval in rollout.retrievals if retrieval.chunk_ids]
    if len(listed) == len(successful):
        remaining = iter(listed)
        for retrieval in rollout.retrievals:
            passages = next(remaining) if retrieval.chunk_ids else ()
            searches.append(Search(retrieval.query, retrieval.chunk_ids, passages))

        return tuple(searches)

    # The texts cannot be told apart by search, so that the first one that found some gets them all
    unassigned = tuple(itertools.chain.from_iterable(listed))
    for retrieval in rollout.retrievals:
        takes_all = bool(retrieval.chunk_ids) or not successful
        passages = unassigned if takes_all else ()
        searches.append(Search(retrieval.query, retrieval.chunk_ids, passages))
        if takes_all:
            unassigned = ()

    return tuple(searches)


def _split(text: str) -> tuple[Chunk, ...]:
    """Return the passages of a tool's result, in the form of either protocol; their documents are not known."""
    numbered = _NUMBERED.split(text)[1:]
    if numbered:
        return tuple(_text_passage(part) for part in numbered)

    tagged = _TAGGED.split(text)[1:]
    return tuple(_text_passage(_under_title(part)) for part in tagged)


def _under_title(part: str) -> str:
    """Return ``Title) text`` as contents; the title ends at the first bracket that closes no other."""
    depth = 0
    for place, letter in enumerate(part):
        if letter == "(":
            depth += 1
        elif letter == ")":
            if depth == 0:
                return f"{part[:place]}\n{part[place + 1 :].strip()}"
            depth -= 1

    return part


def _text_passage(contents: str, name: str = NAMELESS) -> Chunk:
    """Return a passage of which a run shows the text alone, with its title on the first line."""
    text = contents if contents.strip() else "-"
    return Chunk(
        id=name,
        contents=text,
        metadata=ChunkMetadata(doc_id=name, doc_chunks=1, doc_chunk_id=0),
    )


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
        chunks.append(_text_passage(contents, passage.id or NAMELESS))
    return tuple(chunks)


def counted_stops(answers: Sequence[Answer]) -> dict[str, int]:
    """Return how many answers ended in which way, other than with an answer."""
    counts = Counter[str]()
    for answer in answers:
        if answer.stop != StopReason.ANSWERED:
            counts[str(answer.stop)] += 1

    return dict(sorted(counts.items()))
