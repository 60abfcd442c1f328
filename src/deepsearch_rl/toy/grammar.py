"""The two languages of the generated worlds, and reading facts back.

A world is a set of facts (relation, subject, object). ``IN_DOMAIN`` is the language of the world
that models are fine-tuned on. ``OUT_OF_DOMAIN`` shares no relation and no name with it; models read
it only in pretraining. Both have the same sentence templates.

A model of less than a million parameters can learn the wording: every relation has one object per
subject; question, query and article call it by one noun, and some articles by a second word; no
template begins with a name, so that each name word always follows a space and is one token.
"""

import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, model_validator

from deepsearch_rl.core.records import Record

STATEMENTS = (
    "For {subject} the {noun} is {object}.",
    "As is known, {subject} has as {noun} {object}.",
    "To {subject} belongs the {noun} {object}.",
    "Of {subject} we read: its {noun} is {object}.",
)

# A name in running text: capitalised words
_NAME = r"([A-Z]\w*(?: [A-Z]\w*)*)"


class Kind(Record):
    """A kind of entity; its names are one word of each list, in order, separated by spaces."""

    name: str
    word_lists: tuple[Annotated[tuple[str, ...], BeforeValidator(str.split)], ...] = Field(
        alias="names"
    )


class Relation(Record):
    """A function from entities of one kind to entities of another."""

    noun: str = Field(
        description="what the object is called in questions, queries and most statements"
    )
    second: str = Field(description="what it is called in the other statements")
    subject_kind: str
    object_kind: str = Field(alias="to")


class QuestionStyle(Record):
    """How a set of questions words a chain of relations."""

    step: str = Field(
        description="noun phrase for the {noun} of {path}, a name or another such phrase"
    )
    questions: tuple[str, ...] = Field(description="templates with {path}")


class Grammar(Record):
    """A language: its kinds and relations by name, in a fixed order."""

    kinds: dict[str, Kind]
    relations: dict[str, Relation]
    inferences: dict[str, tuple[str, str]] = Field(
        default={}, description="noun -> the two relations that it means"
    )
    fillers: tuple[str, ...] = Field(description="sentences without a fact that pad articles")

    @model_validator(mode="before")
    @classmethod
    def _name_items(cls, values: dict[str, Any]) -> dict[str, Any]:
        kinds = {}
        relations = {}

        for kind, fields in values["kinds"].items():
            kinds[kind] = {"name": kind, "names": fields["names"]}
            for noun, relation in fields["relations"].items() if "relations" in fields else ():
                relations[noun] = {"noun": noun, "subject_kind": kind, **relation}

        return {**values, "kinds": kinds, "relations": relations}

    def relations_of(self, kind: str) -> list[Relation]:
        """Return the relations whose subjects are of ``kind``."""
        return [relation for relation in self.relations.values() if relation.subject_kind == kind]

    def nouns(self, chain: Sequence[str], infer: bool) -> list[str]:
        """Return what a chain of relations is called, hop by hop, or by one noun if ``infer`` and there is one."""
        if infer:
            for noun, pair in self.inferences.items():
                if pair == tuple(chain):
                    return [noun]

        return list(chain)


def _read_toml(name: str) -> dict[str, Any]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return tomllib.loads(text)


IN_DOMAIN = Grammar.model_validate(_read_toml("in_domain.toml"))
OUT_OF_DOMAIN = Grammar.model_validate(_read_toml("out_of_domain.toml"))
GRAMMARS: Mapping[str, Grammar] = {"in_domain": IN_DOMAIN, "out_of_domain": OUT_OF_DOMAIN}
STYLES: Mapping[str, QuestionStyle] = TypeAdapter(dict[str, QuestionStyle]).validate_python(
    _read_toml("styles.toml")
)


def ask(style: QuestionStyle, template: str, nouns: Sequence[str], head: str) -> str:
    """Return a question for the end of a chain from ``head``."""
    path = head
    for noun in nouns:
        path = style.step.format(path=path, noun=noun)

    return template.format(path=path)


def write_query(subject: str, word: str) -> str:
    """Return the search for a relation of a subject."""
    return f"about {subject} {word}"


def write_note(noun: str, name: str | None) -> str:
    """Return what an agent writes down after reading: the relation that it looked for, and its object or ``nothing``.

    The relation comes first in both cases: so it stands right before the place where a model has to
    tell a fact that is there from one that is not (docs/experiments.md, 13).
    """
    return f"found {noun} {name or 'nothing'}"


def write_plan(nouns: Sequence[str]) -> str:
    """Return what an agent writes down before a search: the relations that it still has to follow, in order."""
    return f"need {', '.join(nouns)}"


def name_words(grammar: Grammar) -> tuple[str, ...]:
    """Return every word that names of the grammar's kinds are made of, in a fixed order."""
    words: dict[str, None] = {}
    for kind in grammar.kinds.values():
        for word_list in kind.word_lists:
            words.update(dict.fromkeys(word_list))

    return tuple(words)


_NAME_WORDS = frozenset(name_words(IN_DOMAIN)) | frozenset(name_words(OUT_OF_DOMAIN))


def read_object(word: str, subject: str, passage: str) -> str | None:
    """Return the object of the fact (``word``, ``subject``, ?), None where the passage does not state it so."""
    match = _statement_pattern(word, subject).search(passage)
    return match.group(match.lastindex or 0) if match else None


@functools.lru_cache(maxsize=4096)
def _statement_pattern(word: str, subject: str) -> re.Pattern[str]:
    values = {"noun": re.escape(word), "subject": re.escape(subject), "object": _NAME}
    patterns = [statement.replace(".", r"\.").format(**values) for statement in STATEMENTS]
    return re.compile("|".join(patterns))


def find_entities(text: str) -> list[str]:
    """Return the names in a text of either world, in order: the longest runs of name words between single spaces."""
    names: list[str] = []

    # Far enough before the text that no word follows it.
    previous_end = -2

    for match in re.finditer(r"\w+", text):
        if match.group() not in _NAME_WORDS:
            continue
        if names and match.start() == previous_end + 1 and text[previous_end] == " ":
            names[-1] += " " + match.group()
        else:
            names.append(match.group())

        previous_end = match.end()

    return names
