"""Small inputs of public reports about retrieval and its server; the source stands beside each."""

import asyncio
import dataclasses
import json
import os
import re
import subprocess
import sys
import time
import tracemalloc
from collections.abc import MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from deepsearch_rl.cli.main import main
from deepsearch_rl.core import files
from deepsearch_rl.core.errors import (
    ArtifactError,
    ConfigError,
    EndpointDownError,
    EndpointError,
    RecordError,
)
from deepsearch_rl.core.files import read_distinct, write_jsonl
from deepsearch_rl.core.records import Document, Question
from deepsearch_rl.search.analysis import analyse
from deepsearch_rl.search.bm25.bm25 import Bm25Index
from deepsearch_rl.search.bm25.configs import Bm25Config
from deepsearch_rl.search.build import IndexSection, build_index, build_indexes
from deepsearch_rl.search.encoders.configs import RemoteEncoderConfig as RemoteConfig
from deepsearch_rl.search.encoders.remote import RemoteEncoder
from deepsearch_rl.search.manifest import IndexConfig
from deepsearch_rl.search.quality import DatasetConfig, measure_datasets
from deepsearch_rl.search.question_parts import SourceNames, split_question
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import (
    Hit,
    QueriesFailedError,
    SearchesChunks,
    open_index,
)
from deepsearch_rl.server.batching import SearchQueue
from deepsearch_rl.server.launch import serve_index
from deepsearch_rl.server.limits import Budget
from deepsearch_rl.server.metrics import Metrics
from deepsearch_rl.server.requests import MAX_BODIES_BYTES, MAX_BODY_BYTES, Guard
from deepsearch_rl.server.rerank import RerankedSearcher
from deepsearch_rl.server.service import RetrievalApp
from tests.chunks import make_chunks
from tests.search.server.searchers import (
    GatedSearcher,
    engine,
    hit,
    open_searcher,
    service_config,
)
from tests.search_servers import serve_index_here
from tests.settings import INDEX, RETRIEVAL

BM25 = Bm25Config(engine="builtin", k1=0.9, b=0.4, fields={"contents": 1.0})
UNSPACED_PASSAGES = (
    "北京\n北京是中华人民共和国的首都。",  # bm25s#34, pyserini#565, llama_index#13866
    "富士山\n富士山は日本で最も高い山です。",
    "กรุงเทพมหานคร\nกรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย",
    "दिल्ली\nदिल्ली भारत की राजधानी है।",
    "서울\n서울은 대한민국의 수도이다.",
    "ຫຼວງພະບາງ\nຫຼວງພະບາງເປັນເມືອງໃນພາກເໜືອຂອງລາວ",
    "ភ្នំពេញ\nភ្នំពេញជារាជធានីនៃប្រទេសកម្ពុជា",
    "ရန်ကုန်\nရန်ကုန်မြို့သည်မြန်မာနိုင်ငံ၏အကြီးဆုံးမြို့ဖြစ်သည်",
    "Philae\nThe lander touched down on a comet.",
)
UNSPACED_QUERIES = (
    ("中国的首都是哪里", 0),
    ("日本で一番高い山は何ですか", 1),
    ("เมืองหลวงของไทย", 2),
    ("भारत की राजधानी", 3),
    ("한국의 수도는 어디인가", 4),
    ("ເມືອງຢູ່ພາກເໜືອ", 5),
    ("រាជធានីកម្ពុជា", 6),
    ("မြန်မာနိုင်ငံအကြီးဆုံးမြို့", 7),
    ("landers on comets", 8),
)


@pytest.fixture(scope="module")
def unspaced_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unspaced")
    write_jsonl(folder / "chunks.jsonl", make_chunks(UNSPACED_PASSAGES))
    encoder = INDEX.encoder.model_copy(update={"dimension": 16})
    config = INDEX.model_copy(update={"encoder": encoder})
    build_index(folder / "chunks.jsonl", folder / "index", config, seed=0)
    return folder / "index"


@pytest.mark.parametrize("retriever", ["bm25", "dense", "hybrid"])
@pytest.mark.parametrize(("query", "row"), UNSPACED_QUERIES)
def test_a_question_in_a_language_without_blanks_finds_its_passage(
    unspaced_index: Path, retriever: str, query: str, row: int
) -> None:
    [hits] = open_index(unspaced_index, retriever=retriever).find_hits([query], 1)
    assert [hit.row for hit in hits] == [row]


@pytest.mark.parametrize(("query", "row"), [("京", 0), ("高", 1), ("ย", 2), ("울", 4)])
def test_a_query_of_one_letter_finds_the_words_that_hold_it(
    unspaced_index: Path, query: str, row: int
) -> None:
    [hits] = open_index(unspaced_index, retriever="bm25").find_hits([query], 1)
    assert [hit.row for hit in hits] == [row]


@pytest.mark.parametrize("query", ["巴黎", "法", "ปารีส", "पेरिस", "파리"])
def test_a_word_that_no_passage_holds_finds_none(unspaced_index: Path, query: str) -> None:
    assert open_index(unspaced_index, retriever="bm25").find_hits([query], 3) == [[]]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("तमिलनाडु", ["तमिलनाडु"]),  # bm25s#34: a vowel sign stays with its consonant
        ("தமிழ் বাংলা", ["தமிழ்", "বাংলা"]),
        ("cafe\u0301", ["café"]),
        ("か\u3099く", ["がく"]),
        ("\uff21\uff22 \uff11", ["ab", "1"]),
        ("ｶﾞｽ", ["ガス"]),
        ("葛\U000e0100城", ["葛城"]),
        ("2024年 iPhone手机", ["2024", "年", "iphon", "手机"]),
        ("क्\u200dष", ["क्ष"]),
        ("1\ufe0f\u20e3 ❤\ufe0f", ["1"]),
    ],
)
def test_a_letter_keeps_its_marks_whatever_its_spelling(text: str, terms: object) -> None:
    assert analyse(text) == terms


def test_a_question_in_chinese_is_split_at_its_punctuation_and_names_its_source() -> None:
    parts = split_question(
        "据人民日报报道\uff0c北京是首都\uff0c那么上海呢\uff1f", SourceNames.of(["人民日报"])
    )
    assert parts.sources == (0,)
    assert [part for part in parts.parts if "北京" in part] == ["北京是首都"]


def embeddings_config(server: ThreadingHTTPServer, **settings: float) -> RemoteConfig:
    """The encoder of a server of embeddings, which gets all texts in one request and no second try."""
    return RemoteConfig(
        name="remote",
        base_url=f"http://127.0.0.1:{server.server_port}/v1",
        model="m",
        api_key_variable=None,
        dimension=2,
        query_prefix="",
        passage_prefix="",
        max_characters=None,
        batch_texts=64,
        concurrency=1,
        retries=0,
        **settings,
    )


@dataclass
class EncodingSearcher:
    """Finds one chunk for a query that its encoder can read."""

    encoder: RemoteEncoder

    def find_hits(
        self,
        queries: Sequence[str],
        top_k: int,  # noqa: ARG002
        where: Filter | None = None,  # noqa: ARG002
    ) -> list[list[Hit]]:
        self.encoder.encode(queries, "query")
        return [[hit(query)] for query in queries]


QUERIES = [f"q{number}" for number in range(64)]


async def ask_each(searcher: SearchesChunks, **settings: object) -> list[object]:
    """What 64 clients with a query each, which share a search, get."""
    queue = SearchQueue(
        searcher, service_config(window_ms=15_000, max_batch=64, **settings), Metrics()
    )
    async with queue:
        return await asyncio.gather(
            *(queue.answer([query], 1) for query in QUERIES), return_exceptions=True
        )


def test_a_reranker_orders_the_hits_of_the_queries_that_did_not_fail() -> None:
    class Partial:
        def find_hits(
            self,
            queries: Sequence[str],  # noqa: ARG002
            top_k: int,  # noqa: ARG002
            where: Filter | None = None,  # noqa: ARG002
        ) -> list[list[Hit]]:
            raise QueriesFailedError([[hit("far"), hit("near")], EndpointError("refused.")])

    class Nearness:
        def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
            return np.array(["near" in contents for _, contents in pairs], dtype=np.float32)

    reranked = RerankedSearcher(Partial(), Nearness(), depth=2)  # type: ignore[arg-type]
    with pytest.raises(
        QueriesFailedError, match="1 of 2 queries failed, the first one because refused"
    ) as raised:
        reranked.find_hits(["a", "b"], 1)
    [hits, failure] = raised.value.outcomes
    assert isinstance(hits, list)
    assert [each.chunk.id for each in hits] == ["near"]
    assert isinstance(failure, EndpointError)


def test_what_waits_is_answered_when_the_endpoint_is_down() -> None:
    class Down(GatedSearcher):
        def find_hits(
            self,
            queries: Sequence[str],
            top_k: int,
            where: Filter | None = None,
        ) -> list[list[Hit]]:
            super().find_hits(queries, top_k, where)
            raise EndpointDownError("it is down.")

    async def scenario() -> tuple[list[object], int]:
        searcher = Down()
        queue = SearchQueue(searcher, service_config(), Metrics())
        async with queue:
            tasks = [asyncio.create_task(queue.answer(["a"], 1))]
            await asyncio.to_thread(searcher.started.acquire, timeout=10)
            tasks += [asyncio.create_task(queue.answer(["b"], top_k)) for top_k in (1, 2, 3)]
            await asyncio.sleep(0)
            searcher.gate.set()
            return await asyncio.gather(*tasks, return_exceptions=True), len(searcher.batches)

    answers, searches = asyncio.run(scenario())
    assert [str(answer) for answer in answers] == ["it is down."] * 4
    assert searches == 1


class HangingSearcher(GatedSearcher):
    """Hangs at the query "hang" until the gate opens."""

    def find_hits(
        self,
        queries: Sequence[str],
        top_k: int,
        where: Filter | None = None,
    ) -> list[list[Hit]]:
        if "hang" in queries:
            return super().find_hits(queries, top_k, where)
        return [[hit(query)] for query in queries]


@pytest.mark.slow
def test_a_search_that_hangs_stops_nobody_else_and_healthz_says_so() -> None:
    searcher = HangingSearcher()
    app = RetrievalApp(
        engine(searcher),
        service_config(search_timeout_s=0.2, cache_entries=0),
        Guard(token=None, loopback=False),
    )
    with TestClient(app) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        hanging = client.post("/retrieve", json={"queries": ["hang", "beside it"]})
        assert (hanging.status_code, hanging.headers["retry-after"]) == (503, "1")
        assert "within 0.2 s" in hanging.json()["detail"]
        sick = client.get("/healthz")
        assert sick.status_code == 503
        assert "search_timeout_s" in sick.json()["detail"]
        assert client.post("/retrieve", json={"queries": ["a"]}).status_code == 200
        assert client.post("/retrieve", json={"queries": ["beside it"]}).status_code == 200
        # The one that hangs is searched for alone, once, and then refused
        for _ in range(9):
            assert client.post("/retrieve", json={"queries": ["hang"]}).status_code == 503
        assert searcher.batches == [["hang", "beside it"], ["hang"]]
        assert client.post("/retrieve", json={"queries": ["a"]}).status_code == 200
        assert b"deepsearch_hanging_searches 2.0" in client.get("/metrics").content
        searcher.gate.set()
        for _ in range(100):
            if client.get("/healthz").status_code == 200:
                break
            time.sleep(0.01)
        assert client.post("/retrieve", json={"queries": ["hang"]}).status_code == 200


@pytest.mark.slow
def test_a_request_of_ten_thousand_queries_leaves_room_and_turns_for_others() -> None:
    async def scenario() -> list[list[str]]:
        searcher = GatedSearcher()
        queue = SearchQueue(searcher, service_config(max_batch=8, cache_entries=0), Metrics())
        async with queue:
            first = asyncio.create_task(queue.answer(["first"], 1))
            await asyncio.to_thread(searcher.started.acquire, timeout=10)
            long = asyncio.create_task(
                queue.answer([f"long {number}" for number in range(10_000)], 1)
            )
            await asyncio.sleep(0)
            short = asyncio.create_task(queue.answer(["short 0", "short 1"], 1))
            await asyncio.sleep(0)
            searcher.gate.set()
            await asyncio.gather(first, short)
            batches = list(searcher.batches)
            assert not long.done()
            await long
        return batches

    batches = asyncio.run(scenario())
    assert sorted(batches[1])[-2:] == ["short 0", "short 1"]
    assert len(batches) < 10


def test_all_answers_together_hold_no_more_passages_than_the_process_may() -> None:
    async def scenario() -> tuple[int, list[int]]:
        budget, held, most = Budget(1600), 0, 0

        async def request(documents: int) -> int:
            nonlocal held, most
            async with budget.part(documents, timeout_s=10):
                held += documents
                most = max(most, held)
                await asyncio.sleep(0)
                held -= documents
            return documents

        sizes = [800] * 20 + [1, 100, 50] * 20
        return most, await asyncio.gather(*map(request, sizes))

    most, answered = asyncio.run(scenario())
    assert most <= 1600
    assert len(answered) == 80


def test_large_answers_in_a_row_keep_no_small_one_waiting_and_no_turn_is_lost() -> None:
    async def scenario() -> list[int]:
        budget = Budget(1600)
        async with budget.part(800, 1):
            late = asyncio.create_task(held(budget, 800, 10))
            leaving = asyncio.create_task(held(budget, 800, 10))
            await asyncio.sleep(0)
            async with budget.part(100, 0.01):
                pass
            leaving.cancel()
            with pytest.raises(HTTPException) as refused:
                await held(budget, 800, 0.01)
        await late
        await held(budget, 800, 0.01)
        return [refused.value.status_code]

    async def held(budget: Budget, amount: int, timeout_s: float) -> None:
        async with budget.part(amount, timeout_s):
            await asyncio.sleep(0)

    assert asyncio.run(scenario()) == [503]


def test_bodies_that_are_never_finished_cannot_fill_the_memory() -> None:
    async def scenario() -> tuple[list[int], int]:
        app = RetrievalApp(
            engine(open_searcher()), service_config(), Guard(token=None, loopback=False)
        )
        never = asyncio.Event()
        statuses: list[int] = []

        async def upload(size: int, *, ends: bool) -> None:
            messages = [{"type": "http.request", "body": b" " * size, "more_body": not ends}]

            async def receive() -> dict[str, object]:
                if not messages:
                    await never.wait()
                return messages.pop()

            async def send(message: MutableMapping[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])

            scope = {"type": "http", "method": "POST", "path": "/retrieve", "headers": []}
            await app(scope, receive, send)

        fitting = MAX_BODIES_BYTES // MAX_BODY_BYTES
        uploads = [
            asyncio.create_task(upload(MAX_BODY_BYTES, ends=False)) for _ in range(fitting + 3)
        ]
        await asyncio.sleep(0.1)
        refused = list(statuses)
        for task in uploads:
            task.cancel()
        await asyncio.gather(*uploads, return_exceptions=True)
        statuses.clear()
        # The bytes were given back; a blank body is no JSON
        await upload(10, ends=True)
        return refused, statuses[0]

    assert asyncio.run(scenario()) == ([503] * 3, 422)


def peak_memory_bytes(pid: int) -> int:
    """The most memory that a process has had (VmHWM)."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return int(fields["VmHWM"].split()[0]) * 1024


@pytest.mark.nightly
def test_the_peak_of_a_server_does_not_grow_with_the_requests_for_many_passages(
    tmp_path: Path,
) -> None:
    rows, clients = 15_000, 16  # without a common limit: 240,000 passages, about 900 MB
    texts = (f"Title {row}\ncommon {'text ' * 100}" for row in range(rows))
    write_jsonl(tmp_path / "chunks.jsonl", make_chunks(texts))
    bm25_config = INDEX.model_copy(
        update={"encoder": INDEX.encoder.model_copy(update={"fit_rows": 10})}
    )
    build_index(tmp_path / "chunks.jsonl", tmp_path / "index", bm25_config, seed=0)
    config = RETRIEVAL.model_copy(update={"max_batch": 256})
    with serve_index(tmp_path / "index", tmp_path / "chunks.jsonl", config) as url:

        def ask(number: int) -> int:
            body = {"queries": [f"common {number}"], "topk": rows}
            return len(httpx.post(f"{url}/retrieve", json=body, timeout=300).content)

        with ThreadPoolExecutor(clients) as threads:
            sizes = list(threads.map(ask, range(clients)))
        peak_bytes = max(
            peak_memory_bytes(process.pid) for process in psutil.Process().children(recursive=True)
        )
    assert min(sizes) > rows * 500
    assert peak_bytes < 450 * 2**20


def test_a_folder_in_place_of_passages_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is a folder; name one file in it"):
        build_index(tmp_path, tmp_path / "index", INDEX, seed=0)


@pytest.mark.slow
def test_an_index_of_long_passages_is_asked_for_fewer_at_once(tmp_path: Path) -> None:
    texts = (f"Title {row}\ncommon {row} {'text ' * 30_000}" for row in range(80))
    write_jsonl(tmp_path / "chunks.jsonl", make_chunks(texts))
    config = INDEX.model_copy(update={"encoder": None})
    build_index(tmp_path / "chunks.jsonl", tmp_path / "index", config, seed=0)
    with serve_index_here(tmp_path / "index", tmp_path / "chunks.jsonl", RETRIEVAL) as url:

        def ask(top_k: int) -> httpx.Response:
            body = {"queries": [f"common {number}" for number in range(70)], "topk": top_k}
            return httpx.post(f"{url}/retrieve", json=body, timeout=60)

        refused = ask(10)
        assert ask(1).status_code == 200
    assert refused.status_code == 422
    assert re.search(r"70 queries may ask for 6\d\d passages in all", refused.text)


class CountingColumn:
    """A column that counts how often it is read."""

    def __init__(self, column: np.ndarray) -> None:
        self._column, self.reads = column, 0

    def __getitem__(self, rows: slice) -> np.ndarray:
        self.reads += 1
        return self._column[rows]


@pytest.mark.parametrize("repeats", [1, 2, 5461])
def test_the_postings_of_a_term_are_read_once_however_often_the_query_repeats_it(
    tmp_path: Path, repeats: int
) -> None:
    index = Bm25Index.build(make_chunks(["river", "comet river", "comet comet"]), tmp_path, BM25)
    column = CountingColumn(index.rows_P)
    counting = dataclasses.replace(index, rows_P=column)
    [once] = index.search(["comet"], 3)
    [repeated] = counting.search([" comet" * repeats + " zebra"], 3)
    assert column.reads == 1
    assert repeated.rows_K.tolist() == once.rows_K.tolist() == [2, 1]
    assert repeated.scores_K.tolist() == pytest.approx((repeats * once.scores_K).tolist())


@pytest.mark.parametrize(
    ("half", "folder", "missing"), [("bm25", "bm25", "dense"), ("dense", "dense", "bm25")]
)
def test_an_index_of_one_half_is_built_searched_measured_and_says_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], half: str, folder: str, missing: str
) -> None:
    chunks, index = tmp_path / "chunks.jsonl", tmp_path / "index"
    write_jsonl(
        chunks,
        make_chunks(
            ["Vienna\nVienna is on the Danube.", "Philae\nA lander on a comet.", "River\nLong."]
        ),
    )
    questions = tmp_path / "questions.jsonl"
    question = {"id": "q", "question": "Where did the lander land?", "golden_answers": ["a comet"]}
    gold = {"metadata": {"supporting_titles": ["Philae"]}}
    questions.write_text(
        "".join(json.dumps(question | gold | {"id": name}) + "\n" for name in "qr")
    )

    def command(*arguments: object) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["deepsearch", "retrieve", *map(str, arguments)])
            try:
                main()
            except SystemExit as end:
                if end.code:
                    return str(end.code)
        return capsys.readouterr().out

    options = () if half == "bm25" else ("--dimension", 2)
    built = command("build", "--corpus", chunks, "--out", index, "--only", half, *options)
    assert ("no vectors" in built) == (half == "bm25")
    assert {path.name for path in index.iterdir()} == {"manifest.json", "rows", folder}
    assert "Philae" in command(
        "search", "--index", index, "--retriever", half, "--top-k", 1, "lander"
    )
    error = command("search", "--index", index, "--retriever", missing, "lander")
    assert f"has no {missing} half" in error
    assert f"Choose the retriever {half}" in error
    measured = command("eval", "--index", index, "--questions", questions, "--draws", 0, "--json")
    assert set(json.loads(measured)["scores"]) == {half}
    assert "3 passages" in command(
        "build", "--corpus", chunks, "--out", index, "--dimension", 2
    )  # replaces it


def test_an_index_without_either_half_is_refused() -> None:
    with pytest.raises(ValidationError, match="bm25 and encoder are both null"):
        IndexConfig.model_validate({**INDEX.model_dump(), "bm25": None, "encoder": None})


def test_a_corpus_of_which_one_half_is_built_is_measured_by_that_half(tmp_path: Path) -> None:
    for name in ("both", "one"):
        write_jsonl(
            tmp_path / "chunks" / f"{name}.jsonl",
            make_chunks(["Vienna\nA city.", "Philae\nA lander."]),
        )
        question = Question(
            id="q",
            question="lander",
            golden_answers=("x",),
            metadata={"supporting_titles": ["Philae"]},
        )
        write_jsonl(tmp_path / "questions" / name / "val.jsonl", [question])
    added = {
        "corpus_vectors": {},
        "corpus_only": {"one": "dense"},
        "quality": {"split": "val", "cutoffs": [1]},
    }
    section = IndexSection.model_validate({**INDEX.model_dump(), **added})
    build_indexes(
        tmp_path / "chunks", tmp_path / "index", section, 0, tmp_path / "work", {"one": [question]}
    )
    datasets = {name: DatasetConfig(corpus=name) for name in ("both", "one")}
    scores = measure_datasets(
        tmp_path / "index", tmp_path / "chunks", tmp_path / "questions", datasets, section.quality
    )
    assert {name: set(by_retriever) for name, by_retriever in scores.items()} == {
        "both": {"bm25", "dense", "hybrid"},
        "one": {"dense"},
    }


EVENTS = "text/event-stream"
MCP_PARAMS: dict[str, dict[str, Any]] = {
    "tools/call": {"name": "retrieve", "arguments": {"query": "two\u2028lines"}},
    "tools/list": {},
    "initialize": {
        "protocolVersion": "2025-06-18",
        "clientInfo": {"name": "c", "version": "1"},
        "capabilities": {},
    },
    "no/such": {},
}


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ([EVENTS], EVENTS),  # python-sdk#2349
        ([f"{EVENTS};q=0.9"], EVENTS),
        (["text/*"], EVENTS),
        (["TEXT/EVENT-STREAM"], EVENTS),
        ([f"{EVENTS} ; charset=utf-8"], EVENTS),
        ([f"application/json;q=0, {EVENTS}"], EVENTS),
        ([f"*/*;q=0.0, {EVENTS}"], EVENTS),
        (["text/html", EVENTS], EVENTS),
        (["application/json"], "application/json"),
        ([f"application/json, {EVENTS}"], "application/json"),
        ([EVENTS, "application/json"], "application/json"),
        ([f"{EVENTS}, application/json;q=0.1"], "application/json"),
        (["application/*;q=0.5"], "application/json"),
        (["*/*"], "application/json"),
        ([""], "application/json"),
        ([", ,"], "application/json"),
        ([], "application/json"),
    ],
    ids=str,
)
def test_an_mcp_client_is_answered_in_what_it_accepts(accept: list[str], content_type: str) -> None:
    app = RetrievalApp(engine(open_searcher()), service_config(), Guard(token=None, loopback=False))
    headers = [("Content-Type", "application/json"), *(("Accept", each) for each in accept)]
    results: dict[str, Any] = {}
    with TestClient(app) as client:
        client.headers.pop("accept")
        for method, params in MCP_PARAMS.items():
            body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
            answer = client.post("/mcp", content=json.dumps(body), headers=headers)
            assert answer.headers["content-type"].startswith(content_type)
            text = answer.text
            if content_type == EVENTS:
                assert text.startswith("event: message\ndata: ")
                assert text.endswith("\n\n")
                text = text.split("data: ", 1)[1]
            results[method] = json.loads(text)

    assert {result["id"] for result in results.values()} == {7}
    [chunk] = results["tools/call"]["result"]["structuredContent"]["result"][:1]
    assert chunk["chunk_id"] == "two\u2028lines/3/"


def test_a_client_that_accepts_neither_json_nor_events_is_refused() -> None:
    app = RetrievalApp(engine(open_searcher()), service_config(), Guard(token=None, loopback=False))
    with TestClient(app) as client:
        answer = client.post(
            "/mcp",
            json={"jsonrpc": "2.0", "id": 1, "method": "ping"},
            headers={"Accept": "text/html"},
        )
    assert answer.status_code == 406


@pytest.mark.slow
def test_a_repeated_id_is_found_among_many_in_a_few_bytes_each(tmp_path: Path) -> None:
    lines = 150_000
    path = tmp_path / "documents.jsonl"
    texts = [f'{{"id": "d{number}", "contents": "t"}}\n' for number in range(lines)]
    path.write_text("".join(texts))
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_distinct(path, Document)) == lines
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes / lines < 40
    path.write_text("".join([*texts, texts[7]]))
    with pytest.raises(
        RecordError, match=rf"line {lines + 1}: field 'id': 'd7' is the id of line 8"
    ):
        list(read_distinct(path, Document))


def test_two_writers_of_one_file_do_not_meet_and_the_last_ones_file_is_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "report.json"
    with files.atomic_file(path) as first:
        first.write_text("first, and long")
        with files.atomic_file(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first, and long"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    program = (
        "import os, sys; from pathlib import Path; from deepsearch_rl.core.files import atomic_file\n"
        "with atomic_file(Path(sys.argv[1])) as partial: partial.write_text('half'); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == 9
    assert len(list(tmp_path.iterdir())) == 1
    files.write_json(path, {})
    assert list(tmp_path.iterdir()) == [path]


def test_the_second_writer_of_a_folder_is_told_who_writes_it(tmp_path: Path) -> None:
    with files.atomic_directory(tmp_path / "model") as folder:
        (folder / "weights").write_text("1")
        with (
            pytest.raises(ConfigError, match=f"pid {os.getpid()}"),
            files.atomic_directory(tmp_path / "model"),
        ):
            pass
        assert (folder / "weights").read_text() == "1"
    assert (tmp_path / "model" / "weights").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
