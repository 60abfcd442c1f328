"""Answers of endpoints that cost money are asked for once, whatever becomes of code and scratch folders."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from deepsearch_rl.agent.collect import BulkRun, collect
from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.chat import client as client_module
from deepsearch_rl.chat.client import complete, open_client
from deepsearch_rl.chat.completion import Completion
from deepsearch_rl.chat.paid_answers import FILE, is_paid, read_answer
from tests.agent.conftest import ANSWER, QUESTION, ChatServer, Searches, completion
from tests.conftest import ROOT

FIELDS = {"temperature": 0.7, "max_tokens": 9}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder, in which the scripted server costs money."""
    monkeypatch.chdir(tmp_path)
    Path("work").mkdir()
    monkeypatch.setattr(client_module, "is_paid", lambda _: True)
    return tmp_path


def ask(server: ChatServer, *samples: int | None, text: str = "Who?", **fields: Any) -> list[str]:
    async def ask_all() -> list[Completion]:
        request: dict[str, Any] = (
            FIELDS | fields | {"messages": [{"role": "user", "content": text}]}
        )
        async with open_client(server.endpoint, 20.0) as client:
            calls = [
                complete(client, server.endpoint, sample=sample, **request) for sample in samples
            ]
            return await asyncio.gather(*calls)

    return [reply.message.text for reply in asyncio.run(ask_all())]


def test_an_equal_request_is_asked_once(chat_server: ChatServer) -> None:
    chat_server.script += [completion("one"), completion("two")]
    assert ask(chat_server, 0) == ask(chat_server, 0) == ["one"]
    assert len(chat_server.requests) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"text": "Where?"},
        {"temperature": 0.0},
        {"tools": [{"type": "function", "function": {"name": "retrieve"}}]},
    ],
)
def test_another_request_is_asked(chat_server: ChatServer, changes: dict[str, Any]) -> None:
    chat_server.script += [completion("one"), completion("two")]
    ask(chat_server, 0)
    assert ask(chat_server, 0, **changes) == ["two"]


def test_samples_of_one_request_differ_and_without_a_sample_nothing_is_kept(
    chat_server: ChatServer,
) -> None:
    chat_server.script += [completion(str(number)) for number in range(4)]
    assert ask(chat_server, 0) + ask(chat_server, 1) == ["0", "1"]
    assert ask(chat_server, None) + ask(chat_server, None) == ["2", "3"]


def test_many_answers_at_once_are_all_kept(chat_server: ChatServer) -> None:
    chat_server.reply = lambda _: completion(f"answer {len(chat_server.requests)}")
    first = ask(chat_server, *range(50))
    assert ask(chat_server, *range(50)) == first
    assert len(chat_server.requests) == 50


def test_errors_are_not_kept(chat_server: ChatServer) -> None:
    chat_server.fails(400, "no such parameter")
    chat_server.says("one")
    with pytest.raises(openai.BadRequestError):
        ask(chat_server, 0)
    assert ask(chat_server, 0) == ["one"]


def test_outside_a_project_nothing_is_written(chat_server: ChatServer) -> None:
    Path("work").rmdir()
    chat_server.says("one")
    ask(chat_server, 0)
    assert not FILE.parent.exists()


def test_rollouts_in_a_fresh_scratch_folder_ask_nothing_again(
    chat_server: ChatServer,
    searches: Searches,
    agent_config: Callable[..., AgentConfig],
    project: Path,
) -> None:
    """An edit of code gives a stage a new scratch folder."""
    chat_server.script += [completion(None, "one"), completion(None, "one"), completion(ANSWER)]
    texts: list[bytes] = []
    asked: list[int] = []
    for state in ("before", "after"):
        make_agent = partial(
            SearchAgent, agent_config(), chat_server.endpoint, searches.url, 0.7, seed=0
        )
        out = project / f"{state}.jsonl"
        run = BulkRun([QUESTION], 2, [make_agent], project / state / "log.jsonl", "test", out)
        collect(run, concurrency=1)
        texts.append(out.read_bytes())
        asked.append(len(chat_server.requests))

    assert texts[0] == texts[1]
    assert asked[1] == asked[0] > 2


WRITER = """
import itertools, sys
from deepsearch_rl.chat.paid_answers import keep_answer
for number in itertools.count():
    keep_answer(f"{sys.argv[1]} {number}", f"answer {number}")
    print(number, flush=True)
"""


@pytest.mark.slow
def test_two_writers_that_are_killed_leave_every_answer_that_they_reported(project: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with contextlib.ExitStack() as stack:
        writers: list[subprocess.Popen[str]] = []
        for name in ("a", "b"):
            command = [sys.executable, "-c", WRITER, name]
            writer = subprocess.Popen(
                command, cwd=project, env=environment, stdout=subprocess.PIPE, text=True
            )
            writers.append(stack.enter_context(writer))

        reported: list[int] = []
        for writer in writers:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(30)]
            writer.kill()
            reported.append(int(lines[-1]))

    for name, newest in zip(("a", "b"), reported, strict=True):
        for number in range(newest + 1):
            assert read_answer(f"{name} {number}") == f"answer {number}"


@pytest.mark.parametrize(
    ("base_url", "paid"),
    [
        ("https://api.example.com/v1", True),
        ("https://8.8.8.8/v1", True),
        ("http://127.0.0.1:8000/v1", False),
        ("http://localhost:8000/v1", False),
        ("http://vllm:8000/v1", False),
        ("http://192.168.0.7:8000/v1", False),
        ("http://gpu.local:8000/v1", False),
    ],
)
def test_a_server_of_your_own_costs_nothing(base_url: str, *, paid: bool) -> None:
    assert is_paid(base_url) is paid
