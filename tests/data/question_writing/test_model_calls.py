"""The calls of the model that writes questions: what is asked, what is kept, and when asking stops."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.files import AppendLog, read_jsonl
from deepsearch_rl.data.question_writing.model_calls import Call, LoggedModel, WriterConfig
from tests.agent.conftest import ChatServer, chat_server
from tests.evaluate.chat import ChatEndpoint, says, serve_chat

__all__ = ["chat_server"]


def logged_model(chat: ChatEndpoint | ChatServer, log: AppendLog, **changes: Any) -> LoggedModel:
    values: dict[str, Any] = {"temperature": 0.7, "max_tokens": 100, "timeout_s": 20}
    config = WriterConfig(endpoint="models/own/api", concurrency=2, **(values | changes))
    return LoggedModel(config, chat.endpoint, log)


@pytest.mark.slow
def test_no_prompt_is_begun_after_a_failure_and_finished_replies_are_kept(tmp_path: Path) -> None:
    def reply(body: dict[str, Any]) -> dict[str, Any] | int:
        return says("yes") if body["messages"][0]["content"] == "prompt 0" else 401

    prompts = [(f"prompt {number}", 0) for number in range(20)]
    with serve_chat(reply) as chat, AppendLog(tmp_path / "replies.jsonl") as log:
        with pytest.raises(EndpointError, match="correct the key"):
            logged_model(chat, log).ask_all(prompts)
        # Two at once: the first reply makes room for one more
        assert len(chat.requests) <= 3
        asked = len(chat.requests)
        assert logged_model(chat, log).ask_all(prompts[:1]) == ["yes"]
        assert len(chat.requests) == asked


@pytest.mark.slow
def test_the_error_of_a_hanging_server_names_the_setting(tmp_path: Path) -> None:
    with serve_chat(lambda _: 200) as chat, AppendLog(tmp_path / "replies.jsonl") as log:
        model = logged_model(chat, log, timeout_s=1e-6)
        with pytest.raises(EndpointError, match=r"timed out.*timeout_s of make_questions\.writer"):
            model.ask_all([("prompt", 0)])


ROWS = '{"questions": []}'


@pytest.mark.parametrize(
    ("text", "begins_in_thought", "said"),
    [
        (f"<think>{{a draft}}</think>\n{ROWS}", False, ROWS),
        (f"<thinking>Perhaps {{so}}.</thinking>{ROWS}", False, ROWS),
        (f"{{a draft}}</think>{ROWS}", True, ROWS),
        ("{a draft that was cut", True, ""),
        (ROWS, False, ROWS),
    ],
)
def test_a_thought_is_no_part_of_what_the_model_says_and_the_log_keeps_it(
    tmp_path: Path, text: str, begins_in_thought: bool, said: str
) -> None:
    with serve_chat(lambda _: says(text)) as chat, AppendLog(tmp_path / "replies.jsonl") as log:
        chat.endpoint = replace(chat.endpoint, begins_in_thought=begins_in_thought)
        asked = logged_model(chat, log).ask_all([("prompt", 0)])
        from_log = logged_model(chat, log).ask_all([("prompt", 0)])
        assert len(chat.requests) == 1

    assert asked == from_log == [said]
    [call] = read_jsonl(log.path, Call)
    assert call.text == text


def test_replies_that_the_limit_cut_are_counted_also_where_they_come_from_the_log(
    chat_server: ChatServer, tmp_path: Path
) -> None:
    chat_server.says("", reasoning="Let me think", finish_reason="length")
    chat_server.says(ROWS)
    with AppendLog(tmp_path / "replies.jsonl") as log:
        for _ in range(2):
            model = logged_model(chat_server, log)
            assert model.ask_all([("prompt", 0)]) == [""]
            assert model.ask_all([("other", 0)]) == [ROWS]
            assert model.cut == 1
    assert len(chat_server.requests) == 2
