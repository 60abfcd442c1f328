r"""Corpora and question sets in FlashRAG's layout and its near relatives.

    corpus     {"id", "contents": "title\ntext", "title"?, "metadata"?}   or   {"id", "title", "text", "metadata"?}
    questions  {"id", "question", "golden_answers": [...], "metadata"?}

All other keys become metadata. https://github.com/RUC-NLPIR/FlashRAG#rocket-quick-start

BEIR writes ``_id``; official question sets write ``answer`` and ``answer_aliases``; training rows
of Search-R1 and veRL have the question in their prompt. :mod:`.row_files` reads the files.
"""

import contextlib
import html
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
from deepsearch_rl.data.row_files import read_numbered
from deepsearch_rl.data.titles import title_key

ModelT = TypeVar("ModelT", bound=BaseModel)
DetailsT = TypeVar("DetailsT", bound=QuestionMetadata)
Values = dict[str, Any]

END_OF_INSTRUCTION = "</answer>. Question: "
# Of the keys that an error quotes
_QUOTED_CHARS = 120
# A list, tuple, set, array or dictionary as Python and NumPy print it, which is not JSON
_PRINTED = re.compile(
    r"""
    \s*(?:
        [\[({]*[\[{]\s*[bu]?['"]
        |\(\s*(['"]).*?\1,\s*(?:['"]|\)\s*$)
        |\(\s*[\d.]+,\s*\)\s*$
        |\{.*\}\s*$
        |\[\s*(?:None|nan|[\d.]+\s+[\d.]+[\d.\s]*)\s*[],]
        |[\[({]*[\w.]+\(\s*[\[{'"]
        |[\[{]\s*[\w.]+\(\s*\d
        |\w*set\(\)
    )
    """,
    re.DOTALL | re.VERBOSE,
)
# TriviaQA's answer where there is none
_HIDDEN = "<unk>"
# What names the gold evidence of a question
_GOLD = ("evidence_list", "supporting_doc_ids", "supporting_titles")
# Lists and objects that tables, and copies of data sets on hubs, may hold as JSON text
_JSON_COLUMNS = frozenset(
    {
        *("golden_answers", "answer_aliases", "metadata", "evidence_list", "evidences"),
        *("supporting_titles", "supporting_doc_ids", "supporting_facts", "context"),
        *("paragraphs", "question_decomposition"),
        *("prompt", "reward_model", "ground_truth", "extra_info"),
    }
)


class Row(ForeignRecord):
    """One row, with the keys that the format does not need moved below ``metadata``."""

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
        if is_missing(values.get("id")) and "_id" in values:
            return _without(values, ("id", "_id")) | {"id": values["_id"]}

        return values


def _without(values: Values, names: Collection[str]) -> Values:
    return {name: value for name, value in values.items() if name not in names}


def _require_words(text: str) -> str:
    if text.isspace():
        raise PydanticCustomError("blank_text", "the text is blank")
    return text


WrittenText = Annotated[RequiredText, AfterValidator(_require_words)]


def _unpacked(name: str, value: object) -> object:
    if name in _JSON_COLUMNS and isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        # Text that is not JSON stays, and the field's own check reports it
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)

    return value


def _gathered(values: Values, own: Mapping[str, object]) -> Values:
    """Return the format's ``own`` values unchanged and all others below ``metadata``, without nulls."""
    metadata = values.get("metadata")
    details: Values = {}
    if isinstance(metadata, dict):
        details = {name: value for name, value in metadata.items() if not _is_null(value)}
    gathered: Values = {"metadata": details}

    for name, value in values.items():
        # Metadata that is not an object is kept under its own name
        if name == "metadata" and isinstance(metadata, dict):
            continue
        if name in own and name != "metadata":
            gathered[name] = value
        elif not _is_null(value) and details.setdefault(name, value) != value:
            raise PydanticCustomError(
                "key_twice",
                "{name} has one value in metadata and another beside it; remove one of them",
                {"name": repr(name)},
            )

    return gathered


def _is_null(value: object) -> bool:
    return value != "" and is_missing(value)


class DocumentRow(Row):
    """A row of a corpus, in either form; a title alone is a document."""

    contents: Text = ""
    title: Text = ""
    text: Text = ""
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_contents(self) -> Self:
        if not {"contents", "text"} & self.model_fields_set:
            raise PydanticCustomError("no_text", "neither 'contents' nor 'text' is there")
        if not f"{self.contents}{self.title}{self.text}".strip():
            raise PydanticCustomError(
                "blank", "there is neither a title nor a text; remove the document"
            )

        return self

    def document(self) -> Document:
        """Return the row as a record; ``title`` and ``text`` beside ``contents`` become metadata."""
        title = " ".join(self.title.splitlines())
        if not self.contents.strip():
            return Document(id=self.id, contents=f"{title}\n{self.text}", metadata=self.metadata)
        beside: dict[str, JsonValue] = {"title": self.title, "text": self.text}
        metadata = {name: value for name, value in beside.items() if value} | self.metadata
        return Document(id=self.id, contents=_under_title(title, self.contents), metadata=metadata)


def _under_title(title: str, contents: str) -> str:
    first_line = contents.partition("\n")[0]
    if not title or title_key(first_line) == title_key(title):
        return contents
    return f"{title}\n{contents}"


def _listed(value: Any) -> list[Any]:
    """Return answers as a list: JSON text is parsed, a single value becomes its only entry.

    Search-R1's ``{"target": [...]}`` and TriviaQA's ``{"value", "aliases"}`` are lists, too.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        # An answer may also be a text in brackets
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    if isinstance(value, dict) and "target" in value:
        return _listed(value["target"])
    if isinstance(value, dict) and "value" in value:
        # The test split hides its answers
        answer = [] if value["value"] == _HIDDEN else [value["value"]]
        return [*answer, *_listed(value.get("aliases"))]
    if isinstance(value, list):
        return value
    return [] if is_missing(value) else [value]


def _all_text(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _answer_texts(answers: object) -> list[object]:
    """Return golden answers as a list without blank ones, whole numbers as text."""
    texts: list[object] = []
    for answer in _listed(answers):
        if isinstance(answer, int) and not isinstance(answer, bool):
            texts.append(str(answer))
        elif is_missing(answer) or (isinstance(answer, str) and not answer.strip()):
            continue
        elif isinstance(answer, str) and _PRINTED.match(answer):
            raise PydanticCustomError(
                "list_as_text",
                'this list is not JSON; write ["a", "b"], as json.dumps does (of an array: its .tolist())',
            )
        elif isinstance(answer, list | dict):
            raise PydanticCustomError(
                "list_in_list",
                'an answer is itself a list or an object; write all answers as one list of texts, ["a", "b"]',
            )
        else:
            texts.append(answer)

    if not texts:
        raise PydanticCustomError(
            "no_answer", "no answer contains a word; add one, or remove the question"
        )
    return texts


class QuestionRow(Row, Generic[DetailsT]):
    """A row of a question set; details of the question are read from ``metadata`` or from beside it."""

    question: WrittenText
    golden_answers: Annotated[tuple[str, ...], BeforeValidator(_answer_texts)]
    metadata: DetailsT

    @classmethod
    def _renamed(cls, values: Values) -> Values:
        values = super()._renamed(values)
        if {"question_id", "stop_reason"} <= values.keys():
            # Its id is that of a sample, so one question would become several
            raise PydanticCustomError(
                "trajectory", "this is a trajectory; name the file of its question"
            )
        if is_missing(values.get("question")) and "prompt" in values:
            values = _from_training_row(values)
        if is_missing(values.get("golden_answers")):
            values = _with_golden_answers(values)
        return _with_gold_titles(values)

    def record(self, details: QuestionMetadata | None = None) -> Question:
        """Return the row as a record, with ``details`` in place of its own metadata if given."""
        metadata = self.metadata if details is None else details
        return Question(
            id=self.id,
            question=self.question,
            golden_answers=self.golden_answers,
            metadata=metadata,
        )


def _with_golden_answers(values: Values) -> Values:
    """Return a question with what `answer`, its aliases or a reward's target name as golden answers."""
    if is_missing(values.get("answer")):
        return _with_target(values) if "reward_model" in values else values

    answers = [*_listed(values["answer"]), *_listed(values.get("answer_aliases"))]
    # Other values may not be hashable; the field's own check reports them
    if _all_text(answers):
        answers = list(dict.fromkeys(answers))
    return _without(values, ("answer", "answer_aliases")) | {"golden_answers": answers}


def _with_gold_titles(values: Values) -> Values:
    """Return a question that has HotpotQA's supporting facts, and no other gold, with their titles."""
    metadata = values.get("metadata")
    details = {**metadata, **values} if isinstance(metadata, dict) else values
    if any(not is_missing(details.get(name)) for name in _GOLD):
        return values

    facts = _unpacked("supporting_facts", details.get("supporting_facts"))
    # Official files pair titles with sentences, FlashRAG lists them beside each other
    titles = facts.get("title") if isinstance(facts, dict) else _firsts(facts)
    if not isinstance(titles, list) or not titles or not _all_text(titles):
        return values
    # The official titles are escaped
    return values | {"supporting_titles": [*dict.fromkeys(map(html.unescape, titles))]}


def _firsts(pairs: object) -> list[Any]:
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and pair for pair in pairs):
        return []
    return [pair[0] for pair in pairs]


def _from_training_row(values: Values) -> Values:
    """Return a training row of Search-R1 or veRL as a question.

    The question is ``extra_info.question``, or follows the instruction in the last message; the id
    is made of ``data_source``, split and index; the golden answers are the reward's target.
    """
    extra_info = values.get("extra_info")
    extra: Values = extra_info if isinstance(extra_info, dict) else {}
    messages = values["prompt"]
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, dict) else None
    if not isinstance(content, str):
        return values

    row = _with_target(_without(values, ("prompt", "extra_info")))
    row["question"] = extra.get("question") or _question_in(content)

    # Every split has a row of this index
    if is_missing(row.get("id")) and not is_missing(extra.get("index")):
        parts = (values.get("data_source"), extra.get("split"), extra["index"])
        row["id"] = "_".join(str(part) for part in parts if not is_missing(part))
    return row


def _with_target(values: Values) -> Values:
    """Return a row with its reward's target as golden answers, where it has no others."""
    row = _without(values, ("reward_model",))
    reward = values.get("reward_model")
    truth = reward.get("ground_truth") if isinstance(reward, dict) else None
    if is_missing(row.get("golden_answers")) and not is_missing(truth):
        row["golden_answers"] = truth
    return row


def _question_in(prompt: str) -> str:
    # Search-R1's instruction ends with an example of an answer
    _, marker, question = prompt.partition(END_OF_INSTRUCTION)
    if not marker:
        question = prompt.rpartition("Question: ")[2]
    return question.strip()


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a corpus; chunking and indexing check that their ids are distinct."""
    return (document for _, document in numbered_documents(path))


def numbered_documents(path: Path) -> Iterator[tuple[int, Document]]:
    """Yield line numbers and documents."""
    for number, row in numbered_rows(path, DocumentRow):
        yield number, row.document()


def read_questions(path: Path) -> Iterator[Question]:
    """Yield the questions of a file, also of one that this project wrote."""
    return (question for _, question in numbered_questions(path))


def numbered_questions(path: Path) -> Iterator[tuple[int, Question]]:
    """Yield line numbers and questions."""
    for number, row in numbered_rows(path, QuestionRow[QuestionMetadata]):
        yield number, row.record()


def read_rows(path: Path, model: type[ModelT]) -> Iterator[ModelT]:
    """Yield the rows of a file one by one; raise as :func:`numbered_rows`."""
    return (row for _, row in numbered_rows(path, model))


def numbered_rows(path: Path, model: type[ModelT]) -> Iterator[tuple[int, ModelT]]:
    """Yield line numbers and rows, one by one.

    Raises:
        ArtifactError: the file is missing, damaged, or in a format that is not readable.
        RecordError: a row does not fit ``model``.
    """
    for number, line in read_numbered(path):
        yield number, parse_row(model, line, path, number)


def parse_row(model: type[ModelT], line: bytes, path: Path, number: int) -> ModelT:
    """Return one row; raise RecordError with what to change if it does not fit."""
    try:
        return parse_record(model, line, path, number)
    except RecordError as error:
        raise _with_advice(error, line) from error


def _with_advice(error: RecordError, line: bytes) -> RecordError:
    """Return the error with the keys that the row has, or with how JSON Lines are written."""
    if error.problem.startswith("Invalid JSON"):
        advice = "every line must hold one JSON object in UTF-8"
    elif error.problem == "Field required" or error.problem.startswith("neither 'contents'"):
        keys = ", ".join(map(str, json.loads(line)))
        advice = f"the row has {keys[:_QUOTED_CHARS]}; rename the key that holds it"
    elif _is_list_of_texts(json.loads(line), error.field):
        advice = (
            f"it is a list of texts; join them, e.g. with `jq -c '.{error.field} |= join(\" \")'`"
        )
    else:
        return error
    return RecordError(error.path, error.line, error.field, f"{error.problem}; {advice}")


def _is_list_of_texts(row: object, field: str) -> bool:
    values = row.get(field) if isinstance(row, dict) else None
    return isinstance(values, list) and _all_text(values)
