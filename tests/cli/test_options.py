"""Every option of every command, by the argument of the library call that it changes.

A case is the text of an option and where its value arrives: the position of the argument, then
fields. The call itself is not made.
"""

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli import main as cli
from deepsearch_rl.cli.main import app, load_command
from deepsearch_rl.cli.model import Kind
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.data.catalogue import CARDS, QUESTION_FORMATS
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.serve.launch import vllm_serve_command
from tests.conftest import ROOT

PRINTED = {
    "--json",
    "--list",
    "--markdown",
    "--page",
    "--help",
    "-h",
    "--endpoint",
    "--local",
    "--check",
}
"""Options that change what is printed or written beside it (or, of `remote`, DVC's settings): their
tests are those of the commands."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, the library function that it calls, and what each option changes of the call."""

    line: str
    function: str
    options: dict[str, tuple[str, str, object]]


EVALUATE = Command(
    "evaluate --model org/gpt-x --dataset musique --data set --base-url http://127.0.0.1:9/v1",
    "deepsearch_rl.evaluate.standalone.evaluate",
    {
        "--model": ("org/other", "0.name", "other"),
        "--dataset": ("hotpotqa", "0.dataset", "hotpotqa"),
        "--base-url": (
            "http://127.0.0.1:8/v1",
            "0.model.endpoint.base_url",
            "http://127.0.0.1:8/v1",
        ),
        "--key-variable": ("OTHER_KEY", "0.model.endpoint.api_key_variable", "OTHER_KEY"),
        "--request": ("temperature=omit", "0.model.endpoint.request.temperature", "omit"),
        "--data": ("other", "0.source.folder.root", Path("other")),
        "--questions": ("5", "0.setting.evaluate.sets.musique.questions", 5),
        "--samples": ("3", "0.setting.evaluate.sets.musique.samples", 3),
        "--temperature": ("0.5", "0.setting.evaluate.temperature", 0.5),
        "--greedy": ("2", "0.setting.evaluate.sets.musique.greedy", 2),
        "--controls": ("4", "0.setting.evaluate.sets.musique.controls", 4),
        "--random-passages": ("--controls 3", "0.setting.evaluate.random_passages", True),
        "--prompt": ("tiny", "0.setting.agent.prompt", "tiny"),
        "--protocol": ("search_tags", "0.setting.agent.protocol", "search_tags"),
        "--top-k": ("9", "0.setting.retrieval.top_k", 9),
        "--chunk-size": ("99", "0.setting.chunk.chunk_size", 99),
        "--retriever": ("dense", "0.setting.retrieval.retriever", "dense"),
        "--max-searches": ("2", "0.setting.agent.max_turns", 4),
        "--max-tokens": ("64", "0.setting.agent.answer_tokens", 16),
        "--context-tokens": ("2048", "0.setting.serving.vllm.max_model_len", 2048),
        "--timeout-s": ("40", "0.setting.agent.call_timeout_s", 10),
        "--concurrency": ("3", "0.setting.agent.concurrency", 3),
        "--name": ("mine", "0.name", "mine"),
        "--draws": ("200", "0.setting.evaluate.draws", 200),
        "--seed": ("7", "0.setting.seed", 7),
        "--out": ("results", "2", Path("results")),
    },
)
EVALUATE_WORLD = Command(
    "evaluate --model org/gpt-x --base-url http://127.0.0.1:9/v1 --world-seed 3",
    "deepsearch_rl.evaluate.standalone.evaluate",
    {
        "--world-seed": ("5", "0.world_seed", 5),
        "--questions": ("5", "0.setting.evaluate.sets.hotpotqa.questions", 5),
        "--samples": ("3", "0.setting.evaluate.sets.multihoprag.samples", 3),
        "--prompt": ("multihoprag", "0.setting.agent.prompt", "multihoprag"),
        "--top-k": ("9", "0.setting.retrieval.top_k", 9),
        "--retriever": ("hybrid", "0.setting.retrieval.retriever", "hybrid"),
        "--concurrency": ("3", "0.setting.agent.concurrency", 3),
        "--name": ("mine", "0.name", "mine"),
        "--out": ("results", "2", Path("results")),
    },
)
EVALUATE_WEIGHTS = Command(
    "evaluate --model other --dataset musique --data set",
    EVALUATE.function,
    {
        "--model": ("set", "0.model", Path("set")),
        "--backend": ("vllm", "0.setting.serving.backend", "vllm"),
    },
)
BUILD = Command(
    "retrieve build --corpus corpus.jsonl --out index",
    "deepsearch_rl.search.build.build_index",
    {
        "--corpus": ("other.jsonl", "0", Path("other.jsonl")),
        "--out": ("other", "1", Path("other")),
        "--params": (f"{ROOT / 'params.yaml'}", "2.fusion.learning.questions", 300),
        "--corpus-name": (
            f"outworld --params {ROOT / 'profiles' / 'gpu' / 'params.yaml'}",
            "2.encoder.dtype",
            "float16",
        ),
        "--encoder": ("org/encoder", "2.encoder.model", "org/encoder"),
        "--dimension": ("32", "2.encoder.dimension", 32),
        "--query-prefix": ("query: --encoder e", "2.encoder.query_prefix", "query:"),
        "--passage-prefix": ("passage: --encoder e", "2.encoder.passage_prefix", "passage:"),
        "--revision": ("f52bf8e --encoder org/encoder", "2.encoder.revision", "f52bf8e"),
        "--pooling": ("cls --encoder e", "2.encoder.pooling", "cls"),
        "--max-tokens": ("99 --encoder e", "2.encoder.max_tokens", 99),
        "--device": ("cuda --encoder e", "2.encoder.dtype", "float16"),
        "--engine": ("onnx --encoder e", "2.encoder.name", "onnx"),
        "--dtype": ("bfloat16 --encoder e", "2.encoder.dtype", "bfloat16"),
        "--vectors": ("ivf_pq_refine", "2.vectors.refine_factor", 10),
        "--nlist": ("2 --vectors ivf_flat", "2.vectors.nlist", 2),
        "--nprobe": ("3 --vectors ivf_pq", "2.vectors.nprobe", 3),
        "--m": ("4 --vectors ivf_pq_refine", "2.vectors.m", 4),
        "--nbits": ("5 --vectors ivf_pq", "2.vectors.nbits", 5),
        "--train-rows": ("6 --vectors ivf_flat", "2.vectors.train_rows", 6),
        "--half": ("", "2.encoding.dtype", "float16"),
        "--only": ("bm25", "2.encoder", None),
        "--k1": ("1.5", "2.bm25.k1", 1.5),
        "--b": ("0.75", "2.bm25.b", 0.75),
        "--field": ("title=2 --field body=1", "2.bm25.fields", {"title": 2.0, "body": 1.0}),
        "--questions": ("questions.jsonl", "5.0.id", "q"),
        "--work": ("work", "4", Path("work")),
        "--threads": ("3 --encoder e", "7", 3),
        "--seed": ("7", "3", 7),
    },
)
IMPORT_INDEX = Command(
    "retrieve import cells.index --corpus corpus.jsonl --out index --encoder e",
    "deepsearch_rl.search.build.build_index",
    {
        "--corpus": ("other.jsonl", "0", Path("other.jsonl")),
        "--out": ("other", "1", Path("other")),
        "--encoder": ("org/encoder", "2.encoder.model", "org/encoder"),
        "--revision": ("f52bf8e", "2.encoder.revision", "f52bf8e"),
        "--query-prefix": ("query:", "2.encoder.query_prefix", "query:"),
        "--passage-prefix": ("passage:", "2.encoder.passage_prefix", "passage:"),
        "--pooling": ("cls", "2.encoder.pooling", "cls"),
        "--max-tokens": ("99", "2.encoder.max_tokens", 99),
        "--device": ("cuda", "2.encoder.dtype", "float16"),
        "--engine": ("onnx", "2.encoder.name", "onnx"),
        "--dtype": ("bfloat16", "2.encoder.dtype", "bfloat16"),
        "--nprobe": ("3", "2.vectors.nprobe", 3),
    },
)
IMPORT_GRAPH = Command(
    "retrieve import graph.index --corpus corpus.jsonl --out index --encoder e",
    IMPORT_INDEX.function,
    {"--ef-search": ("5", "2.vectors.ef_search", 5)},
)
IMPORT_LUCENE = Command(
    "retrieve import lucene --corpus corpus.jsonl --out index",
    IMPORT_INDEX.function,
    {
        "--k1": ("1.5", "2.bm25.k1", 1.5),
        "--b": ("0.75", "2.bm25.b", 0.75),
        "--heap-mb": ("99", "2.bm25.heap_mb", 99),
    },
)
QUANTIZE = Command(
    "retrieve quantize model --out out",
    "deepsearch_rl.search.encoders.quantization.quantize_export",
    {"--out": ("other", "1", Path("other")), "--seven-bits": ("", "2", True)},
)
SERVE = Command(
    "retrieve serve --index index",
    "deepsearch_rl.server.launch.open_listener",
    {
        "--index": ("other", "0.index", Path("other")),
        "--chunks": ("chunks.jsonl", "0.chunks", Path("chunks.jsonl")),
        "--retriever": ("hybrid", "0.retrieval.retriever", "hybrid"),
        "--top-k": ("9", "0.retrieval.top_k", 9),
        "--reranker": ("cross", "0.retrieval.reranker.model", Path("cross")),
        "--rerank-depth": ("7 --reranker cross", "0.retrieval.reranker.depth", 7),
        "--rerank-tokens": ("64 --reranker cross", "0.retrieval.reranker.max_tokens", 64),
        "--rerank-batch-tokens": ("128 --reranker cross", "0.retrieval.reranker.batch_tokens", 128),
        "--rerank-device": ("cuda --reranker cross", "0.retrieval.reranker.device", "cuda"),
        "--rerank-dtype": ("bfloat16 --reranker cross", "0.retrieval.reranker.dtype", "bfloat16"),
        "--host": ("::1", "0.host", "::1"),
        "--port": ("0", "0.port", 0),
        "--public": ("", "0.public", True),
        "--no-token": ("", "0.no_token", True),
        "--token-variable": ("TOKEN", "0.token_variable", "TOKEN"),
        "--pages": ("pages.jsonl", "0.retrieval.pages", Path("pages.jsonl")),
        "--window-ms": ("2.5", "0.retrieval.window_ms", 2.5),
        "--max-batch": ("8", "0.retrieval.max_batch", 8),
        "--threads": ("3", "0.threads", 3),
        "--cache-entries": ("0", "0.retrieval.cache_entries", 0),
        "--search-timeout-s": ("2.5", "0.retrieval.search_timeout_s", 2.5),
    },
)
SERVE_ONLINE = Command(
    "retrieve serve",
    SERVE.function,
    {"--online": ("brave", "0.retrieval.online", "brave")},
)
SEARCH = Command(
    "retrieve search --index index words",
    "deepsearch_rl.search.searcher.open_index",
    {
        "--index": ("other", "0", Path("other")),
        "--chunks": ("chunks.jsonl", "1", Path("chunks.jsonl")),
        "--retriever": ("dense", "2", "dense"),
    },
)
SEARCH_OPENED = Command(
    "retrieve search --index index words",
    "tests.cli.test_options.search",
    {
        "--top-k": ("9", "1", 9),
        "--source": ("Atlas", "2", Filter(source="Atlas")),
        "--after": ("2020-01-02", "2.after.day", 2),
        "--before": ("2020-01-03", "2.before.day", 3),
    },
)
SEARCH_RERANKED = Command(
    "retrieve search --index index words --reranker cross",
    "deepsearch_rl.server.rerank.CrossEncoder",
    {
        "--reranker": ("other", "0.model", Path("other")),
        "--rerank-depth": ("7", "0.depth", 7),
    },
)
EVAL = Command(
    "retrieve eval --index index --questions questions.jsonl",
    "deepsearch_rl.search.comparison.compare_retrievers",
    {
        "--index": ("other", "1", Path("other")),
        "--questions": ("two.jsonl", "2.1.id", "r"),
        "--retriever": ("bm25 --retriever rrf", "3", ["bm25", "rrf"]),
        "--stored-weights": ("", "5", None),
        "--cross-validate": ("", "5.folds", 5),
        "--folds": ("3 --retriever hybrid", "5.folds", 3),
        "--ridge": ("0.5 --retriever hybrid", "5.ridge", 0.5),
        "--cutoffs": ("1,20", "4", [1, 20]),
        "--chunks": ("chunks.jsonl", "0.chunks", Path("chunks.jsonl")),
        "--seed": ("7", "6", 7),
        "--draws": ("50", "7", 50),
    },
)
FRONTIER = Command(
    "retrieve frontier --vectors vectors.npy --out out",
    "deepsearch_rl.search.frontier.measure_frontier",
    {
        "--vectors": ("more.npy", "0", Path("more.npy")),
        "--queries": ("queries.npy", "1.own_Q.0", -1),
        "--sample-queries": ("2", "1.own_Q.size", 2),
        "--kinds": ("hnsw", "2.0.0.kind", "hnsw"),
        "--nlist": ("3 --kinds ivf_flat", "2.0.0.nlist", 3),
        "--batch": ("8", "3", 8),
        "--out": ("other", "4", Path("other")),
        "--seed": ("7", "5", 7),
    },
)
FRONTIER_OF_INDEX = Command(
    "retrieve frontier --out out",
    FRONTIER.function,
    {"--index": ("index", "0", Path("index/dense/vectors.npy"))},
)
FRONTIER_MEASURED = Command(
    FRONTIER.line,
    "deepsearch_rl.search.frontier.recommend",
    {"--memory-budget": ("300MB", "1", 300.0), "--target": ("0.5", "2", 0.5)},
)
ASK = Command(
    "ask who?",
    "deepsearch_rl.cli.ask.ask",
    {
        "--profile": ("smoke", "1.name", "smoke"),
        "--model": ("sft", "2", Path("models/tiny/sft")),
        "--dataset": ("musique", "3", "musique"),
        "--retrieval-url": ("http://127.0.0.1:9", "5", "http://127.0.0.1:9"),
        "--prompt": ("multihoprag", "1.values.agent.prompt", "multihoprag"),
        "--protocol": ("search_tags", "1.values.agent.protocol", "search_tags"),
        "--top-k": ("9", "1.values.retrieval.top_k", 9),
        "--temperature": ("0.5", "4", 0.5),
    },
)
ASK_ENDPOINT = Command(
    "ask who? --model remote",
    ASK.function,
    {"--request": ("temperature=omit", "7.temperature", "omit")},
)
SCORE = Command(
    "score predictions.jsonl",
    "deepsearch_rl.cli.score.report_scores",
    {"--draws": ("0", "2", 0), "--seed": ("7", "1", 7)},
)
COMPARE = Command(
    "compare predictions.jsonl predictions.jsonl",
    "deepsearch_rl.cli.score.report_comparison",
    {"--draws": ("50", "3", 50), "--seed": ("7", "2", 7)},
)
PREFLIGHT = Command(
    "preflight gpu",
    "tools.preflight.command.preflight",
    {"--only": ("rl", "1", "rl"), "--keep": ("", "2", True)},
)
EXPLAIN = Command(
    "explain predictions.jsonl",
    "deepsearch_rl.cli.explain.explain_paths",
    {
        "--questions": ("questions.jsonl", "1.questions", Path("questions.jsonl")),
        "--index": ("index", "1.index", Path("index")),
        "--corpus": ("corpus.jsonl", "1.corpus", Path("corpus.jsonl")),
        "--chunks": ("chunks.jsonl", "1.chunks", Path("chunks.jsonl")),
        "--retriever": ("dense", "1.retriever", "dense"),
        "--top-k": ("7", "1.top_k", 7),
        "--dataset": ("musique", "1.dataset", "musique"),
        "--against": ("CoRAG-8B", "1.against", "CoRAG-8B"),
        "--control": ("no_search=predictions.jsonl", "1.controls.no_search.n", 1),
        "--draws": ("50", "1.draws", 50),
        "--seed": ("7", "1.seed", 7),
    },
)
CONVERT = Command(
    "trajectories convert rows.jsonl out.jsonl --to trl",
    "deepsearch_rl.agent.exchange.export_rows",
    {"--to": ("verl", "2", "verl")},
)
CONVERT_QUESTIONS = Command(
    "trajectories convert rows.jsonl out.jsonl --to verl",
    "deepsearch_rl.agent.exchange.export_rows",
    {
        "--dataset": ("musique", "3", "musique"),
        "--split": ("dev", "4", "dev"),
        "--prompt": ("tiny", "5", "tiny"),
    },
)
IMPORT = Command(
    "trajectories convert rows.jsonl out.jsonl --to trajectories",
    "deepsearch_rl.evaluate.imported_results.import_results",
    {"--model": ("kimi-k2", "2", "kimi-k2")},
)
STATS = Command(
    "trajectories stats rows.jsonl",
    "deepsearch_rl.cli.trajectories.read_statistics",
    {"--questions": ("questions.jsonl", "1", Path("questions.jsonl"))},
)
TRACK = Command(
    "track",
    "deepsearch_rl.track.upload.upload_all",
    {"--to": ("http://127.0.0.1:9", "2", "http://127.0.0.1:9"), "--timeout-s": ("3", "3", 3.0)},
)
LIVE = Command(
    "live",
    "deepsearch_rl.track.live.LiveFigures",
    {
        "--to": ("http://127.0.0.1:9", "2", "http://127.0.0.1:9"),
        "--timeout-s": ("3", "3", 3.0),
        "--tag": ("commit=abc", "5.commit", "abc"),
    },
)
LIVE_FOLLOWED = Command(
    "live", "deepsearch_rl.track.live.follow", {"--follow": ("", "0.stage", "")}
)
LIVE_STAGE = Command(
    "live", "deepsearch_rl.track.live.follow", {"--stage": ("sft", "0.stage", "sft")}
)
PLAN = Command(
    "plan tiny",
    "deepsearch_rl.cli.plan.make_plan",
    {"--slope": ("rollout_s=0.5 --slope copies=1", "1", {"rollout_s": 0.5, "copies": 1.0})},
)
PLAN_SIZES = Command(
    "plan tiny --sizes 3",
    "deepsearch_rl.cli.plan.verl_scales",
    {"--sizes": ("7,72", "2", [7.0, 72.0])},
)
CONVERT_MODEL = Command(
    "model convert actor out --from verl-fsdp --start base --python python",
    "deepsearch_rl.cli.model.convert",
    {
        "--from": ("verl-megatron", "0.kind", Kind.VERL_MEGATRON),
        "--start": ("other", "1", Path("other")),
        "--python": ("other", "0.python", "other"),
        "--model": ("Qwen2.5-3B", "0.model", "Qwen2.5-3B"),
        "--tensor-parallel": ("2", "0.tensor_parallel", 2),
        "--pipeline-parallel": ("4", "0.pipeline_parallel", 4),
        "--rounded": ("", "0.rounds", True),
    },
)
COMMANDS = (
    PLAN,
    PLAN_SIZES,
    CONVERT_MODEL,
    EVALUATE,
    EVALUATE_WORLD,
    EVALUATE_WEIGHTS,
    BUILD,
    IMPORT_INDEX,
    IMPORT_GRAPH,
    IMPORT_LUCENE,
    QUANTIZE,
    SERVE,
    SERVE_ONLINE,
    SEARCH,
    SEARCH_OPENED,
    SEARCH_RERANKED,
    EVAL,
    FRONTIER,
    FRONTIER_OF_INDEX,
    FRONTIER_MEASURED,
    ASK,
    ASK_ENDPOINT,
    SCORE,
    COMPARE,
    PREFLIGHT,
    EXPLAIN,
    CONVERT,
    CONVERT_QUESTIONS,
    IMPORT,
    STATS,
    TRACK,
    LIVE,
    LIVE_FOLLOWED,
    LIVE_STAGE,
)
CASES = [(command, option) for command in COMMANDS for option in command.options]


class Called(Exception):
    """The library function was called, with these arguments."""

    def __init__(self, arguments: tuple[object, ...]) -> None:
        self.arguments = arguments


def search(queries: list[str], top_k: int, where: Filter) -> None:
    """Stands for the search of an open index."""


@dataclass(frozen=True, slots=True)
class OpenIndex:
    """Stands for an open index."""

    index: Path
    chunks: Path | None
    retriever: str = "bm25"

    def find_hits(self, queries: list[str], top_k: int, where: Filter) -> None:
        search(queries, top_k, where)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with the profiles and the small files that command lines name."""
    for profile in ("profiles/smoke/params.yaml", "params.yaml"):
        (tmp_path / profile).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / profile).write_bytes((ROOT / profile).read_bytes())
    question = {"id": "q", "question": "Who?", "golden_answers": ["Ada"]}
    (tmp_path / "lucene").mkdir()
    (tmp_path / "lucene" / "segments_1").touch()
    (tmp_path / "questions.jsonl").write_text(json.dumps(question) + "\n")
    (tmp_path / "two.jsonl").write_text(
        json.dumps(question) + "\n" + json.dumps(question | {"id": "r"}) + "\n"
    )
    (tmp_path / "predictions.jsonl").write_text(json.dumps(question | {"pred": "Ada"}) + "\n")
    for folder in ("set", "other"):
        (tmp_path / folder).mkdir()
        for name in ("corpus.jsonl", "questions.jsonl"):
            (tmp_path / folder / name).touch()
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote" / "endpoint.json").write_text("{}")
    (tmp_path / "index" / "dense").mkdir(parents=True)
    for name in ("vectors.npy", "more.npy", "queries.npy", "index/dense/vectors.npy"):
        np.save(tmp_path / name, np.eye(8, dtype=np.float32))
    for name, kind in (("cells.index", "IVF1,Flat"), ("graph.index", "HNSW8,Flat")):
        index = faiss.index_factory(8, kind, faiss.METRIC_INNER_PRODUCT)
        faiss.write_index(index, str(tmp_path / name))
    for variable in ("OPENAI_API_KEY", "OTHER_KEY"):
        monkeypatch.setenv(variable, "sk-of-the-test")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("deepsearch_rl.server.launch.log_to_stderr", lambda: None)
    # It changes this process
    monkeypatch.setattr("deepsearch_rl.cli.live._end_on_sigterm", lambda *_: None)


def arguments_of(command: Command, extra: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments with which a command line calls its function; names of endpoints are read from their files."""
    module, name = command.function.rsplit(".", 1)
    original = getattr(importlib.import_module(module), name)

    def record(*arguments: object, **named: object) -> None:
        bound = inspect.signature(original).bind(*arguments, **named)
        bound.apply_defaults()
        raise Called(bound.args)

    with monkeypatch.context() as patch:
        if command.function != SEARCH.function:
            patch.setattr("deepsearch_rl.search.searcher.open_index", OpenIndex)
        if command is FRONTIER_MEASURED:
            patch.setattr(FRONTIER.function, lambda *_: [])
        patch.setattr(importlib.import_module(module), name, record)
        result = CliRunner().invoke(app, f"{command.line} {extra}".split())
    assert isinstance(result.exception, Called), f"{result.output}{result.exception!r}"
    return list(result.exception.arguments)


def field(value: Any, path: str) -> Any:
    for name in path.split("."):
        if name == "endpoint":
            value = json.loads((value / "endpoint.json").read_text())
        elif name.isdigit():
            value = value[int(name)] if int(name) < len(value) else None
        else:
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    return value


DEFAULTS: dict[tuple[str, str], dict[str, Any]] = {}
"""What the fields of all options are without the options, by command line and function."""


def default_of(command: Command, option: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The value that an option changes; the command runs once for all its options."""
    key = command.line, command.function
    if key not in DEFAULTS:
        arguments = arguments_of(command, "", monkeypatch)
        DEFAULTS[key] = {
            name: field(arguments, path) for name, (_, path, _) in command.options.items()
        }
    return DEFAULTS[key][option]


@pytest.mark.parametrize(
    ("command", "option"),
    CASES,
    ids=[f"{case[0].line.split(' --')[0]} {case[1]}" for case in CASES],
)
def test_an_option_arrives_where_it_is_used(
    command: Command, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, path, expected = command.options[option]
    assert field(arguments_of(command, f"{option} {text}", monkeypatch), path) == expected
    if option != "--cross-validate" and command not in (
        SERVE_ONLINE,
        FRONTIER_OF_INDEX,
        LIVE_FOLLOWED,
        LIVE_STAGE,
    ):
        assert default_of(command, option, monkeypatch) != expected


def test_a_model_folder_is_served_by_vllm_with_the_settings_of_the_preset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request, *_ = arguments_of(
        EVALUATE_WEIGHTS, "--backend vllm --context-tokens 4096", monkeypatch
    )
    call = vllm_serve_command(Path("weights"), request.setting.serving.vllm, 8000)
    assert call[call.index("--max-model-len") + 1] == "4096"
    assert call[call.index("--dtype") + 1] == "bfloat16"


def test_every_option_of_every_command_has_a_case() -> None:
    cases = {
        (" ".join(name), option) for command in COMMANDS for name, option in named_options(command)
    }
    assert not set(all_options()) - cases


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("plan tiny --sizes 3 --check", "--check does nothing with --sizes"),
        ("plan tiny --check --json", "--json does nothing with --check"),
        ("preflight gpu --list --only serve", "--only does nothing with --list"),
        ("preflight gpu --list --keep", "--keep does nothing with --list"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(line: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        CliRunner().invoke(app, line.split(), catch_exceptions=False)


def named_options(command: Command) -> Iterator[tuple[list[str], str]]:
    words = command.line.split()
    name = words[: 2 if words[0] in ("retrieve", "trajectories", "rl", "model") else 1]
    return ((name, option) for option in command.options)


def leaf_commands() -> dict[tuple[str, ...], Any]:
    leaves: dict[tuple[str, ...], Any] = {(name,): load_command(name) for name in cli.COMMANDS}
    for (name,), command in list(leaves.items()):
        if hasattr(command, "commands"):
            del leaves[(name,)]
            leaves |= {(name, inner): leaf for inner, leaf in command.commands.items()}
    return leaves


@pytest.mark.parametrize("path", [" ".join(path) for path in [(), *leaf_commands()]])
def test_no_help_text_loses_a_name_in_angle_brackets(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    shown = CliRunner().invoke(app, [*path.split(), "--help"]).stdout
    # Markdown takes <profile> outside of backticks as a tag and shows nothing: data//evaluate
    assert not re.findall(r"(?<!:)//", shown)


def test_the_help_of_evaluate_names_the_sets_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 400)
    shown = CliRunner().invoke(app, ["evaluate", "--help"]).stdout
    [sets] = re.findall(r"Question set: (.*) or (\w+)\.", " ".join(shown.split()))
    names = re.findall(r"\w+", " ".join(sets))
    others = {"which", "is", "fetched", "or", "with", "data"}
    assert set(names) - others == (CARDS.keys() & QUESTION_FORMATS.keys())


def all_options() -> Iterator[tuple[str, str]]:
    for path, command in leaf_commands().items():
        for parameter in command.params:
            if parameter.param_type_name == "option":
                for option in (*parameter.opts, *parameter.secondary_opts):
                    if option not in PRINTED:
                        yield " ".join(path), option
