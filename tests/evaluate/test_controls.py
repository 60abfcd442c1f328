import asyncio

import pytest

from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL, call_id, format_passages
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.core.records import Evidence, Question, QuestionMetadata, StopReason, Trajectory
from deepsearch_rl.evaluate.set_evaluation import (
    ControlAgent,
    GivenPassages,
    GoldPassages,
    RandomPassages,
)
from tests.chunks import make_chunk
from tests.evaluate.chat import KEY, ChatEndpoint, says, searches, serve_chat
from tests.settings import AGENT

CHUNKS = [
    make_chunk("Ada Holt\nAda Holt was born in Stoke.", "d1-0", "d1", 2, 0),
    make_chunk("Ada Holt\nShe works for Fusion Works.", "d1-1", "d1", 2, 1),
    make_chunk("Fusion Works\nFusion Works was founded", "d2-0", "d2", 2, 0),
    make_chunk("Fusion Works\nby Ben Ide.", "d2-1", "d2", 2, 1),
]
FACTS = (
    Evidence(doc_id="d1", fact="She works for  Fusion\nWorks."),
    Evidence(title="Fusion Works", fact="Fusion Works was founded by Ben Ide."),
)


def ask(evidence: tuple[Evidence, ...] | None = FACTS) -> Question:
    metadata = QuestionMetadata(question_type="2_hop", evidence_list=evidence)
    return Question(
        id="q1",
        question="Who founded Ada's employer?",
        golden_answers=("Ben Ide",),
        metadata=metadata,
    )


def answer(chat: ChatEndpoint, given: GivenPassages | None) -> Trajectory:
    async def run() -> Trajectory:
        async with ControlAgent(AGENT, chat.endpoint, 0.7, "sft", given, seed=0) as agent:
            return await agent.answer(ask(), 0)

    return asyncio.run(run())


def test_gold_passages_are_the_chunks_that_hold_the_facts_in_the_order_of_the_evidence() -> None:
    gold = GoldPassages(CHUNKS, [ask()])
    # the second fact is cut by a chunk's end, so its whole document is shown, trajectory by its
    # title
    assert format_passages(gold(ask())) == (
        "[1] Ada Holt\nShe works for Fusion Works.\n\n"
        "[2] Fusion Works\nFusion Works was founded\n\n[3] Fusion Works\nby Ben Ide."
    )
    assert gold(ask(evidence=())) == ()


def test_without_facts_gold_passages_are_the_chunks_of_the_gold_documents_in_their_order() -> None:
    documents = QuestionMetadata(supporting_doc_ids=("d2", "d1", "d2", "d9"))
    question = ask().model_copy(update={"metadata": documents})
    gold = GoldPassages(CHUNKS, [question])
    assert [chunk.id for chunk in gold(question)] == ["d2-0", "d2-1", "d1-0", "d1-1"]
    # Facts say more: the same passages as without the documents
    both = ask().metadata.model_copy(update={"supporting_doc_ids": ("d2",)})
    with_facts = ask().model_copy(update={"metadata": both})
    assert GoldPassages(CHUNKS, [with_facts])(with_facts) == GoldPassages(CHUNKS, [ask()])(ask())


def test_random_passages_hold_no_gold_fact_and_repeat_with_the_seed() -> None:
    facts = (Evidence(doc_id="d1", fact="She works for Fusion Works."),)
    question = ask(facts)
    drawn: set[str] = set()
    for seed in range(20):
        passages = RandomPassages(CHUNKS, 2, seed)(question)
        assert len({chunk.id for chunk in passages}) == 2
        assert passages == RandomPassages(CHUNKS, 2, seed)(question)
        drawn |= {chunk.id for chunk in passages}

    assert drawn == {"d1-0", "d2-0", "d2-1"}
    # A corpus that has no more
    every_other = RandomPassages(CHUNKS, 9, 0)(question)
    assert sorted(chunk.id for chunk in every_other) == ["d1-0", "d2-0", "d2-1"]


def test_without_search_the_model_is_asked_once_and_offered_no_tool() -> None:
    with serve_chat(lambda _: says("<answer> Ben Ide</answer>")) as chat:
        trajectory = answer(chat, given=None)
    (request,) = chat.requests
    assert "tools" not in request
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert (request["temperature"], request["max_tokens"]) == (0.7, AGENT.max_tokens)
    assert (trajectory.answer, trajectory.stop_reason, trajectory.tool_calls) == (
        "Ben Ide",
        StopReason.ANSWERED,
        0,
    )
    assert (trajectory.prompt_tokens, trajectory.completion_tokens) == (9, 1)


def test_a_turn_without_a_pair_of_tags_is_no_answer() -> None:
    with serve_chat(lambda _: says("Ben Ide</answer>")) as chat:
        trajectory = answer(chat, given=None)
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.NO_ANSWER_TAG, "")


def test_a_repeated_rollout_asks_for_the_same_seed_and_another_sample_for_another() -> None:
    async def run(endpoint: Endpoint) -> None:
        async with ControlAgent(AGENT, endpoint, 0.7, "sft", None, seed=0) as agent:
            for sample in (0, 1, 0):
                await agent.answer(ask(), sample)

    with serve_chat(lambda _: says("<answer> Ben Ide</answer>")) as chat:
        asyncio.run(run(chat.endpoint))
    first, other, repeated = (request["seed"] for request in chat.requests)
    assert first == repeated != other


def test_with_gold_passages_every_search_returns_them_and_the_tool_stays_offered() -> None:
    replies = iter([searches("Fusion Works"), says("<answer> Ben Ide</answer>")])
    gold = GoldPassages(CHUNKS, [ask()])
    with serve_chat(lambda _: next(replies)) as chat:
        trajectory = answer(chat, gold)
    first, second = chat.requests
    passages = format_passages(gold(ask()))
    assert first["tools"] == second["tools"] == [RETRIEVE_TOOL]
    assert [message["role"] for message in first["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert [message["content"] for message in second["messages"] if message["role"] == "tool"] == [
        passages
    ] * 2
    calls = [call for message in second["messages"] for call in message.get("tool_calls", ())]
    results = [
        message["tool_call_id"] for message in second["messages"] if message["role"] == "tool"
    ]
    assert [call["id"] for call in calls] == results
    assert results == [call_id(1), call_id(2)]
    assert (trajectory.answer, trajectory.stop_reason) == ("Ben Ide", StopReason.ANSWERED)


def test_a_model_that_only_searches_runs_out_of_turns() -> None:
    with serve_chat(lambda _: searches("again")) as chat:
        trajectory = answer(chat, GoldPassages(CHUNKS, [ask()]))
    assert (trajectory.stop_reason, trajectory.answer, len(chat.requests)) == (
        StopReason.TURN_BUDGET,
        "",
        AGENT.max_turns,
    )


@pytest.mark.slow
def test_a_reply_without_a_choice_is_a_failed_rollout() -> None:
    with serve_chat(lambda _: {}) as chat:
        chat.choices = 0
        assert answer(chat, given=None).stop_reason is StopReason.MODEL_ERROR


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 500])
def test_a_failing_endpoint_is_a_failed_rollout_without_the_key_in_it(status: int) -> None:
    with serve_chat(lambda _: status) as chat:
        trajectory = answer(chat, given=None)
    assert trajectory.stop_reason is StopReason.MODEL_ERROR
    assert "failed for" in str(trajectory.error)
    assert KEY not in trajectory.model_dump_json()
