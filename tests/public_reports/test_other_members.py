"""Further inputs of the kinds that public reports began, against real parts on loopback."""

import asyncio
import contextlib
import dataclasses
import functools
import gzip
import itertools
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import numpy as np
import pandas as pd
import psutil
import pytest
import requests
from pydantic import ValidationError

from deepsearch_rl.agent.steps import NO_ROOM_LEFT
from deepsearch_rl.chat import chat_messages
from deepsearch_rl.chat.endpoint import read_remote, resolve_endpoint
from deepsearch_rl.chat.request_options import RequestOptions
from deepsearch_rl.core import files, processes
from deepsearch_rl.core.answers import f1
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.processes import running_server
from deepsearch_rl.core.rate_limits import rate_limits
from deepsearch_rl.core.records import StopReason
from deepsearch_rl.data.catalogue import CORPUS_FORMATS, QUESTION_FORMATS
from deepsearch_rl.data.flashrag import read_questions
from deepsearch_rl.data.titles import title_key
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.encoders.remote import RemoteEncoder
from deepsearch_rl.search.searcher import open_index
from deepsearch_rl.server import connections
from deepsearch_rl.server.batching import SearchFailedError
from deepsearch_rl.server.connections import ConnectionLimit, LimitedConnection
from deepsearch_rl.server.launch import serve_index
from deepsearch_rl.server.online.endpoint import OnlineConfig, SearchEndpoint
from deepsearch_rl.server.online.searcher import OnlineSearcher
from deepsearch_rl.server.requests import Guard
from deepsearch_rl.server.rerank import CrossEncoder
from deepsearch_rl.server.service import RetrievalApp
from tests.agent.conftest import ANSWER, Answer, response
from tests.chunks import make_chunks
from tests.ports import free_port
from tests.public_reports.conftest import LimitClock
from tests.public_reports.test_agent import reply
from tests.public_reports.test_server import (
    EncodingSearcher,
    ask_each,
    embeddings_config,
    peak_memory_bytes,
)
from tests.search.encoders.folders import transformers_config
from tests.search.server.searchers import engine, open_searcher, service_config
from tests.search.test_rerank import config as reranker_config
from tests.search.test_rerank import write_model
from tests.search_servers import in_thread, serve_app
from tests.settings import INDEX, RETRIEVAL

Reply = tuple[int, Any, Mapping[str, str]]
"""Status, body (bytes as they are, anything else as JSON), headers."""
Behaviour = Callable[[list[str]], Reply | None]
"""What a server answers to texts; None closes the connection without an answer."""


class Server(ThreadingHTTPServer):
    """Answers a request for texts as a function says, and remembers the texts of each."""

    request_queue_size = 128

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.asked: list[list[str]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, *_: object) -> None:
        """Stay quiet about clients that have gone."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(json.loads(body)["input"])

    def do_GET(self) -> None:
        self.answer(parse_qs(urlsplit(self.path).query)["q"])

    def answer(self, texts: list[str]) -> None:
        self.server.asked.append(texts)
        answer = self.server.behaviour(texts)
        if answer is None:
            self.connection.close()
            return

        status, content, headers = answer
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@pytest.fixture
def serve() -> Iterator[Callable[[Behaviour], Server]]:
    """Starts servers that run until the end of the test."""
    with contextlib.ExitStack() as stack:

        def start(behaviour: Behaviour) -> Server:
            server = Server(behaviour)
            stack.enter_context(in_thread(server))
            return server

        yield start


POISON = "q9"  # the one query of 64 that a server does not like


def vectors(texts: list[str], number: float | None = 1.0) -> Reply:
    rows = [{"index": row, "embedding": [number, 0.0]} for row in range(len(texts))]
    return 200, {"data": rows}, {}


def nan_for(texts: list[str], of: set[str]) -> Reply:
    rows = [
        {"index": row, "embedding": [float("nan") if text in of else 1.0, 0.0]}
        for row, text in enumerate(texts)
    ]
    return 200, {"data": rows}, {}


def unless_poisoned(answer: Callable[[list[str]], Reply], bad: Reply | None) -> Behaviour:
    return lambda texts: bad if POISON in texts else answer(texts)


def hangs(_: list[str]) -> Reply:
    time.sleep(4.0)
    return 200, {}, {}


@pytest.fixture
def timeout_s(request: pytest.FixtureRequest) -> float:
    """Short where the server hangs; elsewhere a busy machine must not make a query late."""
    return 1.5 if "hangs" in request.node.callspec.id else 30.0


# What the server does, how many of 64 queries fail, how many requests they may cost
EMBEDDINGS: dict[str, tuple[Behaviour, int, int]] = {
    "is down": (lambda _: (503, {"error": "x"}, {}), 64, 2),  # one attempt and one probe
    "refuses everything": (lambda _: (400, {"error": "x"}, {}), 64, 2),
    "a wrong key": (lambda _: (401, {"error": "x"}, {}), 64, 1),
    "refuses a text": (unless_poisoned(vectors, (400, {"error": "x"}, {})), 1, 20),
    "fails at a text": (unless_poisoned(vectors, (500, {"error": "x"}, {})), 1, 20),
    "hangs": (hangs, 64, 1),
    "loses every connection": (lambda _: None, 64, 2),
    "a page of HTML": (lambda _: (200, b"<html>", {}), 64, 1),
    "an error under status 200": (lambda _: (200, {"error": {"message": "x"}}, {}), 64, 1),
    "another dimension": (
        lambda texts: (200, {"data": [{"index": r, "embedding": [1.0]} for r in range(len(texts))]}, {}),
        64,
        1,
    ),
    "a vector too few": (lambda texts: vectors(texts[1:]), 64, 1),
    "null for every number": (lambda texts: vectors(texts, None), 64, 1),
    "NaN for every text": (lambda texts: nan_for(texts, set(texts)), 64, 1),
    "NaN for one text": (lambda texts: nan_for(texts, {POISON}), 1, 13),
    "no such model": (lambda _: (404, {"error": "x"}, {}), 64, 1),
    "a key that may not": (lambda _: (403, {"error": "x"}, {}), 64, 1),
    "a quota that is out": (lambda _: (429, {"error": "insufficient_quota"}, {}), 64, 1),
    "too many texts at once": (
        lambda texts: (413, {"error": "x"}, {}) if len(texts) > 16 else vectors(texts),
        0,
        10,
    ),
    "a text that it cannot read": (unless_poisoned(vectors, (422, {"error": "x"}, {})), 1, 20),
    "a text that it dies of": (unless_poisoned(vectors, None), 1, 20),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("behaviour", "failures", "requests"), EMBEDDINGS.values(), ids=EMBEDDINGS)
def test_an_embeddings_server_that_fails_in_whatever_way_is_asked_a_few_times_for_a_batch(
    serve: Callable[[Behaviour], Server],
    timeout_s: float,
    behaviour: Behaviour,
    failures: int,
    requests: int,
) -> None:
    server = serve(behaviour)
    config = embeddings_config(server, timeout_s=timeout_s, rate_limit_wait_s=0)
    answers = asyncio.run(ask_each(EncodingSearcher(RemoteEncoder(config))))
    assert sum(isinstance(answer, SearchFailedError) for answer in answers) == failures
    assert len(server.asked) <= requests


def results(texts: list[str]) -> Reply:
    return 200, [{"text": f"about {texts[0]}"}], {}


ENDPOINTS: dict[str, tuple[Behaviour, int, int]] = {
    "refuses every query": (lambda _: (400, b"refused", {}), 64, 64),
    "refuses one query": (unless_poisoned(results, (400, b"refused", {})), 1, 64),
    "a wrong key": (lambda _: (401, b"refused", {}), 64, 4),
    "hangs": (hangs, 64, 10),
    "loses every connection": (lambda _: None, 64, 10),
    "fails always": (lambda _: (500, {}, {}), 64, 10),
    "leads elsewhere": (lambda _: (302, b"", {"Location": "/login"}), 64, 5),
    "forbids everything": (lambda _: (403, {}, {}), 64, 5),
    "has no money": (lambda _: (402, {}, {}), 64, 4),
    "takes no more today": (lambda _: (429, {}, {"Retry-After": "3600"}), 64, 4),
    "fails at one query": (unless_poisoned(results, (500, b"oops", {})), 1, 66),
    "dies of one query": (unless_poisoned(results, None), 1, 66),
    "hangs at one query": (
        lambda texts: hangs(texts) if POISON in texts else results(texts),
        1,
        66,
    ),
    "a firewall that forbids one query": (unless_poisoned(results, (403, b"blocked", {})), 1, 64),
    "leads elsewhere for one query": (
        unless_poisoned(results, (302, b"", {"Location": "/captcha"})),
        1,
        64,
    ),
    "a page of HTML for one query": (unless_poisoned(results, (200, b"<html>", {})), 1, 64),
}


@pytest.mark.slow
@pytest.mark.parametrize(("behaviour", "failures", "requests"), ENDPOINTS.values(), ids=ENDPOINTS)
def test_a_query_that_a_search_endpoint_fails_at_takes_no_other_with_it(
    serve: Callable[[Behaviour], Server],
    timeout_s: float,
    behaviour: Behaviour,
    failures: int,
    requests: int,
) -> None:
    server = serve(behaviour)
    config = OnlineConfig.model_validate(
        {
            "name": "web",
            "url": f"http://127.0.0.1:{server.server_port}/?q={{query}}",
            "fields": {"results": None, "text": "text"},
            "max_concurrency": 4,
            "timeout_s": timeout_s,
            "attempts": 2,
            "backoff_s": 0.001,
            "rate_limit_wait_s": 0,
        }
    )
    answers = asyncio.run(ask_each(OnlineSearcher(SearchEndpoint(config))))
    assert sum(isinstance(answer, SearchFailedError) for answer in answers) == failures
    assert len(server.asked) <= requests


@pytest.mark.parametrize(
    "query",
    [
        "comet " * 5461,
        "comet lander " * 2500,
        "x" * 32_768,
        "comet" + " " * 32_000 + "lander",
        "comet? " * 4000,
    ],
    ids=["one word", "two words", "no blank", "blanks", "sentences"],
)
def test_a_reranker_reads_no_more_of_a_query_than_fits_a_pair(tmp_path: Path, query: str) -> None:
    encoder = CrossEncoder(reranker_config(write_model(tmp_path, 1)))
    part = encoder._readable_part(query)
    tokenizer = encoder._model.tokenizer
    assert query.startswith(part)
    assert len(tokenizer.tokenize(part)) <= 128
    passages = ["comet", "river " * 30, "orbit moon " * 10]
    whole = tokenizer(
        [query] * 3,
        passages,
        truncation="longest_first",
        max_length=64,
        padding=True,
        return_tensors="pt",
    )
    expected = encoder._model.model(**whole).logits[:, 0].detach().numpy()
    scores = encoder.score([(query, passage) for passage in passages])
    np.testing.assert_allclose(scores, expected, atol=1e-4)


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs/pr/1", "abc123", "F52BF8E", ""])
def test_an_encoders_revision_that_can_move_is_refused(tmp_path: Path, revision: str) -> None:
    with pytest.raises(ValidationError, match="is no commit"):
        transformers_config(tmp_path, revision=revision)


SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            print("the reason", flush=True)
            os._exit(7)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dies", "error"),
    [(True, None), (True, ValueError), (True, KeyboardInterrupt), (False, None), (False, ValueError)],
)  # fmt: skip
def test_the_log_of_a_server_that_ended_by_itself_is_kept_however_the_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool, error: type[BaseException] | None
) -> None:
    monkeypatch.setattr(processes.tempfile, "tempdir", str(tmp_path))
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-c", SERVER, url.rpartition(":")[2]]
    with (
        contextlib.suppress(ValueError, KeyboardInterrupt),
        running_server("the server", command, url, "/health", 30) as server,
    ):
        if dies:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{url}/die")
            server.process.wait(30)
        if error is not None:
            raise error
    logs = list(tmp_path.glob("deepsearch-*/output.log"))
    assert [log.read_text() for log in logs] == (["the reason\n"] if dies else [])


@pytest.mark.slow
def test_a_writer_in_another_container_of_the_same_name_keeps_its_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    program = "from deepsearch_rl.core import files; print(files._MACHINE)"
    here = subprocess.check_output([sys.executable, "-c", program], text=True).strip()
    assert here == files._MACHINE
    ended = psutil.Popen([sys.executable, "-c", ""])
    ended.wait()
    others = path.with_name(f".report.json.{'0' * 8}-{ended.pid}-0.partial")
    others.write_text("half")
    files.write_json(path, {})
    assert sorted(tmp_path.iterdir()) == [others, path]


RAW_CALL = '<tool_call>\n{"name": "retrieve", "arguments": {"query": "one"}}\n</tool_call>'
TURNS: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "a newline before the call": ({"content": "I search.\n"}, "I search.", None),
    "two newlines": ({"content": "I search.\n\n"}, "I search.\n", None),
    "a carriage return": ({"content": "I search.\r\n"}, "I search.\r", None),
    "other white space": ({"content": "\u00a0 I search. \n"}, "\u00a0 I search. ", None),
    "the call twice": ({"content": f"I search.\n{RAW_CALL}"}, "I search.", None),
    "the call twice after two newlines": (
        {"content": f"I search.\n\n{RAW_CALL}\n{RAW_CALL}"},
        "I search.\n",
        None,
    ),
    "a call quoted in a thought": (
        {"content": f"<think>\nMaybe {RAW_CALL} helps.\n</think>\n\nI search.\n{RAW_CALL}"},
        "I search.",
        f"Maybe {RAW_CALL} helps.",
    ),
    "white space in a thought": (
        {"content": "<think>\n  Step 1:\n\tdo \n</think>\n\nI search.\n"},
        "I search.",
        "  Step 1:\n\tdo ",
    ),
    "white space in a field": (
        {"content": "\n\nI search.\n", "reasoning": "\n  Step 1:\n\tdo \n"},
        "I search.",
        "  Step 1:\n\tdo ",
    ),
    "a thought that the prompt opened": (
        {"content": " Step 1: \n</think>\n\nI search.\n"},
        "I search.",
        " Step 1: ",
    ),
    "an indented text after a thought": (
        {"content": "<think>a</think>\n\n  I search.\n"},
        "  I search.",
        "a",
    ),
    "a thought in other tags": (
        {"content": "<thinking> a </thinking>I search.\n"},
        "<thinking> a </thinking>I search.",
        None,
    ),
}


@pytest.mark.parametrize(("message", "content", "reasoning"), TURNS.values(), ids=TURNS)
def test_a_turn_is_sent_back_as_it_was_sampled(
    chat_server: Any,
    answer: Answer,
    message: dict[str, Any],
    content: str,
    reasoning: str | None,
) -> None:
    query = 'caf\u00e9 "x" \\ \u2028 </tool_call>'
    function = {"name": "retrieve", "arguments": json.dumps({"query": query})}
    call = {"id": "a", "type": "function", "function": function}
    message = {"role": "assistant", **message, "tool_calls": [call]}
    chat_server.script.append(
        reply({"index": 0, "message": message, "finish_reason": "tool_calls"})
    )
    chat_server.says(ANSWER)

    trajectory = answer(history_reasoning=True)
    sent, result = chat_server.requests[1]["messages"][2:4]
    assert (sent["content"], sent.get("reasoning")) == (content, reasoning)
    assert sent["reasoning_content"] == reasoning if reasoning else "reasoning_content" not in sent
    assert json.loads(sent["tool_calls"][0]["function"]["arguments"]) == {"query": query}
    assert result["content"] == trajectory.messages[3].content


FINAL = f"<|channel|>final<|message|>{ANSWER}"
HALF = "Perhaps <answer>no</answer>"
CHANNELS: dict[str, tuple[str, bool]] = {
    # vllm-project/vllm#23694, waybarrios/vllm-mlx#53
    "analysis and final": (
        f"<|channel|>analysis<|message|>{HALF}<|end|><|start|>assistant{FINAL}<|return|>",
        True,
    ),
    "final alone": (f"{FINAL}<|return|>", True),
    "no end between": (f"<|channel|>analysis<|message|>{HALF}{FINAL}", True),
    "the prompt opened the analysis": (f"{HALF}<|end|><|start|>assistant{FINAL}", True),
    "a preamble": (f"<|channel|>commentary<|message|>{HALF}<|end|><|start|>assistant{FINAL}", True),
    "special tokens dropped": (f"analysis{HALF}assistantfinal{ANSWER}", True),
    "cut": (f"<|channel|>analysis<|message|>{HALF}", False),
    "cut in the next header": (f"<|channel|>analysis<|message|>{HALF}<|end|><|channel|>fin", False),
    "a preamble alone": (f"<|channel|>commentary<|message|>{HALF}<|end|>", False),
    # Tags as models vary them
    "white space in the tags": (f"<think >{HALF}</think >{ANSWER}", True),
    "a line break in the tag": (f"<think\n>{HALF}</think>{ANSWER}", True),
    "an attribute": (f'<think type="deep" n=2>{HALF}</think>{ANSWER}', True),
    "capitals": (f"<THINK>{HALF}</Think>{ANSWER}", True),
    "another name with an attribute": (f"<thinking mode='slow'>{HALF}</thinking>{ANSWER}", True),
    "white space in the closing tag alone": (f"{HALF}</think >{ANSWER}", True),
    "white space, never closed": (f"<think >{HALF}", False),
    "an attribute, never closed": (f'<think type="deep">{HALF}', False),
    "no tag": (f"a < think> b <think so> {ANSWER}", True),
}


@pytest.mark.parametrize(("text", "is_answer"), CHANNELS.values(), ids=CHANNELS)
def test_channels_and_varied_tags_hold_thoughts_and_answers_as_others_do(
    chat_server: Any,
    answer: Answer,
    text: str,
    is_answer: bool,
) -> None:
    chat_server.says(text)
    trajectory = answer()
    assert trajectory.answer == ("Mary Moss" if is_answer else "")


def test_a_call_in_channels_that_the_server_left_in_the_text_is_unparsable(
    chat_server: Any, answer: Answer
) -> None:
    chat_server.says(
        '<|channel|>commentary to=functions.retrieve <|constrain|>json<|message|>{"query": "x"}<|call|>'
    )
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.TOOL_CALL_UNPARSABLE


def test_no_channel_is_sent_back(chat_server: Any, answer: Answer) -> None:
    """The model's own template refuses a content with such marks."""
    chat_server.says(f"<|channel|>analysis<|message|>Look.<|end|><|start|>assistant{FINAL}", "one")
    chat_server.says(ANSWER)
    answer(history_reasoning=True)
    sent = chat_server.requests[1]["messages"][2]
    assert (sent["content"], sent["reasoning"]) == (ANSWER, "Look.")


def test_an_endpoint_whose_prompts_open_the_thought_is_described_and_asked_for_where_it_shows(
    chat_server: Any,
    answer: Answer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat_messages.warn_once.cache_clear()
    chat_server.says(f"{HALF}</think>{ANSWER}")
    assert answer().answer == "Mary Moss"
    assert "begins_in_thought: true" in caplog.text
    monkeypatch.setenv("KEY", "k")
    described = {"base_url": chat_server.url, "model": "m", "api_key_variable": "KEY"}
    for begins, expected in ((False, "no"), (True, "")):
        request = {"request": {"begins_in_thought": begins}}
        (tmp_path / "endpoint.json").write_text(json.dumps(described | request))
        remote = read_remote(tmp_path)
        assert remote is not None
        begins_in_thought = resolve_endpoint(remote).begins_in_thought
        asked = dataclasses.replace(chat_server.endpoint, begins_in_thought=begins_in_thought)
        chat_server.script[:] = []
        chat_server.says(HALF)  # cut in its thought
        thought = answer(endpoint=asked)
        assert thought.answer == expected
    assert remote.of_answers()["request"] == {"begins_in_thought": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (413, ""),  # Cerebras, openclaw/openclaw#119596
        (413, "<html><h1>413 Request Entity Too Large</h1></html>"),
        (400, ""),  # earendil-works/pi#129
        (400, "{}"),
        (400, "null"),
        # can1357/oh-my-pi#1251
        (400, '{"error": "Error from inference backend: 400 status code (no body)"}'),
    ],
)
def test_a_refusal_without_a_word_is_about_the_length_where_a_shorter_prompt_was_answered(
    chat_server: Any,
    answer: Answer,
    status: int,
    body: str,
) -> None:
    chat_server.says("", "one")
    attempts = 4 if status == 400 else 1
    chat_server.script += [response(body, status)] * attempts
    chat_server.says(ANSWER)
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.messages[-2].content == NO_ROOM_LEFT
    assert len(chat_server.requests) == attempts + 2


def test_a_wordless_refusal_that_passes_or_comes_first_is_the_servers(
    chat_server: Any,
    answer: Answer,
) -> None:  # earendil-works/pi#8682, earendil-works/pi#9482
    chat_server.says("", "one")
    chat_server.script.append(response("", 400))
    chat_server.says(ANSWER)
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert NO_ROOM_LEFT not in trajectory.messages[-2].content
    chat_server.script[:] = [response("", 400)]
    chat_server.requests.clear()
    first = answer()
    assert first.stop_reason is StopReason.MODEL_ERROR
    assert len(chat_server.requests) == 4


def test_a_limit_of_tokens_in_a_minute_is_no_prompt_that_is_too_large(
    chat_server: Any, answer: Answer
) -> None:
    body = '{"error": {"message": "Request too large on tokens per minute (TPM): Limit 10000"}}'
    chat_server.script.append(response(body, 413))
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.MODEL_ERROR


def connect(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def read_all(connection: socket.socket) -> bytes:
    """What a server sends until it closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while block := connection.recv(65_536):
            received += block
    return received


@pytest.fixture
def limited_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that takes four connections."""
    monkeypatch.setattr(connections, "REFUSAL_S", 0.2)
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 1.0)
    app = RetrievalApp(engine(open_searcher()), service_config(), Guard(token=None, loopback=True))
    protocol = functools.partial(LimitedConnection, limit=ConnectionLimit(4))
    with serve_app(app, http=protocol, loop="uvloop") as url:
        yield url


@pytest.mark.parametrize("library", [httpx, requests])
def test_a_connection_too_many_is_told_so_and_the_others_go_on(
    limited_url: str, library: Any
) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client()) for _ in range(4)]
        for client in clients:
            assert client.post(f"{limited_url}/retrieve", json={"queries": ["a"]}).is_success
        # A body that is larger than what is read before the refusal
        body = {"queries": ["a" * 30_000] * 40}
        refused = library.post(f"{limited_url}/retrieve", json=body, timeout=20)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert "the server has 4 connections" in refused.json()["detail"]
        for client in clients:  # over the connections that they have
            assert client.post(f"{limited_url}/retrieve", json={"queries": ["b"]}).is_success
    deadline = time.monotonic() + 20
    while httpx.get(f"{limited_url}/healthz").status_code == 503:
        assert time.monotonic() < deadline


@pytest.mark.slow
def test_connections_that_send_no_request_or_half_of_one_make_room_after_a_while(
    limited_url: str,
) -> None:
    silent = [connect(limited_url) for _ in range(2)]
    slow = [connect(limited_url) for _ in range(2)]
    for connection in slow:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n")
    deadline = time.monotonic() + 20
    while httpx.get(f"{limited_url}/healthz").status_code == 503:
        assert time.monotonic() < deadline
    for connection in (*silent, *slow):
        assert read_all(connection) == b""
        connection.close()


@pytest.mark.parametrize(
    "head", [b"x-long: " + b"a" * 400_000, b"x: a\r\n" * 60_000, b"n" * 400_000]
)
def test_a_head_without_end_is_refused(limited_url: str, head: bytes) -> None:
    with connect(limited_url) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /healthz HTTP/1.1\r\n")
            for start in range(0, len(head), 16_384):
                connection.sendall(head[start : start + 16_384])
        answer = read_all(connection)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
    assert httpx.get(f"{limited_url}/healthz").status_code == 200


@pytest.mark.slow
def test_a_large_body_and_many_requests_over_one_connection_are_no_long_head(
    limited_url: str,
) -> None:
    body = {"queries": ["a" * 30_000] * 100}
    with httpx.Client() as client:
        for _ in range(3):
            assert client.post(f"{limited_url}/retrieve", json=body, timeout=30).is_success
            assert client.get(f"{limited_url}/healthz", headers={"x": "a" * 30_000}).is_success


@pytest.mark.nightly
def test_the_peak_of_a_server_is_bounded_whatever_connections_send(tmp_path: Path) -> None:
    clients = 5000  # without a limit, each brings a quarter of a MiB
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, clients + 1000), hard))
    write_jsonl(tmp_path / "chunks.jsonl", make_chunks(["Vienna\nA city.", "Philae\nA lander."]))
    config = INDEX.model_copy(update={"encoder": None})
    build_index(tmp_path / "chunks.jsonl", tmp_path / "index", config, seed=0)
    try:
        with (
            serve_index(tmp_path / "index", tmp_path / "chunks.jsonl", RETRIEVAL) as url,
            contextlib.ExitStack() as stack,
        ):
            sockets = [stack.enter_context(connect(url)) for _ in range(clients)]
            for sent in (
                b"POST /none HTTP/1.1\r\nx: " + b"a" * 60_000,
                b"\r\ncontent-length: 4000000\r\n\r\n" + b"a" * 200_000,
                b"a" * 100_000,
            ):
                for connection in sockets:
                    connection.settimeout(1)
                    with contextlib.suppress(OSError):
                        connection.sendall(sent)
            servers = psutil.Process().children(recursive=True)
            peak_bytes = max(peak_memory_bytes(server.pid) for server in servers)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert peak_bytes < 600 * 2**20


def test_no_process_has_more_connections_than_it_may_have_open_files() -> None:
    assert ConnectionLimit.of_files(65_536).connections == connections.MAX_CONNECTIONS
    assert ConnectionLimit.of_files(1024).connections == 1024 - 256 - 64
    assert ConnectionLimit.of_files(16).connections == 1


@pytest.mark.parametrize(
    ("requests_", "last"),
    [
        ([(5000, None)], False),  # an estimate alone
        ([(5000, 100)], True),
        ([(5000, 5000)], False),
        ([(5000, 100), (5000, 100)], True),
        ([(100, 5900)], False),
        ([(100, 900), (100, 900), (100, 900)], False),
        ([(100, 900), (100, 100)], True),
        ([(9000, 9000)], False),  # more than a minute's tokens
        ([(9000, 1000)], True),
        ([(0, 0)], True),
    ],
    ids=str,
)
def test_the_tokens_of_a_reply_correct_what_its_request_took(
    request: pytest.FixtureRequest,
    limit_clock: LimitClock,
    requests_: list[tuple[int, int | None]],
    last: bool,
) -> None:
    limits = rate_limits(request.node.name, None, 6000)

    async def goes_at_once(tokens: int) -> bool:
        before_s = limit_clock.waited_s
        await limits.wait(tokens)
        return limit_clock.waited_s == before_s

    async def scenario() -> bool:
        for estimated, used in requests_:
            assert await goes_at_once(estimated)
            if used is not None:
                limits.correct(estimated, used)
        return await goes_at_once(5000)

    assert asyncio.run(scenario()) is last


@pytest.mark.parametrize(("used", "is_late"), [((20, 5), False), ((0, 0), True)])
def test_the_usage_of_a_chat_completion_is_counted_in_place_of_the_estimate(
    chat_server: Any,
    answer: Answer,
    used: tuple[int, int],
    limit_clock: LimitClock,
    is_late: bool,
) -> None:
    options = RequestOptions(tokens_per_minute=1500)
    endpoint = dataclasses.replace(chat_server.endpoint, options=options)
    for query in ("one", "two"):
        chat_server.says("", query, tokens=used)
    chat_server.says(ANSWER, tokens=used)

    assert answer(endpoint=endpoint, max_tokens=1000, context_tokens=4000).answer == "Mary Moss"
    assert (limit_clock.waited_s > 5) is is_late


# Rows of the real sets in the layouts of their official files
def real_rows(path: Path, count: int) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = (json.loads(line) for line in lines)
        return list(itertools.islice((row for row in rows if row.get("context_doc_ids")), count))


def real_texts(path: Path) -> dict[str, dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return {row["id"]: row for row in map(json.loads, lines)}


def official_hotpotqa(row: dict[str, Any], texts: dict[str, dict[str, str]]) -> dict[str, Any]:
    """HotpotQA's and 2WikiMultihopQA's form: titles with sentences."""
    context = [[texts[id_]["title"], [texts[id_]["text"]]] for id_ in row["context_doc_ids"]]
    facts = [[title, 0] for title in row["supporting_titles"]]
    return {
        "_id": row["id"],
        "question": row["question"],
        "answer": row["golden_answers"][0],
        "type": row["type"],
        "supporting_facts": facts,
        "context": context,
    }


def official_musique(row: dict[str, Any], texts: dict[str, dict[str, str]]) -> dict[str, Any]:
    paragraphs = [
        {
            "idx": place,
            "title": texts[id_]["title"],
            "paragraph_text": texts[id_]["text"],
            "is_supporting": id_ in row["supporting_doc_ids"],
        }
        for place, id_ in enumerate(row["context_doc_ids"])
    ]
    answer, *aliases = row["golden_answers"]
    names = {"id": row["id"], "question": row["question"], "answer": answer}
    return {**names, "answer_aliases": aliases, "answerable": True, "paragraphs": paragraphs}


def as_array(rows: list[dict[str, Any]], path: Path) -> None:
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8-sig")


def as_lines(rows: list[dict[str, Any]], path: Path) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def as_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    texts = [
        {
            name: json.dumps(value) if isinstance(value, list) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    pd.DataFrame(texts).to_parquet(path)


def as_csv(rows: list[dict[str, Any]], path: Path) -> None:
    as_parquet(rows, path.with_suffix(".parquet"))
    pd.read_parquet(path.with_suffix(".parquet")).to_csv(path, index=False)


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("write_rows", [as_array, as_lines, as_parquet, as_csv])
@pytest.mark.parametrize(
    ("set_", "file", "official"),
    [
        ("hotpotqa", "train100", official_hotpotqa),
        ("2wikimultihopqa", "dev", official_hotpotqa),
        ("musique", "train", official_musique),
    ],
)
def test_real_rows_in_official_files_keep_answers_gold_and_paragraphs(
    real_data: Path,
    tmp_path: Path,
    set_: str,
    file: str,
    official: Callable[..., dict[str, Any]],
    write_rows: Callable[[list[dict[str, Any]], Path], None],
) -> None:
    rows = real_rows(real_data / set_ / f"{file}.jsonl.gz", 20)
    texts = real_texts(real_data / set_ / "corpus.jsonl.gz")
    path = tmp_path / "official"
    write_rows([official(row, texts) for row in rows], path)
    questions = list(QUESTION_FORMATS[set_](path))
    assert [question.question for question in questions] == [row["question"] for row in rows]
    documents = list(CORPUS_FORMATS[f"{set_}_paragraphs"](path))
    titles = {title_key(document.title) for document in documents}
    for question, row in zip(questions, rows, strict=True):
        assert question.golden_answers[0] == row["golden_answers"][0]
        gold = {title_key(texts[id_]["title"]) for id_ in row["supporting_doc_ids"]}
        assert set(map(title_key, question.metadata.supporting_titles or ())) == gold <= titles


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["nq", "triviaqa", "popqa", "bamboogle", "hotpotqa_2wiki_train"])
def test_real_questions_come_back_from_search_r1s_parquet_as_they_were(
    real_data: Path, tmp_path: Path, name: str
) -> None:
    asked = list(read_questions(real_data / "searchr1" / f"{name}.jsonl.gz"))[:200]
    rows = [
        {
            "data_source": name,
            "prompt": [
                {
                    "role": "user",
                    "content": "Answer. For example, <answer> Beijing </answer>. Question: "
                    f"{question.question}\n",
                }
            ],
            "ability": "fact-reasoning",
            "reward_model": {
                "style": "rule",
                "ground_truth": {"target": list(question.golden_answers)},
            },
            "extra_info": {"split": "train", "index": row},
        }
        for row, question in enumerate(asked)
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "train.parquet")
    read = list(read_questions(tmp_path / "train.parquet"))
    assert [(each.question, each.golden_answers) for each in read] == [
        (each.question.strip(), each.golden_answers) for each in asked
    ]


LANGUAGES = [
    ("القاهرة\nالقاهرة هي عاصمة جمهورية مصر العربية.", "ما هي عاصمة مصر", "القاهرة"),  # noqa: RUF001
    ("台北\n臺北市是中華民國的首都。", "中華民國的首都", "臺北市"),
    ("東京\n東京は日本の首都である。", "日本の首都はどこ", "東京"),
    ("เชียงใหม่\nเชียงใหม่อยู่ทางเหนือของประเทศไทย", "เมืองทางเหนือของไทย", "เชียงใหม่"),
    ("मुंबई\nमुंबई महाराष्ट्र की राजधानी है।", "महाराष्ट्र की राजधानी", "मुंबई"),
    ("부산\n부산은 대한민국의 항구 도시이다.", "한국의 항구 도시", "부산"),
    ("ירושלים\nירושלים היא בירת ישראל.", "בירת ישראל", "ירושלים"),  # noqa: RUF001
    ("தமிழ்நாடு\nசென்னை தமிழ்நாட்டின் தலைநகரம்.", "தலைநகரம் சென்னை", "சென்னை"),
    ("ঢাকা\nঢাকা বাংলাদেশের রাজধানী।", "বাংলাদেশের রাজধানী", "ঢাকা"),
    ("Αθήνα\nΗ Αθήνα είναι η πρωτεύουσα της Ελλάδας.", "πρωτεύουσα της Ελλάδας", "Αθήνα"),  # noqa: RUF001
]


@pytest.fixture(scope="module")
def languages_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("languages")
    write_jsonl(folder / "chunks.jsonl", make_chunks([text for text, _, _ in LANGUAGES]))
    encoder = INDEX.encoder.model_copy(update={"dimension": 32})
    config = INDEX.model_copy(update={"encoder": encoder})
    build_index(folder / "chunks.jsonl", folder / "index", config, seed=0)
    return folder / "index"


@pytest.mark.parametrize("retriever", ["bm25", "dense", "hybrid"])
@pytest.mark.parametrize("row", range(len(LANGUAGES)))
def test_a_question_in_another_script_finds_its_passage(
    languages_index: Path, retriever: str, row: int
) -> None:
    [hits] = open_index(languages_index, retriever=retriever).find_hits([LANGUAGES[row][1]], 1)
    assert [hit.row for hit in hits] == [row]


@pytest.mark.parametrize("answer", [answer for _, _, answer in LANGUAGES])
def test_f1_of_another_script_is_of_words_between_blanks_as_it_is_defined(answer: str) -> None:
    assert f1(answer, [answer]) == 1
    assert f1(f"{answer}.", [answer]) == 1  # ASCII punctuation is dropped
    assert f1(f"{answer} {answer}x", [answer]) == pytest.approx(2 / 3)
    assert f1(f"{answer}x", [answer]) == 0  # one word, another one
