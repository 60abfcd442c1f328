"""The language of the world that models are trained on: films, people, companies, cities and countries."""

from deepsearch_rl.corpora.world import words
from deepsearch_rl.corpora.world.language import Grammar, Kind, Relation, by_name


def _relation(noun: str, subject_kind: str, object_kind: str, *statements: str, reverse: str = "") -> Relation:
    """A relation that question, query and article all call by one noun.

    In a question it is a possessive ("Silent Harbor's director's birthplace"), so that a chain is read from left to
    right in the order in which its facts must be found.
    """
    queries = (noun + " of {subject}",)
    return Relation(noun, subject_kind, object_kind, statements, noun, f"{{subject}}'s {noun}", queries, reverse)


IN_DOMAIN = Grammar(
    kinds=by_name(
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
    relations=by_name(
        _relation(
            "director",
            "film",
            "person",
            "The director of {subject} was {object}.",
            "The film {subject} had as its director {object}.",
        ),
        _relation(
            "studio",
            "film",
            "company",
            "The studio of {subject} was {object}.",
            "The film {subject} was made at the studio {object}.",
        ),
        _relation(
            "birthplace",
            "person",
            "city",
            "The birthplace of {subject} is {object}.",
            "It is known that {subject} has as birthplace {object}.",
        ),
        _relation(
            "spouse",
            "person",
            "person",
            "The spouse of {subject} is {object}.",
            "For many years {subject} has had as spouse {object}.",
            reverse="spouse",
        ),
        _relation(
            "employer",
            "person",
            "company",
            "The employer of {subject} is {object}.",
            "At present {subject} has as employer {object}.",
        ),
        _relation(
            "founder",
            "company",
            "person",
            "The founder of {subject} was {object}.",
            "The company {subject} had as its founder {object}.",
        ),
        _relation(
            "headquarters",
            "company",
            "city",
            "The headquarters of {subject} are in {object}.",
            "The company {subject} has its headquarters in {object}.",
        ),
        _relation(
            "mayor",
            "city",
            "person",
            "The mayor of {subject} is {object}.",
            "The city of {subject} has chosen as its mayor {object}.",
        ),
        _relation(
            "country",
            "city",
            "country",
            "The country of {subject} is {object}.",
            "The city of {subject} lies in the country {object}.",
        ),
        _relation(
            "capital",
            "country",
            "city",
            "The capital of {subject} is {object}.",
            "The country {subject} has as its capital {object}.",
            reverse="country",
        ),
    ),
    questions={
        "person": ("Who is {path}?", "Name {path}."),
        "other": ("What is {path}?", "Name {path}."),
    },
    comparisons={
        "multihoprag": (
            "Do {first} and {second} have the same {noun}?",
            "Is the {noun} of {first} also that of {second}?",
        )
    },
)
