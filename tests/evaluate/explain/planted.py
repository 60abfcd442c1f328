"""Sixty rollouts with planted faults, each with the cause that its author gave it.

The corpus has people, the companies that they founded and where these sit. A question's two facts
are "X founded Y." and "Y sits in Z."; every rollout is written for one fault and named after it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from deepsearch_rl.core.records import Chunk, Question, StopReason, Trajectory
from tests.chunks import make_chunk
from tests.evaluate.explain.answers import make_question, make_rollout

FOUNDERS = (
    ("Ada Stone", "Acme Works", "Ulverton"),
    ("Boris Jarvis", "Orbit Foods", "Kirkwall"),
    ("Carla Kessler", "Pioneer Mills", "Cresthill"),
    ("Dagmar Guillaume", "Granite Tools", "Yarrowdale"),
    ("Eamon Fontaine", "Harbour Glass", "Hestria"),
    ("Flora Draper", "Summit Paper", "Bramble Cross"),
)
MISSING = ("Igor Yardley", "Vanished Ltd", "Lostwick")
"""Of this company no passage says anything."""


class Planted(NamedTuple):
    """A rollout and its cause by the key; empty where it lost nothing."""

    rollout: Trajectory
    cause: str


def chunks() -> list[Chunk]:
    """The corpus: a passage about every founder and every company, and noise."""
    passages: list[Chunk] = []
    for number, (person, company, city) in enumerate(FOUNDERS):
        founded = f"{person}\nIt is known that {person} founded {company}. The winters were cold."
        sits = f"{company}\nA brochure says that {company} sits in {city}. Bread is baked daily."
        passages.append(make_chunk(founded, f"person-{number}", f"person-{number}"))
        passages.append(make_chunk(sits, f"company-{number}", f"company-{number}"))

    for number in range(20):
        noise = f"Almanac {number}\nThe market of the year {1900 + number} was wide and windy."
        passages.append(make_chunk(noise, f"noise-{number}", f"noise-{number}"))
    # A passage that no word of a question or a title leads to
    hidden = "Zzyzx\nQuentin Marlowe founded Obscura."
    passages.append(make_chunk(hidden, "hidden-0", "hidden-0"))
    return passages


def _fact(person: str, company: str, city: str) -> list[dict[str, str]]:
    return [
        {"fact": f"{person} founded {company}.", "title": person},
        {"fact": f"{company} sits in {city}.", "title": company},
    ]


def questions() -> dict[str, Question]:
    """The questions by id: two for each founder, one whose company is missing, and three odd ones."""
    result: list[Question] = []
    for number, (person, company, city) in enumerate(FOUNDERS):
        text = f"Where does the company of {person} sit?"
        result.append(
            make_question(
                f"two-{number}",
                text,
                (city,),
                question_type="two",
                hops=2,
                evidence_list=_fact(person, company, city),
            )
        )
        text = f"Who founded {company}?"
        result.append(
            make_question(
                f"one-{number}",
                text,
                (person,),
                question_type="one",
                hops=1,
                evidence_list=_fact(person, company, city)[:1],
            )
        )

    person, company, city = MISSING
    result.append(
        make_question(
            "missing",
            f"Where does the company of {person} sit?",
            (city,),
            question_type="two",
            hops=2,
            evidence_list=_fact(person, company, city),
        )
    )
    hidden = [{"fact": "Quentin Marlowe founded Obscura.", "title": "Nobody knows"}]
    result.append(
        make_question(
            "hidden", "Whose firm was it?", ("Quentin Marlowe",), evidence_list=hidden, hops=1
        )
    )
    result.append(make_question("null", "Who leads Nowhere Inc?", ("Insufficient information.",)))
    result.append(
        make_question(
            "closed",
            "Did Ada Stone found Acme Works?",
            ("yes",),
            evidence_list=_fact(*FOUNDERS[0])[:1],
        )
    )
    return {question.id: question for question in result}


def planted() -> Iterator[Planted]:
    """Yield the sixty rollouts."""
    asked = questions()
    texts = {chunk.id: chunk.contents for chunk in chunks()}
    samples: dict[str, int] = {}

    def case(
        cause: str,
        question: str,
        answer: str,
        *searches: str,
        stop: StopReason = StopReason.ANSWERED,
        last_text: str | None = None,
    ) -> Planted:
        """``searches`` are ids of the passages that a search shows, with blanks between."""
        sample = samples[question] = samples.get(question, -1) + 1
        listed = [
            (f"query {names}", [(name, texts[name]) for name in names.split()])
            for names in searches
        ]
        rollout = make_rollout(
            asked[question], answer, listed, stop=stop, last_text=last_text, sample=sample
        )
        return Planted(rollout, cause)

    # 1 to 6: right, with all evidence, and without it
    yield case("", "two-0", "Ulverton", "person-0 noise-1", "company-0")
    yield case("", "two-1", "kirkwall.", "person-1 company-1")
    yield case("", "one-0", "Ada Stone", "person-0")
    yield case("", "one-1", "Boris Jarvis", "noise-1 noise-2")
    yield case("", "two-2", "Cresthill")
    yield case("", "null", "Insufficient information.", "noise-3")

    # 7 to 12: the corpus does not have it
    yield case("not_in_corpus", "missing", "Ulverton", "noise-1", "noise-2")
    yield case("not_in_corpus", "missing", "Insufficient information.", "noise-1")
    yield case("not_in_corpus", "missing", "", stop=StopReason.MODEL_ERROR, last_text="")
    yield case("not_in_corpus", "missing", "Kirkwall")
    yield case("not_in_corpus", "missing", "", "noise-1", stop=StopReason.TURN_BUDGET, last_text="")
    yield case("not_in_corpus", "missing", "Yes")

    # 13 to 17: never searched
    yield case("never_searched", "two-0", "Paris")
    yield case("never_searched", "one-0", "I do not know")
    yield case("never_searched", "two-3", "Granite Tools")
    yield case("never_searched", "closed", "no")
    yield case(
        "never_searched", "one-2", "", stop=StopReason.NO_ANSWER_TAG, last_text="Let me think."
    )

    # 18 to 23: a bad query, which the question itself would have beaten
    yield case("bad_query", "two-0", "Paris", "noise-1 noise-2 noise-3")
    yield case("bad_query", "two-4", "Insufficient information.", "noise-1", "noise-5")
    yield case("bad_query", "one-3", "Boris Jarvis", "person-1 company-1")
    yield case("bad_query", "one-4", "", "noise-7", stop=StopReason.SEARCH_BUDGET, last_text="")
    yield case("bad_query", "closed", "no", "noise-8")
    yield case("bad_query", "two-5", "Kirkwall", "")

    # 24 to 27: nothing would have found it
    yield case("index_misses", "hidden", "Ada Stone", "person-0")
    yield case("index_misses", "hidden", "Insufficient information.", "noise-1", "noise-2")
    yield case("index_misses", "hidden", "", "noise-2", stop=StopReason.TOKEN_BUDGET, last_text="")
    yield case("index_misses", "hidden", "Marlow", "noise-4")

    # 28 to 34: a part of it found
    yield case("partly_found", "two-0", "Kirkwall", "person-0")
    yield case("partly_found", "two-1", "Ulverton", "company-1 noise-1")
    yield case("partly_found", "two-2", "Insufficient information.", "person-2", "noise-1")
    yield case("partly_found", "two-3", "", "person-3", stop=StopReason.DEADLINE, last_text="")
    yield case("partly_found", "two-4", "Harbour Glass", "person-4 person-1 person-2")
    yield case("partly_found", "two-5", "Paper", "company-5", "company-5")
    yield case(
        "partly_found",
        "two-3",
        "",
        "company-3",
        stop=StopReason.TOOL_CALL_UNPARSABLE,
        last_text="<tool_call>{",
    )

    # 35 to 40: all found, another answer
    yield case("not_used", "two-0", "Kirkwall", "person-0", "company-0")
    yield case("not_used", "two-1", "Orbit Foods", "person-1 company-1")
    yield case("not_used", "one-2", "Pioneer Mills", "person-2")
    yield case("not_used", "closed", "no", "person-0")
    yield case("not_used", "two-5", "Bramble", "person-5", "company-5")
    yield case(
        "not_used",
        "one-5",
        "",
        "person-5",
        stop=StopReason.NO_ANSWER_TAG,
        last_text="It was Boris Jarvis.",
    )

    # 41 to 44: all found, the answer refused
    yield case("refused", "two-0", "Insufficient information.", "person-0", "company-0")
    yield case("refused", "one-3", "I do not know", "person-3")
    yield case("refused", "two-2", "It cannot be determined.", "person-2 company-2")
    yield case("refused", "one-4", "", "person-4", stop=StopReason.NO_ANSWER_TAG, last_text="")

    # 45 to 51: right, and lost to the metric
    yield case("metric", "two-0", "It sits in Ulverton, I think.", "person-0", "company-0")
    yield case("metric", "one-0", "Ada Stone, of Acme Works", "person-0")
    yield case("metric", "one-1", "Bóris Járvis", "person-1")
    yield case("metric", "closed", "Yes, she did", "person-0")
    yield case("metric", "two-5", "the city of Bramble Cross", "noise-1")
    yield case(
        "metric",
        "two-4",
        "",
        "person-4",
        "company-4",
        stop=StopReason.NO_ANSWER_TAG,
        last_text="The answer is Hestria.",
    )
    yield case("metric", "null", "I cannot find that", "noise-1")

    # 52 to 55: cut off with all evidence, or before any search
    yield case(
        "cut_off", "two-1", "", "person-1", "company-1", stop=StopReason.TURN_BUDGET, last_text=""
    )
    yield case("cut_off", "one-5", "", "person-5", stop=StopReason.TOKEN_BUDGET, last_text="")
    yield case("cut_off", "two-2", "", stop=StopReason.TOKEN_BUDGET, last_text="So first")
    yield case("cut_off", "null", "", "noise-1", stop=StopReason.DEADLINE, last_text="")

    # 56 to 58: a server failed
    yield case("infrastructure", "two-3", "", stop=StopReason.MODEL_ERROR, last_text="")
    yield case("infrastructure", "two-0", "", "noise-1", stop=StopReason.TOOL_ERROR, last_text="")
    yield case(
        "infrastructure",
        "one-0",
        "",
        "person-0",
        stop=StopReason.MODEL_ERROR,
        last_text="Ada Stone",
    )

    # 59 and 60: there is no answer, and one was given
    yield case("unanswerable", "null", "Ada Stone", "person-0")
    yield case("unanswerable", "null", "Boris Jarvis")
