"""The language of the world that models are trained on: films, people, companies, cities and countries."""

from deepsearch_rl.corpora.world import words
from deepsearch_rl.corpora.world.language import Grammar, Kind, Relation, by_name


def _simple(
    noun: str, subject_kind: str, object_kind: str, *statements: str, query: str, reverse: str = ""
) -> Relation:
    """A relation whose phrase is "the NOUN of ..." and that can be searched for by that noun or by ``query``."""
    queries = (noun + " of {subject}", query + " {subject}")
    return Relation(noun, subject_kind, object_kind, statements, noun, f"the {noun} of {{subject}}", queries, reverse)


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
        _simple(
            "director",
            "film",
            "person",
            "The director of {subject} was {object}.",
            "The film {subject} was directed by {object}.",
            query="who directed",
        ),
        _simple(
            "studio",
            "film",
            "company",
            "The studio of {subject} was {object}.",
            "The film {subject} was made at the studio {object}.",
            query="studio that made",
        ),
        _simple(
            "birthplace",
            "person",
            "city",
            "The birthplace of {subject} is {object}.",
            "It is known that {subject} was born in {object}.",
            query="where was born",
        ),
        _simple(
            "spouse",
            "person",
            "person",
            "The spouse of {subject} is {object}.",
            "For many years {subject} has been married to {object}.",
            query="married to",
            reverse="spouse",
        ),
        _simple(
            "employer",
            "person",
            "company",
            "The employer of {subject} is {object}.",
            "At present {subject} works for {object}.",
            query="who works for",
        ),
        _simple(
            "founder",
            "company",
            "person",
            "The founder of {subject} was {object}.",
            "The company {subject} was founded by {object}.",
            query="who founded",
        ),
        _simple(
            "headquarters",
            "company",
            "city",
            "The headquarters of {subject} are in {object}.",
            "The company {subject} has its main office in {object}.",
            query="main office of",
        ),
        _simple(
            "mayor",
            "city",
            "person",
            "The mayor of {subject} is {object}.",
            "The city of {subject} has chosen as its mayor {object}.",
            query="who is mayor in",
        ),
        _simple(
            "country",
            "city",
            "country",
            "The country of {subject} is {object}.",
            "The city of {subject} lies in the country {object}.",
            query="which country has",
        ),
        _simple(
            "capital",
            "country",
            "city",
            "The capital of {subject} is {object}.",
            "The country {subject} has its capital in {object}.",
            query="capital city",
            reverse="country",
        ),
    ),
    questions={
        "person": ("Who is {path}?", "Name {path}.", "Please tell me who is {path}."),
        "other": ("What is {path}?", "Name {path}.", "Please tell me what is {path}."),
    },
    comparisons={
        "multihoprag": (
            "Do {first} and {second} have the same {noun}?",
            "Is the {noun} of {first} also that of {second}?",
        )
    },
)
