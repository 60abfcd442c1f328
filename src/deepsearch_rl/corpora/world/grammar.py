"""The two languages of the generated worlds: relations, and the sentences, phrases and queries that express them.

A world is a set of facts (relation, subject, object). A :class:`Grammar` says how facts are stated in articles, how
chains of relations are asked for in questions and what a search for one fact looks like. ``IN_DOMAIN`` is the world
that models are trained on; ``OUT_OF_DOMAIN`` shares no relation, sentence, question wording or name word with it.

Wording is chosen so that a model of less than a million parameters can learn it: every relation is a function (one
object per subject), a chain of relations is asked for by nesting noun phrases ("the birthplace of the director of
Silent Harbor"), and no template begins with a name, so that each name word always follows a space and is one token.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from deepsearch_rl.corpora.world import words

# An object in running text: capitalised words, or a year.
_OBJECT = r"([A-Z]\w*(?: [A-Z]\w*)*|\d{4})"


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


@dataclass(frozen=True, slots=True)
class Grammar:
    """One world's kinds, relations and question wordings.

    ``questions`` maps a set of wordings to templates with ``{path}``, the nested noun phrase of a chain;
    ``comparisons`` are templates with ``{first}``, ``{second}`` (names) and, where the wording needs it, ``{noun}``.
    """

    kinds: Mapping[str, Kind]
    relations: Mapping[str, Relation]
    questions: Mapping[str, tuple[str, ...]]
    comparisons: tuple[str, ...]

    def path(self, chain: tuple[str, ...], head: str) -> str:
        """The noun phrase for what the ``chain`` of relation names leads to from the entity ``head``."""
        phrase = head
        for name in chain:
            phrase = self.relations[name].phrase.format(subject=phrase)
        return phrase


def _simple(noun: str, subject_kind: str, object_kind: str, *statements: str, query: str) -> Relation:
    """A relation whose phrase is "the NOUN of ..." and that can be searched for by that noun or by ``query``."""
    queries = (noun + " of {subject}", query + " {subject}")
    return Relation(noun, subject_kind, object_kind, statements, noun, f"the {noun} of {{subject}}", queries)


def _clause(name: str, subject_kind: str, object_kind: str, phrase: str, *statements: str, query: str) -> Relation:
    """A relation that is asked for by a clause of its own."""
    noun = name.replace("_", " ")
    return Relation(name, subject_kind, object_kind, statements, noun, phrase, (query + " {subject}",))


NamedT = TypeVar("NamedT", Kind, Relation)


def _by_name(*items: NamedT) -> dict[str, NamedT]:
    return {item.name: item for item in items}


IN_DOMAIN = Grammar(
    kinds=_by_name(
        Kind(
            "person",
            (words.PERSON_FIRST, words.PERSON_LAST),
            (
                "Friends speak of a calm and patient worker.",
                "The early years were spent in a small house near the sea.",
                "Two long letters from that time were kept in a museum.",
                "A short book about this life was read by many people.",
                "Old friends still come to visit every year.",
                "The garden at home was open to the public for some years.",
            ),
        ),
        Kind(
            "film",
            (words.FILM_FIRST, words.FILM_LAST),
            (
                "The music was written in less than two weeks.",
                "Many people liked the slow and careful opening.",
                "A longer cut of the film was shown some years later.",
                "The film was made with a small team and little money.",
                "Some scenes had to be shot again after a storm.",
                "It won a prize for its sound and its light.",
            ),
        ),
        Kind(
            "company",
            (words.COMPANY_FIRST, words.COMPANY_LAST),
            (
                "The company began with a small shop and four workers.",
                "Its first product sold better than anyone had hoped.",
                "A new building was opened after ten years of growth.",
                "The company gives some of its money to local schools.",
                "Sales were slow at first and grew in later years.",
                "Its workers meet once a year for a long walk.",
            ),
        ),
        Kind(
            "city",
            (words.CITY,),
            (
                "The old town is known for its narrow streets.",
                "A market is held in the main square every week.",
                "Most people travel to work by train or by bus.",
                "The public library is open on every day of the week.",
                "A long wall was built around the town in early times.",
                "The winters are cold and the nights are clear.",
            ),
        ),
        Kind(
            "country",
            (words.COUNTRY,),
            (
                "The land is flat in the south and high in the north.",
                "Most of the people live close to the sea.",
                "The railway was built by workers from many places.",
                "Its farms send fruit and grain to other lands.",
                "The flag has three colours and one white star.",
                "A long war ended here many years ago.",
            ),
        ),
    ),
    relations=_by_name(
        _simple(
            "director", "film", "person",
            "The director of {subject} was {object}.",
            "The film {subject} was directed by {object}.",
            query="who directed",
        ),
        _simple(
            "studio", "film", "company",
            "The studio of {subject} was {object}.",
            "The film {subject} was made at the studio {object}.",
            query="studio that made",
        ),
        _simple(
            "birthplace", "person", "city",
            "The birthplace of {subject} is {object}.",
            "It is known that {subject} was born in {object}.",
            query="where was born",
        ),
        _simple(
            "spouse", "person", "person",
            "The spouse of {subject} is {object}.",
            "For many years {subject} has been married to {object}.",
            query="married to",
        ),
        _simple(
            "employer", "person", "company",
            "The employer of {subject} is {object}.",
            "At present {subject} works for {object}.",
            query="who works for",
        ),
        _simple(
            "founder", "company", "person",
            "The founder of {subject} was {object}.",
            "The company {subject} was founded by {object}.",
            query="who founded",
        ),
        _simple(
            "headquarters", "company", "city",
            "The headquarters of {subject} are in {object}.",
            "The company {subject} has its main office in {object}.",
            query="main office of",
        ),
        _simple(
            "mayor", "city", "person",
            "The mayor of {subject} is {object}.",
            "The city of {subject} has chosen as its mayor {object}.",
            query="who is mayor in",
        ),
        _simple(
            "country", "city", "country",
            "The country of {subject} is {object}.",
            "The city of {subject} lies in the country {object}.",
            query="which country has",
        ),
        _simple(
            "capital", "country", "city",
            "The capital of {subject} is {object}.",
            "The country {subject} has its capital in {object}.",
            query="capital city",
        ),
    ),
    questions={
        "person": ("Who is {path}?", "Name {path}.", "Please tell me who is {path}."),
        "other": ("What is {path}?", "Name {path}.", "Please tell me what is {path}."),
    },
    comparisons=("Do {first} and {second} have the same {noun}?", "Is the {noun} of {first} also that of {second}?"),
)


OUT_OF_DOMAIN = Grammar(
    kinds=_by_name(
        Kind(
            "artist",
            (words.ARTIST_FIRST, words.ARTIST_LAST),
            (
                "Several notebooks survive from these decades.",
                "Critics praised an unusual sense of rhythm.",
                "An illness interrupted all plans during one autumn.",
            ),
        ),
        Kind(
            "novel",
            (words.NOVEL_FIRST, words.NOVEL_LAST),
            (
                "Reviewers argued about its final chapter.",
                "Copies of the original printing are rare today.",
                "Its plot unfolds during a single stormy voyage.",
            ),
        ),
        Kind(
            "song",
            (words.SONG_FIRST, words.SONG_LAST),
            (
                "Radio stations refused to play it until autumn.",
                "Its melody borrows from an older dance.",
                "Audiences usually sing along during the chorus.",
            ),
        ),
        Kind(
            "press",
            (words.PRESS_FIRST, words.PRESS_LAST),
            (
                "Its catalogue lists mostly poetry and travel writing.",
                "Machines from those decades are displayed downstairs.",
            ),
        ),
        Kind(
            "academy",
            (words.ACADEMY_FIRST, words.ACADEMY_LAST),
            (
                "Students perform concerts during spring.",
                "Its archive preserves thousands of manuscripts.",
            ),
        ),
        Kind(
            "town",
            (words.TOWN_FIRST, words.TOWN_LAST),
            (
                "Visitors admire several medieval towers.",
                "Fishermen sell their catch beside the quay.",
            ),
        ),
        Kind(
            "waterway",
            (words.WATERWAY,),
            (
                "Herons and otters inhabit its banks.",
                "Floods damaged nearby orchards twice.",
            ),
        ),
        Kind(
            "crossing",
            (words.CROSSING_FIRST, words.CROSSING_LAST),
            (
                "Repairs closed one lane during spring.",
                "Cyclists use a separate path along its edge.",
            ),
        ),
        Kind("year", (tuple(str(year) for year in range(1801, 1991)),)),
    ),
    relations=_by_name(
        _clause(
            "author", "novel", "artist", "whoever wrote {subject}",
            "Readers owe the novel {subject} to its author {object}.",
            query="novel written",
        ),
        _clause(
            "publisher", "novel", "press", "whichever press published {subject}",
            "Bookshops received {subject} from its publisher {object}.",
            query="published novel",
        ),
        _clause(
            "composer", "song", "artist", "whoever composed {subject}",
            "Musicians credit the tune {subject} to its composer {object}.",
            query="tune composed",
        ),
        _clause(
            "teacher", "artist", "artist", "whoever taught {subject}",
            "Lessons in youth were given to {subject} by {object}.",
            query="lessons teacher",
        ),
        _clause(
            "academy", "artist", "academy", "whichever academy trained {subject}",
            "After school, {subject} enrolled at {object}.",
            query="enrolled academy",
        ),
        _clause(
            "residence", "artist", "town", "wherever {subject} resides",
            "These days {subject} resides in {object}.",
            query="resides town",
        ),
        _clause(
            "editor", "press", "artist", "whoever edits for {subject}",
            "Every manuscript sent to {subject} is read by its editor {object}.",
            query="manuscript editor",
        ),
        _clause(
            "seat", "press", "town", "wherever {subject} prints",
            "All volumes of {subject} are printed in {object}.",
            query="volumes printed",
        ),
        _clause(
            "principal", "academy", "artist", "whoever heads {subject}",
            "Lectures at {subject} are supervised by its principal {object}.",
            query="principal supervises",
        ),
        _clause(
            "campus", "academy", "town", "wherever {subject} stands",
            "Buildings of {subject} stand in {object}.",
            query="buildings stand",
        ),
        _clause(
            "waterway", "town", "waterway", "whichever waterway passes through {subject}",
            "Boats reach {subject} along the waterway {object}.",
            query="boats waterway",
        ),
        _clause(
            "engineer", "crossing", "artist", "whoever designed {subject}",
            "Drawings for the bridge {subject} came from {object}.",
            query="bridge drawings",
        ),
        _clause(
            "opening_year", "crossing", "year", "whenever {subject} opened",
            "Traffic first used the bridge {subject} during {object}.",
            query="bridge traffic during",
        ),
    ),
    questions={
        "musique": ("Could you find {path}?", "Which one would be {path}?"),
        "2wikimultihopqa": ("Identify {path} for us.", "Give only one name: {path}."),
        "hotpotqa": ("Readers wonder about {path}; which name fits?", "An article mentions {path}. Which one?"),
    },
    comparisons=("Which bridge opened earlier, {first} or {second}?", "Did {first} or did {second} open sooner?"),
)

GRAMMARS: Mapping[str, Grammar] = {"in_domain": IN_DOMAIN, "out_of_domain": OUT_OF_DOMAIN}


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
