"""Search-R1's tag protocol through the same rollout function as native calls."""

import math
from functools import partial

import pytest

from deepsearch_rl.agent.protocols import INVALID_ACTION, RolloutPolicy
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.agent.search_tool import NO_SEARCHES_LEFT
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.records import Question, StopReason
from tests.agent.conftest import Answer

QUESTION = Question(
    id="q1", question="Where was the director of Silent Harbor born?", golden_answers=("Stoke",)
)
INFORMATION = "\n\n<information>Doc 1(Title: About {0}) Part 0.\nDoc 2(Title: About {0}) Part 1.</information>\n\n"


@pytest.fixture
def answer(answer: Answer) -> Answer:
    """Runs one rollout by the tags."""
    return partial(answer, protocol="search_tags", prompt="search_tags", question=QUESTION)


@pytest.mark.slow
def test_a_rollout_is_one_user_message_and_one_text_that_grows(chat_server, answer):
    chat_server.says("<think>Who?</think>\n<search> director of Silent Harbor </search>")
    chat_server.says("<think>Ann.</think>\n<answer> Stoke </answer>")
    trajectory = answer()
    assert (trajectory.stop_reason, trajectory.answer, trajectory.protocol) == (
        "answered",
        "Stoke",
        "search_tags",
    )
    assert [message.role for message in trajectory.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    first, second = chat_server.requests
    assert [message["role"] for message in first["messages"]] == ["user"]
    assert first["messages"][0]["content"].endswith(f"Question: {QUESTION.question}")
    assert "continue_final_message" not in first
    assert "tools" not in first
    written = "<think>Who?</think>\n<search> director of Silent Harbor </search>"
    assert second["messages"][1] == {
        "role": "assistant",
        "content": written + INFORMATION.format("director of Silent Harbor"),
    }
    assert (second["continue_final_message"], second["add_generation_prompt"]) == (True, False)
    assert second["stop"] == ["</search>", "</answer>"]


def test_searches_are_recorded_like_those_of_native_calls(chat_server, answer):
    chat_server.says("<search>one</search>")
    chat_server.says("<answer>Stoke</answer>")
    trajectory = answer()
    assert [retrieval.query for retrieval in trajectory.retrievals] == ["one"]
    assert (
        trajectory.messages[1].tool_calls[0].id == trajectory.messages[2].tool_call_id == "call_1"
    )
    assert trajectory.tool_calls == 1


@pytest.mark.parametrize(
    ("said", "query"),
    [
        # It knows no stop strings
        ("<search>one</search><information>made up</information><answer>x</answer>", "one"),
        ("<think>no <answer> yet</think><search>one</search>", "one"),
        ("<think>no <answer> yet</think><search>one</search> <answer>made up</answer>", "one"),
        ("<search>one</search> <search>two</search>", "one"),
    ],
)
def test_the_first_search_or_answer_of_a_turn_is_its_action(chat_server, answer, said, query):
    chat_server.says(said)
    chat_server.says("<answer>Stoke</answer>")
    trajectory = answer()
    assert [retrieval.query for retrieval in trajectory.retrievals] == [query]
    assert trajectory.messages[1].content.endswith(f"<search>{query}</search>")
    assert "made up" not in trajectory.model_dump_json()


def test_a_stop_string_that_the_server_leaves_out_is_put_back(chat_server, answer):
    chat_server.says("<search>one", stop_reason="</search>")
    chat_server.says("<answer>Stoke", stop_reason="</answer>")
    trajectory = answer()
    assert trajectory.messages[1].content == "<search>one</search>"
    assert (trajectory.answer, trajectory.retrievals[0].query) == ("Stoke", "one")


def test_a_turn_that_ended_by_itself_behind_an_open_tag_is_no_action(chat_server, searches, answer):
    chat_server.says("I could use <search> to find it, but I know it.")
    chat_server.says("<answer>Stoke</answer>")
    trajectory = answer()
    assert searches.queries == []
    assert trajectory.messages[2].content == INVALID_ACTION


def test_an_answer_that_came_first_is_the_answer_whatever_is_written_after_it(chat_server, answer):
    chat_server.says("<answer>Stoke</answer> <search>one</search>")
    trajectory = answer()
    assert (trajectory.answer, trajectory.retrievals) == ("Stoke", ())


@pytest.mark.parametrize("said", ["Let me think.", "", "<search> </search>"])
def test_a_turn_without_an_action_is_told_so_and_counts(chat_server, answer, said):
    chat_server.says(said)
    chat_server.says("<answer>Stoke</answer>")
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert (trajectory.messages[2].role, trajectory.messages[2].content) == ("tool", INVALID_ACTION)
    assert chat_server.requests[1]["messages"][1]["content"] == said + INVALID_ACTION
    assert trajectory.rounds == 2


def test_passages_that_were_read_stay_recorded_when_room_runs_out_after_a_correction(
    chat_server, answer
):
    chat_server.says("<search>one</search>", tokens=(100, 10))
    chat_server.says("Hm.", tokens=(1000, 1))
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.TOKEN_BUDGET
    assert trajectory.retrievals[0].chunk_ids == ("one-0", "one-1")


def test_the_room_after_a_prompt_that_was_too_long_is_that_of_the_prompt_without_passages(
    chat_server, answer
):
    chat_server.says("<search>one</search>", tokens=(100, 10))
    chat_server.fails(400, "This model's maximum context length is 1024 tokens.")
    chat_server.says("Hm.", tokens=(300, 1))
    chat_server.says("<answer>Stoke</answer>")
    answer(context_tokens=380)
    _, _, asked_again, last = chat_server.requests
    shorter, longer = (
        60 + sum(len(message["content"]) for message in request["messages"])
        for request in (asked_again, last)
    )
    added = math.ceil((longer - shorter) * 300 / shorter)
    assert 16 < last["max_tokens"] == 380 - 300 - added < 64


def test_invalid_turns_to_the_last_end_in_the_turn_budget(chat_server, answer):
    chat_server.says("Hm.")
    trajectory = answer(max_turns=3)
    assert (trajectory.stop_reason, trajectory.rounds) == (StopReason.TURN_BUDGET, 3)


def test_used_up_searches_are_answered_with_a_notice(chat_server, searches, answer):
    chat_server.says("<search>one</search>")
    chat_server.says("<search>two</search>")
    chat_server.says("<answer>Stoke</answer>")
    trajectory = answer(max_searches=1)
    assert (
        trajectory.messages[-2].content == f"\n\n<information>{NO_SEARCHES_LEFT}</information>\n\n"
    )
    assert (trajectory.stop_reason, searches.queries) == (StopReason.ANSWERED, ["one"])


def test_a_turn_that_the_token_limit_cut_before_its_action_ends_the_rollout(chat_server, answer):
    chat_server.says("<think>So many words <search>on", tokens=(100, 64), finish_reason="length")
    assert answer().stop_reason is StopReason.TOKEN_BUDGET


def test_a_thought_that_the_server_took_out_of_the_text_is_put_back(chat_server, answer):
    chat_server.says("<search>one</search>", reasoning="Who?")
    chat_server.says("<answer>Stoke</answer>")
    answer()
    assert chat_server.requests[1]["messages"][1]["content"].startswith(
        "<think>Who?</think><search>one</search>\n\n"
    )


def test_a_scripted_model_cannot_write_tags(agent_config):
    with pytest.raises(ConfigError, match="function_calling"):
        SearchAgent(agent_config(protocol="search_tags"), _no_policy, "http://127.0.0.1:1", 0.0)


def _no_policy(_question: Question, _sample: int) -> RolloutPolicy:
    raise AssertionError("no rollout may begin")
