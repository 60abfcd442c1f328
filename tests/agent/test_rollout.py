"""One rollout through the real Agents SDK, a real chat server and a real MCP server, for every way that it can end."""

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.agent.search_tool import NO_SEARCHES_LEFT
from deepsearch_rl.agent.steps import NO_ROOM_LEFT
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.core.errors import EndpointError, UnknownNameError
from deepsearch_rl.core.profile import find_profile
from deepsearch_rl.core.records import Retrieval, StopReason, Trajectory
from tests.agent.conftest import ANSWER, QUESTION, completion, response
from tests.conftest import ROOT


@pytest.mark.slow
def test_an_answered_question_is_recorded_with_every_message_search_and_token(chat_server, answer):
    chat_server.says("", "director of Silent Harbor", tokens=(100, 10))
    chat_server.says(ANSWER, tokens=(150, 5))
    trajectory = answer(sample=2)
    assert (trajectory.id, trajectory.model, trajectory.stop_reason) == (
        "q1#2",
        "scripted-model",
        StopReason.ANSWERED,
    )
    assert trajectory.answer == "Mary Moss"
    assert trajectory.error is None
    assert [message.role for message in trajectory.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert (
        trajectory.messages[2].tool_calls[0].id == trajectory.messages[3].tool_call_id == "call_1"
    )
    query = "director of Silent Harbor"
    assert (
        trajectory.messages[3].content
        == f"[1] About {query}\nPart 0.\n\n[2] About {query}\nPart 1."
    )
    assert trajectory.retrievals == (
        Retrieval(query=query, chunk_ids=(f"{query}-0", f"{query}-1")),
    )
    assert (trajectory.prompt_tokens, trajectory.completion_tokens) == (250, 15)


@pytest.mark.slow
def test_requests_carry_the_frozen_schema_and_the_recorded_conversation(chat_server, answer):
    chat_server.says('<tool_call>\n{"name": "retrieve"}\n</tool_call>', "Zoë")
    chat_server.says(ANSWER)
    answer()
    first, second = chat_server.requests
    assert first["tools"] == second["tools"] == [RETRIEVE_TOOL]
    assert (first["temperature"], first["max_tokens"]) == (0.7, 64)
    assert not {"stream", "logprobs", "seed"} & set(first)
    call = second["messages"][2]
    assert (call["content"], call["tool_calls"][0]["function"]["arguments"]) == (
        "",
        '{"query": "Zoë"}',
    )
    assert second["messages"][3]["tool_call_id"] == call["tool_calls"][0]["id"]
    assert second["messages"][:2] == first["messages"]


def test_log_probabilities_are_asked_for_when_wanted(chat_server, answer):
    chat_server.says(ANSWER)
    answer(logprobs=True)
    assert chat_server.requests[0]["logprobs"] is True


def test_a_seed_makes_every_rollout_ask_for_its_own_and_always_the_same(chat_server, answer):
    chat_server.says(ANSWER)
    for sample in (0, 0, 1):
        answer(seed=7, sample=sample, logprobs=True)
    first, again, other = (request["seed"] for request in chat_server.requests)
    assert first == again != other
    assert all(
        request["logprobs"] and request["max_tokens"] == 64 for request in chat_server.requests
    )


def test_parallel_calls_run_at_once_and_are_recorded_in_their_order(chat_server, answer):
    chat_server.says("", "late", "one", "two")
    chat_server.says(ANSWER)
    trajectory = answer()
    assert [retrieval.query for retrieval in trajectory.retrievals] == ["late", "one", "two"]
    results = [message for message in trajectory.messages if message.role == "tool"]
    assert [message.tool_call_id for message in results] == ["call_1", "call_2", "call_3"]
    assert [message.content.partition("\n")[0] for message in results] == [
        "[1] About late",
        "[1] About one",
        "[1] About two",
    ]


@pytest.mark.parametrize(
    ("content", "stop_reason"),
    [
        ("<answer></answer>", StopReason.ANSWERED),
        ("Mary Moss", StopReason.NO_ANSWER_TAG),
        ("<answer>Ann</answer> <answer>Mary", StopReason.NO_ANSWER_TAG),
        (None, StopReason.NO_ANSWER_TAG),
        (
            "<think>\nPerhaps <answer>Ann Moss</answer>?\n</think>\n\nI cannot tell.",
            StopReason.NO_ANSWER_TAG,
        ),
        ("<think>\nPerhaps <tool_call>?\n</think>\n\nI cannot tell.", StopReason.NO_ANSWER_TAG),
    ],
)
def test_a_last_turn_is_an_answer_where_its_text_holds_a_pair_of_tags(
    chat_server, answer, content, stop_reason
):
    chat_server.says(content)
    trajectory = answer()
    assert (trajectory.stop_reason, trajectory.answer, trajectory.rounds) == (stop_reason, "", 1)


def test_a_model_told_that_its_searches_are_used_up_can_still_answer(chat_server, searches, answer):
    chat_server.says("", "one")
    chat_server.says("", "two")
    chat_server.says(ANSWER)
    trajectory = answer(max_searches=1)
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.messages[-2].content == NO_SEARCHES_LEFT
    assert searches.queries == ["one"]


def test_searching_on_after_being_told_ends_in_the_search_budget(chat_server, answer):
    chat_server.says("", "again")
    trajectory = answer(max_searches=1)
    assert trajectory.stop_reason is StopReason.SEARCH_BUDGET
    assert len(trajectory.retrievals) == 1


def test_searching_to_the_last_turn_ends_in_the_turn_budget(chat_server, answer):
    chat_server.says("", "again")
    trajectory = answer(max_turns=2)
    assert (trajectory.stop_reason, trajectory.rounds) == (StopReason.TURN_BUDGET, 2)


def test_a_context_without_room_for_a_whole_turn_is_asked_to_answer_in_what_is_left(
    chat_server, answer
):
    chat_server.says("", "one", tokens=(250, 20))
    chat_server.says(ANSWER)
    trajectory = answer(context_tokens=350)
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.ANSWERED, "Mary Moss")
    assert trajectory.messages[-2].content.endswith(f"Part 1.\n\n{NO_ROOM_LEFT}")
    assert trajectory.retrievals[0].chunk_ids == ("one-0", "one-1")
    assert 16 <= chat_server.requests[1]["max_tokens"] < 64


def test_passages_that_do_not_fit_give_way_to_the_request_for_an_answer(chat_server, answer):
    query = "the director of the film that was shot in Silent Harbor"
    chat_server.says("", query, query, tokens=(250, 60))
    chat_server.says(ANSWER)
    trajectory = answer(context_tokens=430)
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert [message.content for message in trajectory.messages[-3:-1]] == [
        NO_ROOM_LEFT,
        NO_ROOM_LEFT,
    ]
    assert [retrieval.chunk_ids for retrieval in trajectory.retrievals] == [(), ()]


def test_a_rollout_that_fails_out_of_context_ends_where_a_whole_turn_does_not_fit(
    chat_server, answer
):
    query = "the director of the film that was shot in Silent Harbor"
    chat_server.says("", query, query, tokens=(250, 60))
    trajectory = answer(context_tokens=430, out_of_context="fail")
    assert trajectory.stop_reason is StopReason.TOKEN_BUDGET
    assert "leave less than agent.max_tokens = " in (trajectory.error or "")
    assert not any(NO_ROOM_LEFT in message.content for message in trajectory.messages)
    assert len(chat_server.requests) == 1


def test_a_context_too_full_for_any_answer_ends_in_the_token_budget(chat_server, answer):
    chat_server.says("", "one", tokens=(1000, 20))
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.TOKEN_BUDGET
    assert len(chat_server.requests) == 1


def test_searching_on_when_asked_to_answer_for_want_of_room_ends_in_the_token_budget(
    chat_server, answer
):
    chat_server.says("", "one", tokens=(880, 30))
    chat_server.says("", "two")
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.TOKEN_BUDGET
    assert len(trajectory.retrievals) == 1


def test_reasoning_that_is_not_sent_again_takes_no_room(chat_server, answer):
    thought = "Well. " * 400
    chat_server.says("", "one", tokens=(300, 640), reasoning=thought)
    chat_server.says(ANSWER)
    trajectory = answer(max_tokens=700, answer_tokens=600)
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.messages[2].reasoning == thought
    assert "Well." not in json.dumps(chat_server.requests[1])


def test_with_history_reasoning_the_thought_is_sent_again(chat_server, answer):
    chat_server.says("", "one", reasoning="One fact first.")
    chat_server.says(ANSWER)
    answer(history_reasoning=True)
    assert chat_server.requests[1]["messages"][2]["reasoning"] == "One fact first."


def test_of_a_result_longer_than_an_observation_may_be_the_last_passages_are_left_out(
    chat_server, answer
):
    chat_server.says("", "one", tokens=(700, 20))
    chat_server.says(ANSWER)
    trajectory = answer(max_observation_tokens=25)
    assert trajectory.messages[3].content == "[1] About one\nPart 0."
    assert trajectory.retrievals[0].chunk_ids == ("one-0",)


def test_an_answer_cut_by_the_token_limit_ends_in_the_token_budget(chat_server, answer):
    chat_server.says('<tool_call>\n{"name": "retr', tokens=(100, 64), finish_reason="length")
    assert answer().stop_reason is StopReason.TOKEN_BUDGET


@pytest.mark.slow
def test_a_model_server_that_hangs_until_the_deadline_has_failed(chat_server, answer):
    chat_server.hangs()
    trajectory = answer(timeout_s=0.3)
    assert trajectory.stop_reason is StopReason.MODEL_ERROR
    assert "not finished after 0.3 s" in (trajectory.error or "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "stop_reason"),
    [("slow", StopReason.TOOL_ERROR), ("quick", StopReason.MODEL_ERROR)],
)
def test_waiting_for_the_model_servers_limits_is_no_time_in_which_the_model_wrote(
    chat_server, answer, monkeypatch, query, stop_reason
):
    monkeypatch.setattr("deepsearch_rl.chat.client.FIRST_FULL_WAIT_S", 0.7)
    chat_server.script.append(response({"error": {"message": "full"}}, 429))
    chat_server.says("", query, tokens=(100, 60))
    chat_server.hangs()
    assert answer(timeout_s=0.6).stop_reason is stop_reason


def writes_for(seconds: float, body: str) -> Callable[[Any], None]:
    """Send a reply after some seconds, as a model that writes for so long."""

    def send(handler: Any) -> None:
        time.sleep(seconds)
        with contextlib.suppress(OSError):  # the agent may be gone
            response(body)(handler)

    return send


@pytest.mark.slow
def test_a_model_that_writes_until_the_deadline_ends_there_by_its_own_length(chat_server, answer):
    chat_server.script.append(writes_for(0.15, completion("", "again", tokens=(100, 8))))
    assert answer(timeout_s=0.7, max_turns=99, max_searches=99).stop_reason is StopReason.DEADLINE


@pytest.mark.slow
def test_a_turn_that_takes_longer_than_its_tokens_can_is_a_server_that_hangs(chat_server, answer):
    chat_server.script.append(writes_for(0.02, completion("", "one", tokens=(100, 60))))
    chat_server.hangs()
    assert answer(timeout_s=0.6).stop_reason is StopReason.MODEL_ERROR


@pytest.mark.slow
def test_a_turn_that_was_asked_for_again_in_less_room_is_the_models_no_longer_than_that_takes(
    chat_server, answer
):
    chat_server.script.append(writes_for(0.1, completion("", "one", tokens=(100, 4))))
    chat_server.fails(400, "This model's maximum context length is 1024 tokens.")
    chat_server.hangs()
    assert answer(timeout_s=0.6, answer_tokens=4).stop_reason is StopReason.MODEL_ERROR


@pytest.mark.slow
def test_a_turn_that_can_still_be_written_at_the_deadline_is_the_models(chat_server, answer):
    chat_server.script.append(writes_for(0.1, completion("", "one", tokens=(100, 2))))
    chat_server.hangs()
    assert answer(timeout_s=0.6).stop_reason is StopReason.DEADLINE


@pytest.mark.slow
def test_a_session_whose_search_was_cut_off_by_the_deadline_still_searches(
    chat_server, searches, agent_config
):
    async def two_rollouts() -> list[StopReason]:
        async with SearchAgent(
            agent_config(timeout_s=0.5), chat_server.endpoint, searches.url, 0.7
        ) as agent:
            return [(await agent.answer(QUESTION, sample)).stop_reason for sample in range(2)]

    chat_server.says("", "slow")
    chat_server.says("", "quick")
    chat_server.says(ANSWER)
    assert asyncio.run(two_rollouts()) == [StopReason.TOOL_ERROR, StopReason.ANSWERED]


def test_half_a_surrogate_pair_in_an_answer_can_be_stored(chat_server, answer):
    chat_server.says("<answer>caf\ud83d</answer>")
    trajectory = answer()
    assert trajectory.answer == "caf?"
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


def test_an_endpoint_that_counts_no_tokens_leaves_no_usage(chat_server, answer):
    chat_server.says(ANSWER, tokens=(0, 0))
    assert answer().usage == ()


def test_a_search_that_fails_once_is_repeated(chat_server, searches, answer):
    searches.failures = 1
    chat_server.says("", "one")
    chat_server.says(ANSWER)
    assert answer().stop_reason is StopReason.ANSWERED
    assert searches.queries == ["one", "one"]


def test_a_search_that_keeps_failing_is_an_error_and_never_an_empty_result(
    chat_server, searches, answer
):
    searches.failures = -1
    chat_server.says("", "one")
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.TOOL_ERROR
    assert "the index is broken" in (trajectory.error or "")
    assert trajectory.retrievals == ()
    assert all(message.role != "tool" for message in trajectory.messages)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_failure_of_the_model_server_is_retried(chat_server, answer, status):
    chat_server.fails(status, "busy")
    chat_server.says(ANSWER)
    assert answer().stop_reason is StopReason.ANSWERED


def test_a_model_server_that_keeps_failing_is_a_model_error_after_three_retries(
    chat_server, answer
):
    chat_server.fails(500, "broken")
    assert answer().stop_reason is StopReason.MODEL_ERROR
    assert len(chat_server.requests) == 4


def test_a_refused_key_is_not_retried_and_never_quoted(chat_server, answer):
    chat_server.fails(401, f"Incorrect API key provided: {chat_server.endpoint.api_key}")
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.MODEL_ERROR
    assert len(chat_server.requests) == 1
    assert chat_server.endpoint.api_key not in trajectory.model_dump_json() + repr(
        chat_server.endpoint
    )


def test_user_and_password_of_an_address_are_never_quoted(chat_server, answer):
    address = chat_server.url.replace("http://", "http://me:top%20secret@")
    basic = base64.b64encode(b"me:top secret").decode()
    chat_server.fails(401, f"Refused: Basic {basic}, {address}")
    endpoint = Endpoint(address, "m")
    trajectory = answer(endpoint=endpoint)
    assert trajectory.error is not None
    assert "Refused: Basic ***, http://***@127.0.0.1" in trajectory.error
    assert "secret" not in repr(endpoint)


@pytest.mark.slow
def test_an_unreachable_model_server_is_a_model_error(answer):
    trajectory = answer(endpoint=Endpoint("http://127.0.0.1:9/v1", "m"))
    assert trajectory.stop_reason is StopReason.MODEL_ERROR


def test_an_unreachable_retrieval_server_stops_the_agent_before_any_question(answer):
    with pytest.raises(EndpointError, match="retrieval server"):
        answer(url="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("field", "name", "nearest"),
    [("prompt", "tinny", "tiny"), ("protocol", "function", "function_calling")],
)
def test_an_unknown_prompt_or_protocol_is_refused_with_the_nearest_names(field, name, nearest):
    params = find_profile(ROOT, "tiny").with_overrides({f"agent.{field}": name})
    with pytest.raises(UnknownNameError, match=nearest):
        params.section("agent", AgentConfig)


def test_limits_that_leave_no_room_for_a_prompt_are_refused(agent_config):
    with pytest.raises(ValueError, match="no room"):
        agent_config(max_tokens=1024)


@pytest.mark.parametrize("ids", [("a", "a"), ("", ""), ("call_1", "call_1")])
def test_call_ids_that_a_server_repeats_or_leaves_empty_are_made_distinct(
    chat_server, searches, answer, ids
):
    first, second = ids
    chat_server.says(
        "", ("retrieve", '{"query": "one"}', first), ("retrieve", '{"query": "two"}', second)
    )
    chat_server.says("", ("retrieve", '{"query": "three"}', first))
    chat_server.says(ANSWER)
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert sorted(searches.queries) == ["one", "three", "two"]
    sent = chat_server.requests[-1]["messages"]
    called = [call["id"] for message in sent for call in message.get("tool_calls", ())]
    assert called == [message["tool_call_id"] for message in sent if message["role"] == "tool"]
    assert len(set(called)) == 3


@pytest.mark.slow
def test_a_model_call_that_hangs_once_is_repeated_within_the_deadline(chat_server, answer):
    chat_server.hangs()
    chat_server.says(ANSWER)
    assert answer(call_timeout_s=0.3).stop_reason is StopReason.ANSWERED


def test_a_first_prompt_without_room_for_a_whole_turn_is_asked_for_a_shorter_one(
    chat_server, answer
):
    chat_server.fails(400, "This model's maximum context length is 1024 tokens.")
    chat_server.says(ANSWER)
    assert answer(max_tokens=700).stop_reason is StopReason.ANSWERED
    assert [request["max_tokens"] for request in chat_server.requests] == [700, 16]


def test_a_turn_that_was_asked_for_again_in_less_room_is_cut_by_the_limit_that_it_was_given(
    chat_server, answer
):
    chat_server.fails(400, "This model's maximum context length is 1024 tokens.")
    chat_server.says("Mary Mo", tokens=(100, 16), finish_reason="length")
    trajectory = answer(max_tokens=700)
    assert trajectory.stop_reason is StopReason.TOKEN_BUDGET
    assert trajectory.error == "cut after 16 tokens"


def test_an_endpoint_that_counts_nothing_is_held_to_guesses_and_judges_itself(chat_server, answer):
    chat_server.says("", "one", tokens=(0, 0))
    chat_server.says(ANSWER, tokens=(0, 0))
    trajectory = answer(context_tokens=330, max_observation_tokens=10)
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.messages[-2].content == f"[1] About one\nPart 0.\n\n{NO_ROOM_LEFT}"


def test_reasoning_that_is_sent_again_makes_observations_no_longer(chat_server, answer):
    thought = "Well, which fact is missing? " * 100
    chat_server.says("", "one", reasoning=thought, tokens=(250, 800))
    chat_server.says("", "two", reasoning=thought, tokens=(1250, 800))
    chat_server.says(ANSWER)
    trajectory = answer(history_reasoning=True, context_tokens=2600, max_tokens=200)
    assert [
        message.content for message in trajectory.messages if NO_ROOM_LEFT in message.content
    ] == []


def test_a_search_without_a_turn_left_to_read_it_is_not_made(chat_server, searches, answer):
    chat_server.says("", "one")
    trajectory = answer(max_turns=1)
    assert (trajectory.stop_reason, trajectory.retrievals, searches.queries) == (
        StopReason.TURN_BUDGET,
        (),
        [],
    )


def test_without_searches_the_first_is_answered_with_the_notice(chat_server, searches, answer):
    chat_server.says("", "one")
    chat_server.says(ANSWER)
    trajectory = answer(max_searches=0)
    assert trajectory.messages[3].content == NO_SEARCHES_LEFT
    assert (trajectory.stop_reason, trajectory.retrievals, searches.queries) == (
        StopReason.ANSWERED,
        (),
        [],
    )


@pytest.mark.slow
def test_a_search_that_was_carried_out_but_never_read_shows_no_chunks(chat_server, answer):
    chat_server.says("", "one", "slow")
    trajectory = answer(timeout_s=0.5)
    assert trajectory.stop_reason is StopReason.TOOL_ERROR
    assert [(one.query, one.chunk_ids) for one in trajectory.retrievals] == [("one", ())]
    assert all(message.role != "tool" for message in trajectory.messages)
