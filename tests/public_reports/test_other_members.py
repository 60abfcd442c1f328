"""Further inputs of the kinds that public reports began, against real parts on loopback."""

import asyncio
import contextlib
import dataclasses
import gzip
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pandas as pd
import psutil
import pytest
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
from deepsearch_rl.search.searcher import open_index
from tests.agent.conftest import ANSWER, Answer, response
from tests.chunks import make_chunks
from tests.ports import free_port
from tests.public_reports.conftest import LimitClock
from tests.public_reports.test_agent import reply
from tests.search.encoders.folders import encoder_config
from tests.search_servers import in_thread
from tests.settings import INDEX

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


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs/pr/1", "abc123", "F52BF8E", ""])
def test_an_encoders_revision_that_can_move_is_refused(tmp_path: Path, revision: str) -> None:
    with pytest.raises(ValidationError, match="is no commit"):
        encoder_config(tmp_path, revision=revision)


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
