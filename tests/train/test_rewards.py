"""Every reward, against values worked out by hand from the definitions in docs/contracts.md, section 3."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from deepsearch_rl.core.errors import UnknownNameError
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import (
    Message,
    Question,
    Retrieval,
    StopReason,
    ToolCall,
    Trajectory,
)
from deepsearch_rl.search.gold import Gold, gold_evidence
from deepsearch_rl.train import rewards
from deepsearch_rl.train.rewards import (
    ANSWER_REWARDS,
    REWARDS,
    PolicyText,
    ThinkLength,
    reward_parts,
    think_length_score,
)
from deepsearch_rl.train.rl.rl_config import RlConfig

PUBLISHED = ThinkLength(min_tokens=10, full_score_tokens=100, max_tokens=600)
GOLDEN = ("Ada Lovelace", "Countess of Lovelace")
SEARCH_R1 = {
    "exact_match": 0.8,
    "search_r1_structure": 0.2,
    "search_r1_retrieval": 0.1,
    "search_r1_format": 0.1,
}
CALL = ToolCall(id="call_1", name="retrieve", arguments='{"query": "x"}')
ANSWER = "<answer>x</answer>"


def rollout(
    *turns: str | Message, answer: str = "", stop: StopReason = StopReason.ANSWERED
) -> Trajectory:
    messages = [
        Message(role="assistant", content=turn) if isinstance(turn, str) else turn for turn in turns
    ]
    return Trajectory(
        id="q#0",
        question_id="q",
        sample=0,
        question="Who?",
        golden_answers=GOLDEN,
        model="policy",
        prompt="tiny",
        temperature=1.0,
        messages=tuple(messages),
        answer=answer,
        stop_reason=stop,
    )


def call(content: str, reasoning: str | None = None) -> Message:
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=(CALL,))


def reply(content: str, reasoning: str | None = None) -> Message:
    return Message(role="assistant", content=content, reasoning=reasoning)


def words(text: str) -> int:
    return len(text.split())


def thought(tokens: int) -> str:
    return f"<think>{'w ' * tokens}</think>{ANSWER}"


def question(**metadata: Any) -> Question:
    return Question.model_validate(
        {"id": "q", "question": "Who?", "golden_answers": GOLDEN, "metadata": metadata}
    )


def policy(opens_thought: bool = False) -> PolicyText:
    return PolicyText(words, PUBLISHED, opens_thought)


def score(name: str, trajectory: Trajectory, **metadata: Any) -> float:
    return REWARDS[name](trajectory, question(**metadata), policy())


def total(weights: dict[str, float], trajectory: Trajectory) -> float:
    return sum(reward_parts(weights, trajectory, question(), policy()).values())


@pytest.mark.parametrize(
    ("answer", "f1", "exact_match"),
    [
        ("ada lovelace", 1.0, 1.0),
        ("the Countess of Lovelace!", 1.0, 1.0),
        ("Ada", 2 / 3, 0.0),
        ("Bob", 0.0, 0.0),
    ],
)
def test_f1_and_exact_match_are_the_best_over_all_golden_answers(
    answer: str, f1: float, exact_match: float
) -> None:
    assert score("f1", rollout(answer=answer)) == pytest.approx(f1)
    assert score("exact_match", rollout(answer=answer)) == exact_match


@pytest.mark.parametrize("name", REWARDS)
def test_a_failed_rollout_scores_zero_in_every_reward(name: str) -> None:
    failed = rollout(thought(50), answer="Ada Lovelace", stop=StopReason.TOKEN_BUDGET)
    assert reward_parts({name: 2.0}, failed, question(), policy()) == {name: 0.0}


@pytest.mark.parametrize("name", ANSWER_REWARDS)
def test_an_answer_reward_reads_no_text_of_the_policy(name: str) -> None:
    def refuse(text: str) -> int:
        raise AssertionError(f"{name} counts the tokens of {text!r}")

    unread = PolicyText(refuse, PUBLISHED)
    as_thought = PolicyText(refuse, PUBLISHED, opens_thought=True)
    trajectory = rollout(thought(50), answer="Ada Lovelace")
    values = [REWARDS[name](trajectory, question(), each) for each in (unread, as_thought)]
    assert values[0] == values[1]


def test_a_reward_is_the_weighted_sum_of_the_named_scores_only() -> None:
    published = {"f1": 2.0, "answer_format": 0.5}
    assert (
        reward_parts(published, rollout(answer="Ada Lovelace"), question(), policy()) == published
    )


@pytest.mark.parametrize(("answer", "value"), [("x", 1.0), (" x ", 1.0), ("", 0.0), (" \n\t", 0.0)])
def test_answer_format_scores_an_answer_that_is_not_blank(answer: str, value: float) -> None:
    assert score("answer_format", rollout(ANSWER, answer=answer)) == value


def shown(*results: str, chunks: tuple[str, ...] = ()) -> Trajectory:
    tools = [Message(role="tool", content=result, tool_call_id="call_1") for result in results]
    searched = rollout(call(""), *tools, ANSWER, answer="x")
    return searched.model_copy(update={"retrievals": (Retrieval(query="x", chunk_ids=chunks),)})


def test_evidence_recall_is_the_share_of_gold_facts_in_the_passages_shown() -> None:
    facts = [{"fact": "Ada was born in London."}, {"fact": "London is in England."}]
    assert (
        score("evidence_recall", shown("[1] Ada\nAda was  born in London."), evidence_list=facts)
        == 0.5
    )
    assert (
        score("evidence_recall", shown(facts[0]["fact"], facts[1]["fact"]), evidence_list=facts)
        == 1.0
    )
    assert score("evidence_recall", shown("nothing"), evidence_list=facts) == 0.0


def test_evidence_recall_counts_titles_and_documents_where_the_gold_names_them() -> None:
    assert (
        score("evidence_recall", shown("[1] Moon\ntext"), supporting_titles=["Moon", "Sun"]) == 0.5
    )
    documents = shown("text", chunks=("moon-3", "mars-0", "sun"))
    assert (
        score("evidence_recall", documents, supporting_doc_ids=["moon", "sun", "io", "mars-0"])
        == 0.75
    )


def test_evidence_recall_is_zero_where_the_gold_is_not_known() -> None:
    assert score("evidence_recall", shown("text")) == 0.0


def refused(*results: str, **metadata: object) -> float:
    rollout = shown(*results).model_copy(update={"answer": "insufficient information"})
    return score("justified_refusal", rollout, **metadata)


def test_a_refusal_is_justified_until_all_gold_evidence_was_shown() -> None:
    facts = [{"fact": "Ada was born in London."}, {"fact": "London is in England."}]
    assert refused(facts[0]["fact"], evidence_list=facts) == 1.0
    assert refused(facts[0]["fact"], facts[1]["fact"], evidence_list=facts) == 0.0
    assert refused("text") == 0.0
    assert score("justified_refusal", shown("text"), evidence_list=facts) == 0.0


def test_a_refusal_reads_the_gold_evidence_of_its_question_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    questions: list[Question] = []

    def read_and_note(question: Question) -> Gold | None:
        questions.append(question)
        return gold_evidence(question)

    monkeypatch.setattr(rewards, "gold_evidence", read_and_note)
    assert refused("text", evidence_list=[{"fact": "Ada was born in London."}]) == 1.0
    assert len(questions) == 1


def test_a_refusal_is_justified_where_the_question_has_no_answer() -> None:
    facts = [{"fact": "Ada was born in London."}]
    rollout = shown(facts[0]["fact"]).model_copy(update={"answer": "Insufficient information."})
    unanswerable = question(evidence_list=facts).model_copy(
        update={"golden_answers": ("Insufficient information.",)}
    )
    assert REWARDS["justified_refusal"](rollout, unanswerable, policy()) == 1.0


THINK = "<think>t</think>"
SEARCH = f"{THINK}\n<search>q</search>"
INFORMATION = Message(role="tool", content="\n\n<information>Doc 1(Title: t) b</information>\n\n")
HIT = Message(role="tool", content="[1] Ada\nShe is the ada  Lovelace.", tool_call_id="call_1")


@pytest.mark.parametrize(
    "turns",
    [
        [f"{THINK}{ANSWER}"],
        [SEARCH, INFORMATION, f"\n{THINK} {ANSWER}\n"],
        [SEARCH, INFORMATION, SEARCH, INFORMATION, f"{THINK}{ANSWER}"],
        [call("", "t"), HIT, reply(ANSWER, "t")],  # calls that a server parsed
        [call(THINK), HIT, HIT, f"{THINK}{ANSWER}"],
    ],
)
def test_search_r1s_structure_is_think_and_search_in_turns_then_think_and_answer(
    turns: list[str | Message],
) -> None:
    assert score("search_r1_structure", rollout(*turns)) == 1.0


@pytest.mark.parametrize(
    "turns",
    [
        [],
        [ANSWER],
        [f"{THINK}so {ANSWER}"],
        [f"{THINK}{ANSWER} done"],
        [f"{THINK}{ANSWER}{ANSWER}"],
        [f"<think>a <search>q</search></think>{ANSWER}"],
        [f"<think>a{ANSWER}"],
        [SEARCH, f"{THINK}{ANSWER}"],  # no result
        ["<search>q</search>", INFORMATION, f"{THINK}{ANSWER}"],
        [call("no thought"), HIT, f"{THINK}{ANSWER}"],
        [SEARCH, INFORMATION],
        # A turn without an action, and the correction that it got
        [THINK, INFORMATION, f"{THINK}{ANSWER}"],
    ],
)
def test_search_r1s_structure_is_nothing_else(turns: list[str | Message]) -> None:
    assert score("search_r1_structure", rollout(*turns)) == 0.0


@pytest.mark.parametrize(
    ("turns", "answer", "published"),
    [
        ([call(THINK), HIT, f"{THINK}{ANSWER}"], "Ada Lovelace", 1.0),
        ([call(""), HIT, f"{THINK}{ANSWER}"], "Ada Lovelace", 0.8),
        ([call(THINK), HIT, f"{THINK}{ANSWER}"], "Bob", 0.3),
        ([SEARCH, INFORMATION, f"{THINK}{ANSWER}"], "Bob", 0.2),
        ([call(""), HIT, f"{THINK}{ANSWER}"], "Bob", 0.1),
    ],
)
def test_the_weights_of_search_r1_give_its_published_table(
    turns: list[str | Message], answer: str, published: float
) -> None:
    assert total(SEARCH_R1, rollout(*turns, answer=answer)) == pytest.approx(published, abs=1e-15)


GOOD = [
    [f"<think>a</think>{ANSWER}"],
    [call("<think>a</think>"), f"<think>b</think>{ANSWER}"],
    [call("", "a"), call("text", "b"), reply(ANSWER, "c")],
    [call("\n\n", "\na\n"), reply(f"\n\n{ANSWER}", "\nb\n")],
    # A server that returns it twice
    [call("<think>a</think>", "a"), reply(f"<think>b</think>{ANSWER}", "b")],
    [f"First: <think>a</think> then {ANSWER}"],
    [f"<think>an <answer> tag and <tool_call> in mind</think>{ANSWER}"],
    ["<think>a</think><search>x</search>", f"<think>b</think>{ANSWER}"],
    [f"<think>\n\na\n\n</think>\n{ANSWER}"],
]
BAD = [
    [],
    [ANSWER],
    [f"<think>a</think>{ANSWER}", ANSWER],
    [call("", "a"), call("text"), reply(ANSWER, "c")],  # one turn of three without
    [call(""), f"<think>b</think>{ANSWER}"],
    [f"<think></think>{ANSWER}"],
    [f"<think> \n\t</think>{ANSWER}"],
    [reply(ANSWER, " \n")],
    [f"<think>a</think><think>b</think>{ANSWER}"],
    [f"<think>a</think>{ANSWER}<think>b</think>"],
    [f"<think>a</think>{ANSWER}<think>"],  # a second tag that is never closed
    [f"<think>a</think></think>{ANSWER}"],
    [f"<think><think>a</think>{ANSWER}"],
    [f"<think>a<think>b</think>c</think>{ANSWER}"],
    [reply(f"<think>b</think>{ANSWER}", "a")],  # two different thoughts
    [reply(ANSWER, "a</think>b")],
    [f"<think>a{ANSWER}"],
    [f"{ANSWER}</think>a<think>"],
    [f"{ANSWER}<think>a</think>"],
    ["<answer>x<think>a</think></answer>"],
    [f"<think>a {ANSWER}</think>"],  # the answer is inside the thought
    ['<tool_call>{"name": "retrieve"}</tool_call><think>a</think>'],
    ["<search>x</search><think>a</think>", f"<think>b</think>{ANSWER}"],
    [f"a</think>{ANSWER}"],
    [f"<think></think><think>a</think>{ANSWER}"],
    [f"<THINK>a</THINK>{ANSWER}"],
]


@pytest.mark.parametrize("turns", GOOD)
def test_think_format_rewards_one_filled_thought_before_the_action_of_every_turn(
    turns: list[str | Message],
) -> None:
    assert score("think_format", rollout(*turns)) == 1.0
    length = REWARDS["short_think"](
        rollout(*turns), question(), PolicyText(lambda _: 50, PUBLISHED)
    )
    assert length == 1.0, "every turn has a thought to measure"


@pytest.mark.parametrize("turns", BAD)
def test_think_format_rewards_nothing_else(turns: list[str | Message]) -> None:
    assert score("think_format", rollout(*turns)) == 0.0


def test_a_tag_that_the_prompt_wrote_counts_as_the_models() -> None:
    weights = {"think_format": 0.5, "short_think": 0.5}

    def parts(*turns: str | Message) -> tuple[float, ...]:
        return tuple(
            reward_parts(weights, rollout(*turns), question(), policy(opens_thought=True)).values()
        )

    assert parts(call("a\n</think>\n\n"), f"{'w ' * 50}</think>{ANSWER}") == (0.5, 0.25)
    assert parts(call("", "a"), f"<think>b</think>{ANSWER}") == (0, 0)
    assert parts(call("", "w " * 50)) == (0.5, 0.5)


def test_only_assistant_turns_are_judged() -> None:
    result = Message(role="tool", content="<think>passage</think>", tool_call_id="call_1")
    assert score("think_format", rollout(call("", "a"), result, reply(ANSWER, "b"))) == 1.0


@pytest.mark.parametrize(
    ("tokens", "score"),
    [
        (0, 0.0),
        (9, 0.0),
        (10, 1.0),
        (99, 1.0),
        (100, 1.0),
        (101, 0.9999901304280685),  # (1 + cos(pi / 500)) / 2
        (225, 0.8535533905932737),  # (1 + cos(pi / 4)) / 2 = (2 + sqrt 2) / 4
        (350, 0.5),
        (475, 0.14644660940672627),  # (2 - sqrt 2) / 4
        (599, 9.869571931442334e-06),  # (1 - cos(pi / 500)) / 2
        (600, 0.0),
        (100_000, 0.0),
    ],
)
def test_think_length_falls_along_a_half_cosine(tokens: int, score: float) -> None:
    assert think_length_score(tokens, PUBLISHED) == pytest.approx(score, abs=1e-15)


def test_think_length_bounds_are_parameters() -> None:
    length = ThinkLength(min_tokens=2, full_score_tokens=4, max_tokens=8)
    scores = [think_length_score(tokens, length) for tokens in range(1, 10)]
    falling = [(1 + math.cos(math.pi * step / 4)) / 2 for step in (1, 2, 3)]
    assert scores == pytest.approx([0, 1, 1, 1, *falling, 0, 0], abs=1e-15)


@pytest.mark.parametrize("bounds", [(11, 10, 600), (10, 600, 600), (10, 700, 600), (-1, 10, 600)])
def test_bounds_that_are_out_of_order_are_refused(bounds: tuple[int, int, int]) -> None:
    with pytest.raises(ValidationError):
        ThinkLength(min_tokens=bounds[0], full_score_tokens=bounds[1], max_tokens=bounds[2])


@pytest.mark.parametrize(
    ("turns", "published"),
    [
        ([thought(50)], 0.5),
        ([thought(50), thought(350)], 0.5 * (1 + 0.5) / 2),
        ([thought(50), thought(350), thought(600)], 0.5 * (1 + 0.5 + 0) / 3),
        ([thought(50), thought(9)], 0.5 * (1 + 0) / 2),
        ([thought(50), thought(0)], 0.5 * (1 + 0) / 2),  # a pair, if an empty one
        ([reply(ANSWER, "w " * 50), thought(50)], 0.5),
        ([call("w " * 50 + "</think>"), thought(50)], 0.0),
        # Its place is think_format's business
        ([f"{ANSWER}<think>{'w ' * 50}</think>"], 0.5),
        ([thought(50), ANSWER], 0.0),
        ([thought(50), thought(50) + "<think>more</think>"], 0.0),
        ([thought(50), thought(50) + "<think>"], 0.0),
        ([thought(50), thought(50) + "</think>"], 0.0),
        ([f"</think>{'w ' * 50}<think>"], 0.0),
        ([], 0.0),
    ],
)
def test_short_think_averages_turns_and_is_zero_if_one_has_not_exactly_one_pair(
    turns: list[str | Message], published: float
) -> None:
    assert total({"short_think": 0.5}, rollout(*turns)) == pytest.approx(published)


TAGS = st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "w ", "\n"])
TURNS = st.lists(st.lists(TAGS, max_size=8).map("".join), max_size=3)


@pytest.mark.slow
@given(TURNS)
def test_every_score_lies_between_0_and_1_whatever_is_written(turns: list[str]) -> None:
    trajectory = rollout(*turns, answer="x")
    assert all(0.0 <= score(name, trajectory) <= 1.0 for name in REWARDS)
    assert score("think_format", trajectory) in (0.0, 1.0)


@given(st.integers(10, 700), st.integers(10, 700))
def test_a_longer_thought_never_scores_more_once_it_is_long_enough(one: int, other: int) -> None:
    shorter, longer = sorted((one, other))
    assert think_length_score(shorter, PUBLISHED) >= think_length_score(longer, PUBLISHED)


def test_an_unknown_reward_is_answered_with_the_nearest_names(smoke: Profile) -> None:
    section = smoke.section("rl", RlConfig).model_dump()
    with pytest.raises(UnknownNameError, match=r"'exact_mach'.*'exact_match'"):
        RlConfig.model_validate({**section, "rewards": {"f1": 2.0, "exact_mach": 1.0}})
    with pytest.raises(ValidationError, match="at least 1 item"):
        RlConfig.model_validate({**section, "rewards": {}})


def test_in_tags_the_prompt_opens_the_thought_of_the_first_turn_alone() -> None:
    weights = {"think_format": 1.0, "search_r1_structure": 1.0}
    information = Message(role="tool", content="<information>x</information>")
    written = rollout(
        "I look.</think>\n<search>x</search>", information, f"<think>Found.</think>\n{ANSWER}"
    )
    in_tags = written.model_copy(update={"protocol": "search_tags"})
    thinks = policy(opens_thought=True)
    assert reward_parts(weights, in_tags, question(), thinks) == weights
    assert reward_parts(weights, written, question(), thinks) == dict.fromkeys(weights, 0.0)
