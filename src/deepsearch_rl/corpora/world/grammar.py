"""The two languages of the generated worlds, and reading facts back.

A world is a set of facts (relation, subject, object). ``IN_DOMAIN`` is the world that models are trained on;
``OUT_OF_DOMAIN`` shares no relation, sentence, question wording or name word with it.

A model of less than a million parameters can learn the wording: every relation has one object per subject; questions
of the in-domain world ask for a chain by possessives in the order of its facts ("Silent Harbor's director's
birthplace"), and question, query and article call a relation by one noun; no template begins with a name, so that each
name word always follows a space and is one token.
"""

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from deepsearch_rl.records import Record

YEAR = "year"  # the kind whose names are years; they are no entities, and have no articles
_OBJECT = r"([A-Z]\w*(?: [A-Z]\w*)*|\d{4})"  # an object in running text: capitalised words, or a year


class Kind(Record):
    """A kind of entity; its names are one word of each list, in order, separated by spaces."""

    name: str
    word_lists: tuple[Annotated[tuple[str, ...], BeforeValidator(str.split)], ...] = Field(alias="names")
    fillers: tuple[str, ...] = Field(default=(), description="sentences without a fact that pad this kind's articles")


class Relation(Record):
    """A function from entities of one kind to entities of another, and how it is put into words."""

    name: str
    subject_kind: str
    object_kind: str
    statements: tuple[str, ...] = Field(description="sentences with {subject} and {object}, each stating one fact")
    phrase: str = Field(description="noun phrase for the object of {subject}, a name or another such phrase")
    queries: tuple[str, ...] = Field(description="searches for the object of {subject}: relation words, then the name")
    reverse: str = Field(default="", description="leads from object to subject; then no two subjects share an object")

    @property
    def noun(self) -> str:
        """What the object is called: "director"."""
        return self.name.replace("_", " ")


class Grammar(Record):
    """One world's kinds, relations and question wordings, each by name, in a fixed order."""

    kinds: dict[str, Kind]
    relations: dict[str, Relation]
    questions: dict[str, tuple[str, ...]] = Field(
        description="set of wordings -> templates with {path}, the noun phrase of a chain"
    )
    comparisons: dict[str, tuple[str, ...]] = Field(
        description="question set -> templates with {first}, {second} (names) and perhaps {noun}"
    )

    @model_validator(mode="before")
    @classmethod
    def _name_items(cls, values: dict[str, Any]) -> dict[str, Any]:
        for group in ("kinds", "relations"):
            values[group] = {name: {"name": name, **item} for name, item in values[group].items()}
        return values

    def path(self, chain: tuple[str, ...], head: str) -> str:
        """Return the noun phrase for the end of a chain of relation names from the entity ``head``."""
        phrase = head
        for name in chain:
            phrase = self.relations[name].phrase.format(subject=phrase)
        return phrase


IN_DOMAIN, OUT_OF_DOMAIN = (
    Grammar.model_validate(tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8")))
    for name in ("in_domain.toml", "out_of_domain.toml")
)
GRAMMARS: Mapping[str, Grammar] = {"in_domain": IN_DOMAIN, "out_of_domain": OUT_OF_DOMAIN}


def name_words(grammar: Grammar) -> tuple[str, ...]:
    """Return every word that names of the grammar's kinds are made of, in a fixed order, without years."""
    lists = (word_list for kind in grammar.kinds.values() if kind.name != YEAR for word_list in kind.word_lists)
    return tuple(dict.fromkeys(word for word_list in lists for word in word_list))


_NAME_WORDS = frozenset(word for grammar in GRAMMARS.values() for word in name_words(grammar))


def read_object(grammar: Grammar, relation: str, subject: str, passage: str) -> str | None:
    """Return the object of the fact (``relation``, ``subject``, ?), None where the passage does not state it."""
    for statement in grammar.relations[relation].statements:
        if match := _statement_pattern(statement, subject).search(passage):
            return match.group(1)
    return None


@functools.lru_cache(maxsize=4096)
def _statement_pattern(statement: str, subject: str) -> re.Pattern[str]:
    before, after = statement.split("{object}")
    before, after = (re.escape(part.replace("{subject}", subject)) for part in (before, after))
    return re.compile(before + _OBJECT + after)


def find_entities(text: str) -> list[str]:
    """Return the names in a text of either world, in order: the longest runs of name words between single spaces."""
    names: list[str] = []
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
