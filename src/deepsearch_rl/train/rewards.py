"""Rewards by name: functions of a rollout and its question that score 0 to 1.

``rl.rewards`` gives each reward its weight; the reward of a rollout is the weighted sum. A reward of
your own is a function of your own file (docs/own_code.md). To add one to the project, write a
function below :func:`reward` or, where it reads no turns, :func:`answer_reward`, and give it a line
in docs/contracts.md, section 3.

Sources: DeepSearch-RL's published rewards are ``2 * f1`` (there called ``correct``), ``0.5 *
answer_format``, ``0.5 * think_format`` and ``0.5 * short_think``. Search-R1's are ``exact_match``
(arXiv 2503.09516) and, in its later recipe (arXiv 2505.15117 and
``verl/utils/reward_score/qa_em_format.py`` of its repository), a table that the weights
``{exact_match: 0.8, search_r1_structure: 0.2, search_r1_retrieval: 0.1, search_r1_format: 0.1}``
give exactly.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from numbers import Real
from statistics import fmean
from typing import Self

from pydantic import Field, model_validator

from deepsearch_rl.agent.config import SEARCH_TAGS
from deepsearch_rl.chat.chat_messages import CLOSE_THINK, OPEN_THINK, split_thought
from deepsearch_rl.core.answers import is_refusal, normalise, score
from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.own_code import is_own, load_own
from deepsearch_rl.core.records import Message, Question, Record, StopReason, Trajectory
from deepsearch_rl.search.gold import Gold, gold_evidence
from deepsearch_rl.train.filters import evidence_shown

_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_ACTIONS = ("<tool_call>", "<search>", "<answer>")
_TAGLESS = r"(?:(?!</?(?:think|search|information|answer)>).)*"
_SEARCH_R1 = re.compile(
    rf"\s*(?:<think>{_TAGLESS}</think>\s*<search>{_TAGLESS}</search>\s*(?:<information></information>\s*)+)*"
    rf"<think>{_TAGLESS}</think>\s*<answer>{_TAGLESS}</answer>\s*",
    re.DOTALL,
)


class ThinkLength(Record):
    """How many tokens of a thought ``short_think`` rewards."""

    min_tokens: int = Field(ge=0, description="shorter thoughts score 0")
    full_score_tokens: int = Field(
        description="thoughts of min_tokens to full_score_tokens score 1"
    )
    max_tokens: int = Field(description="thoughts of this length and longer ones score 0")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.min_tokens <= self.full_score_tokens < self.max_tokens:
            raise ValueError("min_tokens <= full_score_tokens < max_tokens does not hold")
        return self


@dataclass(frozen=True, slots=True)
class PolicyText:
    """How to read what a policy writes; ``count_tokens`` counts the tokens of a text with the policy's tokenizer."""

    count_tokens: Callable[[str], int]
    think_length: ThinkLength
    # The prompt ends in ``<think>``, which counts as written by the policy
    opens_thought: bool = False

    def turns(self, trajectory: Trajectory) -> list[str]:
        """Return the assistant turns as the policy wrote them, with separate reasoning put back into its tags.

        In Search-R1's tags all turns are one message that grows: its prompt opens the thought of the
        first one alone.
        """
        turns: list[str] = []
        for message in trajectory.turns:
            is_continued = bool(turns) and trajectory.protocol == SEARCH_TAGS
            turns.append(self.turn(message, is_continued=is_continued))

        return turns

    def turn(self, message: Message, *, is_continued: bool = False) -> str:
        """Return one assistant turn as the policy wrote it; calls that the server parsed are not in the text.

        ``is_continued``: the turn goes on in the message of the one before, without a prompt of its own.
        """
        if message.reasoning is None:
            is_opened = self.opens_thought and not is_continued
            return f"{OPEN_THINK}{message.content}" if is_opened else message.content
        text = split_thought(message).text if message.reasoning.strip() else message.content
        return f"{OPEN_THINK}{message.reasoning}{CLOSE_THINK}{text}"


RewardFunction = Callable[[Trajectory, Question, PolicyText], float]
# Every reward by the name that `rl.rewards` gives it
REWARDS: dict[str, RewardFunction] = {}
# Those that do not look at the PolicyText: `optimize_prompt`, whose model may be behind an endpoint
# and has no tokenizer here then, takes these alone
ANSWER_REWARDS: dict[str, RewardFunction] = {}


def reward(function: RewardFunction) -> RewardFunction:
    """Register a reward under its function's name."""
    REWARDS[function.__name__] = function  # pyright: ignore[reportAttributeAccessIssue]
    return function


def answer_reward(function: RewardFunction) -> RewardFunction:
    """Register a reward that reads no turns of the policy, for RL and for the search of prompts."""
    ANSWER_REWARDS[function.__name__] = function  # pyright: ignore[reportAttributeAccessIssue]
    return reward(function)


@cache
def find_reward(name: str) -> RewardFunction:
    """Return a reward by its name, one of the user's own by ``path/to/file.py:name``.

    Raise UnknownNameError or ConfigError where there is none; an own one raises ConfigError where
    it fails or does not score 0 to 1.
    """
    if not is_own(name):
        return look_up("reward", name, REWARDS)

    code = load_own("reward", name, ("trajectory", "question", "policy"))

    def own_reward(trajectory: Trajectory, question: Question, policy: PolicyText) -> float:
        value = code(trajectory, question, policy)
        number = float(value) if isinstance(value, Real) else math.nan
        if not 0 <= number <= 1:
            raise code.error(
                f"returned {value!r} for the rollout {trajectory.id}; a reward is a number from 0 to 1"
            )
        return number

    return own_reward


def require_scores(names: Iterable[str], question: Question, policy: PolicyText) -> None:
    """Have every reward score two rollouts of a question that no model made, before a model makes any.

    One answers a golden answer, the other a blank one; neither has searched. Raise as
    :func:`find_reward` and its rewards.
    """
    for answer in (question.golden_answers[0], ""):
        rollout = Trajectory(
            id=f"{question.id}#0",
            question_id=question.id,
            sample=0,
            question=question.question,
            golden_answers=question.golden_answers,
            model="none",
            prompt="none",
            temperature=0.0,
            messages=(
                Message(role="user", content=question.question),
                Message(role="assistant", content=f"<answer>{answer}</answer>"),
            ),
            answer=answer,
            stop_reason=StopReason.ANSWERED,
        )
        for name in names:
            find_reward(name)(rollout, question, policy)


def reward_parts(
    weights: Mapping[str, float], trajectory: Trajectory, question: Question, policy: PolicyText
) -> dict[str, float]:
    """Return the summands of a rollout's reward by name, each weight times score; all zero for a failed rollout."""

    def parts(rollout: Trajectory) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, weight in weights.items():
            values[name] = weight * find_reward(name)(rollout, question, policy)

        return values

    return trajectory.score(parts, dict.fromkeys(weights, 0.0))


@answer_reward
def f1(trajectory: Trajectory, question: Question, _policy: PolicyText) -> float:
    """Token F1 of the answer, the best over all golden answers."""
    return score(trajectory.answer, question.golden_answers).f1


@answer_reward
def exact_match(trajectory: Trajectory, question: Question, _policy: PolicyText) -> float:
    """1 if the normalised answer equals a golden answer (Search-R1's outcome reward)."""
    return score(trajectory.answer, question.golden_answers).em


@answer_reward
def evidence_recall(trajectory: Trajectory, question: Question, _policy: PolicyText) -> float:
    """Share of the question's gold facts, titles or documents that searches showed; 0 where the gold is not known."""
    gold = gold_evidence(question)
    return 0.0 if gold is None else _recall_of(gold, trajectory)


def _recall_of(gold: Gold, trajectory: Trajectory) -> float:
    """Return the share of the gold evidence that searches showed."""
    if gold.kind != "documents":
        return evidence_shown(trajectory, gold) or 0.0

    # A corpus that was not cut has documents for passages; otherwise an id is <document>-<number>
    documents: set[str] = set()
    for retrieval in trajectory.retrievals:
        for chunk_id in retrieval.chunk_ids:
            documents.update((chunk_id, chunk_id.rpartition("-")[0]))
    return fmean(item in documents for item in gold.items)


@answer_reward
def justified_refusal(trajectory: Trajectory, question: Question, _policy: PolicyText) -> float:
    """1 for the answer that there is not enough information, where that is so.

    It is where the question has no answer, and where the searches did not show all of its gold
    evidence, as far as that is known. F1 alone scores such a refusal as low as a wrong answer, so
    that a policy learns to guess.
    """
    if not is_refusal(trajectory.answer):
        return 0.0

    if any(map(is_refusal, question.golden_answers)):
        return 1.0
    gold = gold_evidence(question)
    return float(gold is not None and _recall_of(gold, trajectory) < 1)


@answer_reward
def answer_format(trajectory: Trajectory, _question: Question, _policy: PolicyText) -> float:
    """1 if the extracted answer is not blank."""
    return float(bool(trajectory.answer.strip()))


@reward
def think_format(trajectory: Trajectory, _question: Question, policy: PolicyText) -> float:
    """1 if every assistant turn has exactly one non-empty think block before its tool call or answer."""
    turns = policy.turns(trajectory)
    return float(bool(turns) and all(map(_thinks_first, turns)))


@reward
def short_think(trajectory: Trajectory, _question: Question, policy: PolicyText) -> float:
    """Mean over assistant turns of :func:`think_length_score`; 0 if a turn has not exactly one think block."""
    scores: list[float] = []
    for turn in policy.turns(trajectory):
        thought = _only_thought(turn)
        if thought is None:
            return 0.0
        tokens = policy.count_tokens(thought[1].strip())
        scores.append(think_length_score(tokens, policy.think_length))

    return sum(scores) / len(scores) if scores else 0.0


@reward
def search_r1_structure(trajectory: Trajectory, _question: Question, policy: PolicyText) -> float:
    """1 if the rollout is Search-R1's sequence: think, search and information in turns, then think and answer.

    Between the blocks only white space is allowed. A turn with tool calls counts as one search.
    """
    blocks: list[str] = []
    turns = iter(policy.turns(trajectory))
    for message in trajectory.messages:
        if message.role == "tool":
            blocks.append("<information></information>")
        elif message.role == "assistant":
            turn = next(turns)
            # A call that the server parsed is not in the text
            parsed_call = message.tool_calls and "<search>" not in turn
            blocks.append(f"{turn}<search></search>" if parsed_call else turn)

    return float(_SEARCH_R1.fullmatch("".join(blocks)) is not None)


@reward
def search_r1_retrieval(trajectory: Trajectory, question: Question, policy: PolicyText) -> float:
    """1 if the structure is right, the answer wrong, and a golden answer (normalised) in a tool result."""
    if exact_match(trajectory, question, policy):
        return 0.0
    if not search_r1_structure(trajectory, question, policy):
        return 0.0

    # A golden answer of articles and punctuation alone is empty, and would be in every result
    golds = list(filter(None, map(normalise, question.golden_answers)))
    for message in trajectory.messages:
        if message.role == "tool":
            result = normalise(message.content)
            if any(gold in result for gold in golds):
                return 1.0

    return 0.0


@reward
def search_r1_format(trajectory: Trajectory, question: Question, policy: PolicyText) -> float:
    """1 if there is an answer, but both the answer and the structure are wrong."""
    is_right = exact_match(trajectory, question, policy)
    has_structure = search_r1_structure(trajectory, question, policy)
    return float(not is_right and not has_structure)


def think_length_score(tokens: int, length: ThinkLength) -> float:
    """Return 1 from ``min_tokens`` to ``full_score_tokens``, a half cosine from 1 to 0 up to ``max_tokens``, else 0."""
    if tokens < length.min_tokens or tokens >= length.max_tokens:
        return 0.0
    if tokens <= length.full_score_tokens:
        return 1.0
    share = (tokens - length.full_score_tokens) / (length.max_tokens - length.full_score_tokens)
    return (1 + math.cos(math.pi * share)) / 2


def _only_thought(turn: str) -> re.Match[str] | None:
    """Return the think block of a turn with one opening tag and one closing tag after it, None for other turns."""
    return _THINK.search(turn) if turn.count(OPEN_THINK) == turn.count(CLOSE_THINK) == 1 else None


def _thinks_first(turn: str) -> bool:
    """Return whether the only thought is not empty and precedes the action of the turn.

    Calls that the server parsed follow the text. In the text, no action's tag may precede the
    thought, and the answer, which is the last one (:func:`~deepsearch_rl.core.answers.extract_answer`),
    may not lie inside it.
    """
    thought = _only_thought(turn)
    if thought is None or not thought[1].strip():
        return False
    acted_before = any(tag in turn[: thought.start()] for tag in _ACTIONS)
    answered_inside = thought.start() < turn.rfind("<answer>") < thought.end()
    return not acted_before and not answered_inside
