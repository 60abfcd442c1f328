import json
from dataclasses import replace

import pytest
from mlflow.entities import Trace

from deepsearch_rl.agent.timing import RolloutTimes, TimedStep, trajectory_digest
from deepsearch_rl.core.records import Message, Retrieval, StopReason, ToolCall, Trajectory
from deepsearch_rl.track.contents import SampledRollout
from deepsearch_rl.track.traces import NO_TIMES, Owner, build_trace
from tests.track.conftest import PASSAGES, rollout

OWNER = Owner(experiment_id="1", run_id="r", model_id="m")
STARTED_NS = 1_700_000_000_000_000_000


def traced(trajectory: Trajectory) -> Trace:
    return build_trace(
        SampledRollout(model="sft", run="multihoprag", trajectory=trajectory),
        OWNER,
        None,
        STARTED_NS,
    )


def test_a_model_call_shows_the_conversation_before_it_its_turn_and_its_tokens() -> None:
    _, first, _, last = traced(rollout("sft", 1)).data.spans
    assert [message["role"] for message in first.inputs["messages"]] == ["system", "user"]
    (call,) = first.outputs["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"query": "port 1"}
    assert [message["role"] for message in last.inputs["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert last.outputs["choices"][0]["message"]["content"] == "<answer> Port Vale</answer>"
    tokens = {"input_tokens": 70, "output_tokens": 6, "total_tokens": 76}
    assert last.get_attribute("mlflow.chat.tokenUsage") == tokens


def test_a_search_shows_its_query_and_every_passage_with_its_chunk() -> None:
    search = traced(rollout("sft", 1)).data.spans[2]
    assert search.inputs == {"query": "port 1"}
    assert [found["page_content"] for found in search.outputs] == [
        "[1] Port Vale\nA harbour.",
        "[2] Cape Ann\nA cape.",
    ]
    assert [found["metadata"]["doc_uri"] for found in search.outputs] == ["d1-0", "d2-0"]


def test_parallel_searches_find_their_own_passages_and_a_refused_one_is_a_plain_tool_call() -> None:
    calls = tuple(
        ToolCall(id=f"call_{number}", name="retrieve", arguments=json.dumps({"query": query}))
        for number, query in enumerate(("a", "b", "c"))
    )
    texts = ("[1] A\nof a", "[1] B\nof b", "No searches left. Answer now.")
    results = [
        Message(role="tool", content=text, tool_call_id=f"call_{place}")
        for place, text in enumerate(texts)
    ]
    made = rollout("sft", 1)
    changed = {
        "messages": (
            *made.messages[:2],
            Message(role="assistant", tool_calls=calls),
            *results,
            made.messages[-1],
        ),
        "retrievals": (
            Retrieval(query="b", chunk_ids=("b-0",)),
            Retrieval(query="a", chunk_ids=("a-0",)),
        ),
    }
    _, _, first, second, third, _ = traced(made.model_copy(update=changed)).data.spans
    assert [span.span_type for span in (first, second, third)] == ["RETRIEVER", "RETRIEVER", "TOOL"]
    assert [span.outputs[0]["metadata"]["doc_uri"] for span in (first, second)] == ["a-0", "b-0"]
    assert third.outputs == texts[2]


def test_passages_of_the_tag_protocol_are_told_apart_as_well() -> None:
    text = "\n\n<information>Doc 1(Title: Port Vale) A harbour.\nDoc 2(Title: Cape Ann) A cape.</information>\n\n"
    made = rollout("sft", 1)
    told = Message(role="tool", content=text, tool_call_id="call_1")
    search = traced(
        made.model_copy(update={"messages": (*made.messages[:3], told, made.messages[4])})
    ).data.spans[2]
    assert [found["page_content"] for found in search.outputs] == [
        "<information>Doc 1(Title: Port Vale) A harbour.",
        "Doc 2(Title: Cape Ann) A cape.</information>",
    ]


def test_passages_that_cannot_be_told_apart_stay_one_document() -> None:
    made = rollout("sft", 1)
    found = (Retrieval(query="port 1", chunk_ids=("d1-0", "d2-0", "d3-0")),)
    search = traced(made.model_copy(update={"retrievals": found})).data.spans[2]
    assert search.outputs == [{"page_content": PASSAGES, "metadata": {"doc_uri": "d1-0 d2-0 d3-0"}}]


def test_a_search_whose_passages_were_not_shown_has_no_documents() -> None:
    made = rollout("sft", 1)
    dropped = (Retrieval(query="port 1", chunk_ids=()),)
    search = traced(made.model_copy(update={"retrievals": dropped})).data.spans[2]
    assert (search.span_type, search.outputs) == ("RETRIEVER", [])


def test_a_model_that_fails_is_no_error_but_says_why_and_scores_zero() -> None:
    trace = traced(rollout("sft", 5).model_copy(update={"error": "cut after 96 tokens"}))
    root = trace.data.spans[0]
    assert (trace.info.state, root.status.status_code) == ("OK", "OK")
    assert root.attributes["reason"] == "cut after 96 tokens"
    assert (
        root.attributes["stop_reason"] == trace.info.tags["stop_reason"] == StopReason.NO_ANSWER_TAG
    )
    assert (root.attributes["f1"], root.outputs) == (0.0, {"answer": ""})


@pytest.mark.parametrize("reason", [StopReason.MODEL_ERROR, StopReason.TOOL_ERROR])
def test_a_server_that_fails_is_an_error(reason: StopReason) -> None:
    trace = traced(
        rollout("sft", 5).model_copy(update={"error": "no answer in 30 s", "stop_reason": reason})
    )
    root = trace.data.spans[0]
    assert trace.info.state == "ERROR"
    assert (root.status.status_code, root.status.description) == ("ERROR", "no answer in 30 s")


def test_tokens_that_were_not_counted_for_every_call_stand_at_the_agent_alone() -> None:
    made = rollout("sft", 1)
    root, *steps = traced(made.model_copy(update={"usage": made.usage[:1]})).data.spans
    assert root.get_attribute("mlflow.chat.tokenUsage")["total_tokens"] == 49
    assert [span.get_attribute("mlflow.chat.tokenUsage") for span in steps] == [None] * 3


def test_only_answers_of_the_same_run_to_the_same_question_are_compared() -> None:
    made = rollout("sft", 1)
    sampled = SampledRollout(model="sft", run="multihoprag", trajectory=made)
    others = [
        replace(sampled, model="base"),
        replace(sampled, run="multihoprag, greedy"),
        replace(sampled, trajectory=made.model_copy(update={"sample": 1})),
    ]
    previews = [
        build_trace(shown, OWNER, None, STARTED_NS).info.request_preview
        for shown in (sampled, *others)
    ]
    assert previews[0] == previews[1] == "Which port, 1? [multihoprag #0]"
    assert len(set(previews)) == 3


def test_without_recorded_times_durations_are_zero_and_a_tag_says_so() -> None:
    trace = traced(rollout("sft", 1))
    assert {(span.start_time_ns, span.end_time_ns) for span in trace.data.spans} == {
        (STARTED_NS, STARTED_NS)
    }
    assert (trace.info.tags["times"], trace.info.execution_duration) == (NO_TIMES, 0)


def test_spans_have_the_times_of_the_calls_that_wrote_their_messages() -> None:
    trajectory = rollout("sft", 1)
    # In the order of their ends; turn 2 was inserted
    steps = ((4, 9_000_000, 3_000_000), (3, 5_000_000, 2_000_000))
    times = RolloutTimes(
        question_id=trajectory.question_id,
        sample=0,
        trajectory=trajectory_digest(trajectory),
        start_ns=STARTED_NS,
        duration_ns=14_000_000,
        steps=tuple(
            TimedStep(kind="search", message=message, start_ns=start_ns, duration_ns=duration_ns)
            for message, start_ns, duration_ns in steps
        ),
    )
    shown = SampledRollout(model="sft", run="multihoprag", trajectory=trajectory)
    trace = build_trace(shown, OWNER, times, STARTED_NS + 10**12)
    milliseconds = [
        (
            (span.start_time_ns - STARTED_NS) // 10**6,
            ((span.end_time_ns or 0) - STARTED_NS) // 10**6,
        )
        for span in trace.data.spans
    ]
    assert milliseconds == [(0, 14), (0, 0), (5, 7), (9, 12)]
    assert (trace.info.request_time, trace.info.execution_duration) == (STARTED_NS // 10**6, 14)
    assert trace.info.tags["times"] == "recorded"


@pytest.mark.parametrize("arguments", ['{"query": ', "[" * 100_000], ids=["cut", "deeply nested"])
def test_arguments_that_are_no_json_are_shown_as_they_are(arguments: str) -> None:
    broken = ToolCall(id="call_1", name="retrieve", arguments=arguments)
    made = rollout("sft", 1)
    messages = (
        *made.messages[:2],
        Message(role="assistant", tool_calls=(broken,)),
        *made.messages[3:],
    )
    search = traced(made.model_copy(update={"messages": messages, "retrievals": ()})).data.spans[2]
    assert (search.span_type, search.inputs) == ("TOOL", {"arguments": arguments})
