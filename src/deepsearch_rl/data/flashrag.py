r"""Corpora and question sets in FlashRAG's layout, and in those of others who have nearly the same.

    corpus     {"id", "contents": "title\ntext", "title"?, "metadata"?}   or   {"id", "title", "text", "metadata"?}
    questions  {"id", "question", "golden_answers": [...], "metadata"?}

Keys beside these count as metadata, each under its own name; of what the format needs, nothing is
taken from ``metadata``. https://github.com/RUC-NLPIR/FlashRAG#rocket-quick-start

BEIR writes ``_id``; the official question sets write ``answer`` and ``answer_aliases``; Search-R1's
and veRL's training rows hold the question in their prompt. :mod:`.layouts` says which files are
read. Text follows the one rule of :mod:`deepsearch_rl.core.records`.
"""

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from deepsearch_rl.core.errors import RecordError
from deepsearch_rl.core.files import parse_record
from deepsearch_rl.core.records import (
    Document,
    ForeignRecord,
    Question,
    QuestionMetadata,
    RequiredText,
    RowName,
    Text,
    is_missing,
)
from deepsearch_rl.data.layouts import JSON_COLUMNS, read_numbered
from deepsearch_rl.data.remedies import LIST_AS_TEXT, NO_ANSWER, NO_TEXT, with_remedy
from deepsearch_rl.data.titles import title_key

ModelT = TypeVar("ModelT", bound=BaseModel)
DetailsT = TypeVar("DetailsT", bound=QuestionMetadata)
Values = dict[str, Any]

END_OF_INSTRUCTION = "</answer>. Question: "
# How Python and others write a list of texts that is no JSON
_LIST_AS_TEXT = re.compile(r"""\s*\[\s*['"]""")


class Row(ForeignRecord):
    """One line. Keys that the format does not need are moved below ``metadata``."""

    id: RowName

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        renamed = cls._renamed({name: _unpacked(name, value) for name, value in values.items()})
        return _gathered(renamed, cls.model_fields)

    @classmethod
    def _renamed(cls, values: Values) -> Values:
        """Return the values with the format's own names for what the format needs."""
        if is_missing(values.get("id")) and "_id" in values:
            return _without(values, ("id", "_id")) | {"id": values["_id"]}

        return values


def _without(values: Values, names: Collection[str]) -> Values:
    """Return the values apart from those of some names."""
    return {name: value for name, value in values.items() if name not in names}


def _require_words(text: str) -> str:
    if text.isspace():
        raise PydanticCustomError("blank_text", "the text is blank")
    return text


WrittenText = Annotated[RequiredText, AfterValidator(_require_words)]


def _unpacked(name: str, value: object) -> object:
    """Return what a key holds; a list or an object may stand there as JSON text, as in tables and their hub copies."""
    if name in JSON_COLUMNS and isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        # What is no JSON stays as it is: the field's own check says what should stand there.
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)

    return value


def _gathered(values: Values, own: Mapping[str, object]) -> Values:
    """Return the format's ``own`` values as they are and all others below ``metadata``, those without a value left out.

    A key that stands beside ``metadata`` and in it with two values is an error: one of them would
    be lost.
    """
    metadata = values.get("metadata")
    details: Values = {}
    if isinstance(metadata, dict):
        details = {name: value for name, value in metadata.items() if not _is_null(value)}
    gathered: Values = {"metadata": details}

    for name, value in values.items():
        # A metadata that is no object is a detail itself: the model says what should stand there.
        if name == "metadata" and isinstance(metadata, dict):
            continue
        if name in own and name != "metadata":
            gathered[name] = value
        elif not _is_null(value) and details.setdefault(name, value) != value:
            raise PydanticCustomError(
                "key_twice",
                "{name} stands beside metadata and in it with different values; remove one of them",
                {"name": repr(name)},
            )

    return gathered


def _is_null(value: object) -> bool:
    return value != "" and is_missing(value)


class DocumentRow(Row):
    """A line of a corpus file, in either form; a document may be a title alone."""

    contents: Text = ""
    title: Text = ""
    text: Text = ""
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_contents(self) -> Self:
        if not {"contents", "text"} & self.model_fields_set:
            raise PydanticCustomError("no_text", NO_TEXT)
        if not f"{self.contents}{self.title}{self.text}".strip():
            raise PydanticCustomError(
                "blank", "there is neither a title nor a text; remove the document"
            )

        return self

    def document(self) -> Document:
        """Return the row as a record; beside ``contents``, title and text are metadata as well."""
        title = " ".join(self.title.splitlines())
        if not self.contents.strip():
            return Document(id=self.id, contents=f"{title}\n{self.text}", metadata=self.metadata)
        beside: dict[str, JsonValue] = {"title": self.title, "text": self.text}
        metadata = {name: value for name, value in beside.items() if value} | self.metadata
        return Document(id=self.id, contents=_under_title(title, self.contents), metadata=metadata)


def _under_title(title: str, contents: str) -> str:
    """Return contents with the title as the first line, where it is not there already."""
    first_line = contents.partition("\n")[0]
    if not title or title_key(first_line) == title_key(title):
        return contents
    return f"{title}\n{contents}"


def _listed(value: Any) -> list[Any]:
    """Return a list, also one of texts that is written as JSON text; a missing value as none; else the only one."""
    if isinstance(value, list):
        return value
    if isinstance(value, str) and value.lstrip().startswith("["):
        # Not by its key, as others: an answer may be a text in brackets
        with contextlib.suppress(ValueError, RecursionError):
            values = json.loads(value)
            if _all_text(values):
                return values

    return [] if is_missing(value) else [value]


def _all_text(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _answer_texts(answers: object) -> list[object]:
    """Return golden answers as a list: one alone is a list, a whole number is text, blank ones are left out.

    What else is no text stays as it is, for the field's own check.
    """
    texts: list[object] = []
    for answer in _listed(answers):
        if isinstance(answer, int) and not isinstance(answer, bool):
            texts.append(str(answer))
        elif is_missing(answer) or (isinstance(answer, str) and not answer.strip()):
            continue
        elif isinstance(answer, str) and _LIST_AS_TEXT.match(answer):
            raise PydanticCustomError("list_as_text", LIST_AS_TEXT)
        else:
            texts.append(answer)

    if not texts:
        raise PydanticCustomError("no_answer", NO_ANSWER)
    return texts


class QuestionRow(Row, Generic[DetailsT]):
    """A line of a question file; what a set says about its questions is read from ``metadata`` or from beside it."""

    question: WrittenText
    golden_answers: Annotated[tuple[str, ...], BeforeValidator(_answer_texts)]
    metadata: DetailsT

    @classmethod
    def _renamed(cls, values: Values) -> Values:
        values = super()._renamed(values)
        if {"question_id", "stop_reason"} <= values.keys():
            # With an id for each sample: one question would be several
            raise PydanticCustomError(
                "trajectory", "this is a trajectory; name the file of its question"
            )
        if is_missing(values.get("question")) and "prompt" in values:
            values = _from_training_row(values)
        if is_missing(values.get("golden_answers")) and not is_missing(values.get("answer")):
            answers = [*_listed(values["answer"]), *_listed(values.get("answer_aliases"))]

            # What is no text may not be hashable: the field's own check sees to it
            if _all_text(answers):
                answers = list(dict.fromkeys(answers))
            return _without(values, ("answer", "answer_aliases")) | {"golden_answers": answers}

        return values

    def record(self, details: QuestionMetadata | None = None) -> Question:
        """Return the row as a record, with other ``details`` than its own if they are given."""
        metadata = self.metadata if details is None else details
        return Question(
            id=self.id,
            question=self.question,
            golden_answers=self.golden_answers,
            metadata=metadata,
        )


def _from_training_row(values: Values) -> Values:
    """Return a training row of Search-R1 or veRL as a question; what has another form stays as it is.

    The question is ``extra_info.question`` or stands behind the instruction in the last message,
    the id is made of ``data_source``, split and index, the golden answers are the target of the
    reward.
    """
    extra_info = values.get("extra_info")
    extra: Values = extra_info if isinstance(extra_info, dict) else {}
    messages = values["prompt"]
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, dict) else None
    if not isinstance(content, str):
        return values

    # What the question was made of is no detail of it
    row = _without(values, ("prompt", "reward_model", "extra_info"))
    row["question"] = extra.get("question") or _question_in(content)

    # An index alone would be the id of a row in every split.
    if is_missing(row.get("id")) and not is_missing(extra.get("index")):
        parts = (values.get("data_source"), extra.get("split"), extra["index"])
        row["id"] = "_".join(str(part) for part in parts if not is_missing(part))

    target = _target(values.get("reward_model"))
    if is_missing(row.get("golden_answers")) and not is_missing(target):
        row["golden_answers"] = target
    return row


def _target(reward: object) -> Any:
    """Return what a reward model compares answers with: Search-R1 writes it one level deeper than veRL."""
    if not isinstance(reward, dict):
        return None
    truth = _unpacked("ground_truth", reward.get("ground_truth"))
    return truth.get("target") if isinstance(truth, dict) else truth


def _question_in(prompt: str) -> str:
    """Return the question behind the instruction of a prompt.

    Search-R1's instruction ends with an example of an answer: what follows it is the question,
    whatever it says.
    """
    _, marker, question = prompt.partition(END_OF_INSTRUCTION)
    if not marker:
        question = prompt.rpartition("Question: ")[2]
    return question.strip()


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a corpus file; chunking and indexing check that their ids differ."""
    return (document for _, document in numbered_documents(path))


def numbered_documents(path: Path) -> Iterator[tuple[int, Document]]:
    """Yield the documents of a file with the numbers of their lines."""
    for number, row in numbered_rows(path, DocumentRow):
        yield number, row.document()


def read_questions(path: Path) -> Iterator[Question]:
    """Yield the questions of a file with all their keys; this project's own files are read as well."""
    return (question for _, question in numbered_questions(path))


def numbered_questions(path: Path) -> Iterator[tuple[int, Question]]:
    """Yield the questions of a file with the numbers of their lines."""
    for number, row in numbered_rows(path, QuestionRow[QuestionMetadata]):
        yield number, row.record()


def read_rows(path: Path, model: type[ModelT]) -> Iterator[ModelT]:
    """Yield the rows of a file one by one; raise as :func:`numbered_rows`."""
    return (row for _, row in numbered_rows(path, model))


def numbered_rows(path: Path, model: type[ModelT]) -> Iterator[tuple[int, ModelT]]:
    """Yield the numbers and rows of a file one by one.

    Raises:
        ArtifactError: the file is missing, damaged, or in a layout that is not read.
        RecordError: a row does not fit ``model``.
    """
    for number, line in read_numbered(path):
        try:
            record = parse_record(model, line, path, number)
        except RecordError as error:
            raise with_remedy(error, line) from error

        yield number, record
