"""Named predicates that choose trajectories to train on, and the figures that they look at.

A predicate sees one trajectory and its question. Predicates are applied in the order that params
name them, and a trajectory that several of them would drop counts for the first.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Self, TypeAlias

from pydantic import Field, model_validator

from deepsearch_rl.chat.chat_messages import CLOSE_THINK, OPEN_THINK, split_thought
from deepsearch_rl.core.answers import INSUFFICIENT, SUCCESS_F1, f1, normalise, score_rollout
from deepsearch_rl.core.errors import ArtifactError, look_up
from deepsearch_rl.core.own_code import is_own, load_own
from deepsearch_rl.core.records import (
    MAX_TITLE_BYTES,
    Message,
    NonEmpty,
    Question,
    Record,
    Trajectory,
)
from deepsearch_rl.data.titles import title_key
from deepsearch_rl.search.gold import Gold, gold_evidence, without_space
from deepsearch_rl.train.swift_names import (
    SwiftAgentTemplate,
    SwiftLossScale,
    SwiftModelType,
    SwiftTemplate,
)

# ms-swift's loss scale that trains the last turn of a row alone
LAST_TURN = "last_round"
Predicate: TypeAlias = Callable[[Trajectory, Question], bool]
# The first line of a passage from its title on, in the form of either protocol
_TITLE_LINE = re.compile(r"^(?:\[\d+\] (.*)|(?:<information>)?Doc \d+\(Title: (.*))$", re.MULTILINE)


class FilterConfig(Record):
    """Section ``filter``; raise UnknownNameError where a predicate does not exist."""

    dataset: NonEmpty = Field(description="the question set that the teacher answered")
    split: NonEmpty
    predicates: tuple[str, ...] = Field(
        description="which trajectories to keep; applied in this order"
    )
    per_question: int | None = Field(
        ge=1, description="most trajectories of one question, the best first; null: all"
    )
    flatten: bool = Field(
        description="a row per turn, trained after a history without reasoning; else a row per trajectory"
    )
    max_tokens: int = Field(ge=1, description="longer rows are dropped")
    model_type: SwiftModelType = Field(
        description="ms-swift's name of the architecture, like the following the one that sft names"
    )
    template: SwiftTemplate = Field(description="its chat template")
    agent_template: SwiftAgentTemplate = Field(description="its rendering of tools")
    loss_scale: SwiftLossScale = Field(description="its name of the tokens that carry loss")

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        # Refuses an unknown name
        find_predicates(self.predicates)
        if self.flatten != (self.loss_scale.split("+")[0] == LAST_TURN):
            rows = (
                "rows of single turns train"
                if self.flatten
                else "rows of whole trajectories train more than"
            )
            raise ValueError(
                f"{rows} their last turn: {self.loss_scale!r} does not fit flatten: {self.flatten}"
            )

        return self


def answered(trajectory: Trajectory, question: Question) -> bool:  # noqa: ARG001
    """The rollout ended in an answer."""
    return not trajectory.failed


def success(trajectory: Trajectory, question: Question) -> bool:
    """The answer's F1 is 0.8 or more (DeepSearch-RL's filter)."""
    return f1(trajectory.answer, question.golden_answers) >= SUCCESS_F1


def searched(trajectory: Trajectory, question: Question) -> bool:  # noqa: ARG001
    """At least one search was executed."""
    return bool(trajectory.retrievals)


def no_repeated_query(trajectory: Trajectory, question: Question) -> bool:  # noqa: ARG001
    """No search was made twice."""
    return repeated_queries(trajectory) == 0


def repeated_queries(trajectory: Trajectory) -> int:
    """Return how many searches repeat an earlier query; queries are normalised like answers."""
    queries = [normalise(retrieval.query) for retrieval in trajectory.retrievals]
    return len(queries) - len(set(queries))


def evidence_shown(trajectory: Trajectory, gold: Gold) -> float | None:
    """Return the share of the gold evidence in the passages of a conversation, in [0, 1]; white space is ignored.

    None where the evidence names documents by id, because passages do not.
    """
    texts = trajectory.tool_texts
    match gold.kind:
        case "facts":
            # Each result of a search by itself: a fact may not begin in one and end in the next
            results = list(map(without_space, texts))
            return fmean(_is_in_any(fact, results) for fact in gold.items)
        case "titles":
            keys = set(map(title_key, shown_titles("\n".join(texts))))
            return fmean(title_key(title) in keys for title in gold.items)
        case "documents":
            return None


def _is_in_any(fact: str, results: Sequence[str]) -> bool:
    compact_fact = without_space(fact)
    return any(compact_fact in result for result in results)


def shown_titles(text: str) -> set[str]:
    """Return what may be the titles of the passages in a text, as they are spelled there.

    Search-R1's form closes a title with a bracket, which a title may have as well: every bracket
    may be the last.
    """
    titles: set[str] = set()
    for match in _TITLE_LINE.finditer(text):
        line, tagged = match.groups()
        if line is not None:
            titles.add(line)
            continue

        # No title is longer, and a passage may have thousands of brackets
        for bracket in re.finditer(r"\) ", tagged[: MAX_TITLE_BYTES + 2]):
            titles.add(tagged[: bracket.start()])
        titles.add(tagged)

    return titles


def evidence_found(trajectory: Trajectory, question: Question) -> bool:
    """The model was shown all gold evidence, so that the answer is not a lucky guess.

    Questions without an answer pass, and so do those whose evidence is unknown or known by document
    id alone.
    """
    gold = gold_evidence(question)
    if gold is None or question.golden_answers == (INSUFFICIENT,):
        return True
    return evidence_shown(trajectory, gold) in (None, 1)


def reasoned(trajectory: Trajectory, question: Question) -> bool:  # noqa: ARG001
    """Every turn has exactly one thought, as the chat template of a thinking model needs it."""
    for message in trajectory.messages:
        if message.role != "assistant":
            continue
        reasoning, text, closed = split_thought(message)
        if reasoning is None or not closed:
            return False

        # A second thought, of which the first tags are gone
        rest = reasoning + text
        if OPEN_THINK in rest or CLOSE_THINK in rest:
            return False

    return True


PREDICATES: Mapping[str, Predicate] = {
    "answered": answered,
    "success": success,
    "searched": searched,
    "no_repeated_query": no_repeated_query,
    "evidence_found": evidence_found,
    "reasoned": reasoned,
}


def find_predicates(names: Sequence[str]) -> dict[str, Predicate]:
    """Return the predicates of these names, in this order; own ones by ``path/to/file.py:name``.

    Raise UnknownNameError or ConfigError where there is none of a name.
    """
    return {name: _find_predicate(name) for name in names}


def _find_predicate(name: str) -> Predicate:
    if not is_own(name):
        return look_up("filter predicate", name, PREDICATES)

    code = load_own("filter predicate", name, ("trajectory", "question"))

    def own_predicate(trajectory: Trajectory, question: Question) -> bool:
        value = code(trajectory, question)
        if not isinstance(value, bool):
            raise code.error(
                f"returned {value!r} for the trajectory {trajectory.id}; a predicate returns True or False"
            )
        return value

    return own_predicate


def best_per_question(trajectories: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """Return the best ``count`` trajectories of each question, in the order given.

    The better of two has the higher F1, then fewer searches, then the lower sample number. Of equal
    conversations, as samples at a low temperature often are, the first counts.
    """

    def rank(trajectory: Trajectory) -> tuple[float, int, int]:
        return (-score_rollout(trajectory).f1, len(trajectory.retrievals), trajectory.sample)

    conversations: dict[str, set[tuple[Message, ...]]] = {}
    ids: set[str] = set()
    for trajectory in sorted(trajectories, key=rank):
        of_question = conversations.setdefault(trajectory.question_id, set())
        # Equal conversations would be trained on twice
        if len(of_question) < count and trajectory.messages not in of_question:
            of_question.add(trajectory.messages)
            ids.add(trajectory.id)

    return [trajectory for trajectory in trajectories if trajectory.id in ids]


def apply_predicates(
    trajectories: Iterable[Trajectory],
    questions: Iterable[Question],
    predicates: Mapping[str, Predicate],
) -> tuple[list[Trajectory], dict[str, int]]:
    """Return the trajectories that satisfy every predicate, and how many each predicate dropped, in order.

    Raise ArtifactError where a trajectory answers a question that is not there.
    """
    by_id = {question.id: question for question in questions}
    successes: list[Trajectory] = []
    dropped = dict.fromkeys(predicates, 0)

    for trajectory in trajectories:
        question = by_id.get(trajectory.question_id)
        if question is None:
            raise ArtifactError(
                f"trajectory {trajectory.id} answers a question that is not in the question file; "
                "run the stage synthesize again."
            )

        # The first that fails: the counts of all predicates add up to the trajectories left out
        for name, holds in predicates.items():
            if not holds(trajectory, question):
                dropped[name] += 1
                break
        else:
            successes.append(trajectory)

    return successes, dropped
