"""The two languages of the generated worlds: relations, and the sentences, phrases and queries that express them.

A world is a set of facts (relation, subject, object). A :class:`Grammar` says how facts are stated in articles, how
chains of relations are asked for in questions and what a search for one fact looks like. ``IN_DOMAIN`` is the world
that models are trained on; ``OUT_OF_DOMAIN`` shares no relation, sentence, question wording or name word with it.

Wording is chosen so that a model of less than a million parameters can learn it: every relation is a function (one
object per subject), a chain of relations is asked for by possessives in the order of its facts ("Silent Harbor's
director's birthplace"), and no template begins with a name, so that each name word always follows a space and is one
token.
"""

import functools
import re
from collections.abc import Mapping

from deepsearch_rl.corpora.world.in_domain import IN_DOMAIN
from deepsearch_rl.corpora.world.language import Grammar, Kind, Relation
from deepsearch_rl.corpora.world.out_of_domain import OUT_OF_DOMAIN

__all__ = [
    "GRAMMARS",
    "IN_DOMAIN",
    "OUT_OF_DOMAIN",
    "Grammar",
    "Kind",
    "Relation",
    "find_entities",
    "name_words",
    "read_object",
]

GRAMMARS: Mapping[str, Grammar] = {"in_domain": IN_DOMAIN, "out_of_domain": OUT_OF_DOMAIN}

# An object in running text: capitalised words, or a year.
_OBJECT = r"([A-Z]\w*(?: [A-Z]\w*)*|\d{4})"


def name_words(grammar: Grammar) -> tuple[str, ...]:
    """Every word that names of the grammar's kinds are made of, in a fixed order (years left out)."""
    lists = (word_list for kind in grammar.kinds.values() if kind.name != "year" for word_list in kind.word_lists)
    return tuple(dict.fromkeys(word for word_list in lists for word in word_list))


_NAME_WORDS = frozenset(word for grammar in GRAMMARS.values() for word in name_words(grammar))


def read_object(grammar: Grammar, relation: str, subject: str, passage: str) -> str | None:
    """The object of the fact (``relation``, ``subject``, ?), None where the passage does not state it."""
    for statement in grammar.relations[relation].statements:
        if match := _statement_pattern(statement, subject).search(passage):
            return match.group(1)
    return None


@functools.lru_cache(maxsize=4096)
def _statement_pattern(statement: str, subject: str) -> re.Pattern[str]:
    before, after = statement.split("{object}")
    before, after = (re.escape(part.replace("{subject}", subject)) for part in (before, after))
    return re.compile(before + _OBJECT + after)


def find_entities(question: str) -> list[str]:
    """Names in a question of either world, in order: the longest runs of name words separated by single spaces."""
    names: list[str] = []
    previous_end = -2
    for match in re.finditer(r"\w+", question):
        if match.group() not in _NAME_WORDS:
            continue
        if names and match.start() == previous_end + 1 and question[previous_end] == " ":
            names[-1] += " " + match.group()
        else:
            names.append(match.group())
        previous_end = match.end()
    return names
