"""The records that describe a generated world's language: kinds of entities, relations, and how both are worded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of entity; its names are one word of each list, in order, separated by spaces."""

    name: str
    word_lists: tuple[tuple[str, ...], ...]
    fillers: tuple[str, ...] = ()
    """Sentences without a fact that pad this kind's articles."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A function from entities of one kind to entities of another, and how it is put into words."""

    name: str
    subject_kind: str
    object_kind: str
    statements: tuple[str, ...]
    """Sentences with ``{subject}`` and ``{object}``, each stating one fact."""
    noun: str
    """What the object is called: "director"."""
    phrase: str
    """Noun phrase for the object of ``{subject}``, which may be a name or another such phrase."""
    queries: tuple[str, ...]
    """What to search for to find the object of ``{subject}``; relation words first, the name last."""
    reverse: str = ""
    """The relation that leads back from the object to the subject; then no two subjects share an object."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """One world's kinds, relations and question wordings.

    ``questions`` maps a set of wordings to templates with ``{path}``, the nested noun phrase of a chain;
    ``comparisons`` maps a question set to templates with ``{first}``, ``{second}`` (names) and perhaps ``{noun}``.
    """

    kinds: Mapping[str, Kind]
    relations: Mapping[str, Relation]
    questions: Mapping[str, tuple[str, ...]]
    comparisons: Mapping[str, tuple[str, ...]]

    def path(self, chain: tuple[str, ...], head: str) -> str:
        """The noun phrase for what the ``chain`` of relation names leads to from the entity ``head``."""
        phrase = head
        for name in chain:
            phrase = self.relations[name].phrase.format(subject=phrase)
        return phrase


NamedT = TypeVar("NamedT", Kind, Relation)


def by_name(*items: NamedT) -> dict[str, NamedT]:
    """Kinds or relations as a mapping from their names, in the given order."""
    return {item.name: item for item in items}
