"""`deepsearch evaluate` against a scripted endpoint: data are made once, answers kept, errors one paragraph."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from deepsearch_rl.cli import evaluate as evaluate_module
from deepsearch_rl.cli.evaluate import _endpoint_folder
from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import (
    ArtifactError,
    ConfigError,
    DeepsearchError,
    EndpointError,
    UnknownNameError,
)
from deepsearch_rl.core.files import read_json, read_jsonl, write_json
from deepsearch_rl.core.profile import Profile, find_profile
from deepsearch_rl.core.records import Trajectory
from deepsearch_rl.evaluate import evaluate_model
from deepsearch_rl.evaluate.standalone import WorldEvaluation
from deepsearch_rl.serve import launch
from tests.conftest import ROOT
from tests.evaluate.chat import KEY, ChatEndpoint, says, searches, serve_chat
from tests.model_servers import serve_models_here
from tests.policies import policy_folder
from tests.search_servers import serve_index_here

__all__ = ["policy_folder"]

TOWNS = {"Ada Holt": "Stoke", "Ben Ide": "Burslem", "Cy Jones": "Hanley", "Dee Kerr": "Longton"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A question set with its corpus; the command works in a folder of its own, and searches in this process."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(evaluate_model, "serve_index", serve_index_here)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    # The settings of a generated world
    shutil.copy(ROOT / "params.yaml", "params.yaml")
    root = tmp_path / "set"
    root.mkdir()
    documents = [
        {"id": who, "title": who, "text": f"{who} was born in {town}."}
        for who, town in TOWNS.items()
    ]
    asked = [
        {"id": who, "question": f"Where was {who} born?", "golden_answers": [town]}
        for who, town in TOWNS.items()
    ]
    for name, rows in (("corpus", documents), ("dev", asked)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def reads(body: dict[str, Any]) -> dict[str, Any]:
    """Search once, then answer with the town of the best passage."""
    messages = body["messages"]
    if messages[-1]["role"] == "tool":
        return says(
            f"<answer> {re.findall('born in (.*?)[.]', messages[-1]['content'])[0]}</answer>"
        )
    return searches(messages[-1]["content"][10:-6])


def evaluate(chat: ChatEndpoint | None, folder: Path | None, *options: str) -> Result:
    command = ["evaluate", "--model", "org/gpt-x", "--dataset", "musique", "--retriever", "bm25"]
    command += ["--base-url", chat.endpoint.base_url] if chat else []
    command += ["--data", str(folder)] if folder else []
    return CliRunner().invoke(app, [*command, *options])


def failure(result: Result, kind: type[DeepsearchError]) -> str:
    assert isinstance(result.exception, kind), result.output
    return str(result.exception)


@pytest.mark.slow
def test_a_row_with_its_interval_comes_out_and_more_questions_keep_the_answers_there(
    folder: Path,
) -> None:
    out = Path("out")
    with serve_chat(reads) as chat:
        first = evaluate(chat, folder, "--questions", "2", "--out", str(out))
        asked = len(chat.requests)
        result = evaluate(chat, folder, "--concurrency", "2", "--out", str(out), "--json")
    assert first.exit_code == result.exit_code == 0, first.output + result.output
    assert f"gpt-x: org/gpt-x at {chat.endpoint.base_url}" in first.stdout
    assert re.search(r"musique .* 2 x 1 .* 1\.000 .*\[1\.000, 1\.000\].* none", first.stdout)
    assert asked == 2 * 2
    assert len(chat.requests) == 4 * 2
    [row] = json.loads(result.stdout)["rows"]
    assert (row["model"], row["n"], row["f1"], row["top_k"], row["chunk_size"]) == (
        "gpt-x",
        4,
        1.0,
        3,
        256,
    )
    assert read_json(out / "rows.json")["rows"] == [row]
    rollouts = list(read_jsonl(out / "musique.search.t0.7.jsonl", Trajectory))
    assert {rollout.model for rollout in rollouts} == {"org/gpt-x"}
    assert not any(
        KEY.encode() in path.read_bytes() for path in Path().rglob("*") if path.is_file()
    )
    explained = CliRunner().invoke(app, ["explain", str(out), "--json", "--draws", "50"])
    assert explained.exit_code == 0, explained.exception
    [run] = json.loads(explained.stdout)["runs"]
    assert (run["f1"]["mean"], run["passages"]) == (1.0, 4)


@pytest.mark.slow
def test_failures_are_counted_by_kind_and_the_controls_stand_below(folder: Path) -> None:
    def silent(body: dict[str, Any]) -> dict[str, Any]:
        return (
            says("I do not know.")
            if "Ada" in body["messages"][1]["content"]
            else says("<answer> Hanley</answer>")
        )

    with serve_chat(silent) as chat:
        result = evaluate(chat, folder, "--controls", "4", "--greedy", "2", "--chunk-size", "16")
    assert result.exit_code == 0, result.output
    assert "1 no_answer_tag" in result.stdout
    assert re.search(r"musique, no_search: F1 0\.250 .* on 4; with search 0\.250", result.stdout)
    assert re.search(r"2 x 1 .* 0 ", result.stdout)


def test_what_is_missing_or_misspelt_is_named(folder: Path) -> None:
    assert "--data FOLDER" in failure(evaluate(None, None), ConfigError)
    with pytest.raises(UnknownNameError, match="Did you mean 'musique'"):
        CliRunner().invoke(
            app, ["evaluate", "--model", "m", "--dataset", "musiqe"], catch_exceptions=False
        )
    message = failure(evaluate(None, folder, "--key-variable", "sk-secret"), ConfigError)
    assert "--key-variable" in message
    assert "sk-secret" not in message
    message = failure(
        evaluate(None, folder, "--base-url", "http://me:sk-secret@127.0.0.1:9/v1"), ConfigError
    )
    assert "$OPENAI_BASE_URL" in message
    assert "sk-secret" not in message
    assert "prompt" in failure(evaluate(None, folder, "--prompt", "multihoprg"), UnknownNameError)
    (folder / "corpus2.jsonl").touch()
    assert "corpus.jsonl, corpus2.jsonl" in failure(evaluate(None, folder), ArtifactError)


@pytest.mark.parametrize(
    "model", ["models/tiny/sftt", "./sftt", "/nowhere/sft", "~/sft", "here/sft", "file"]
)
def test_a_path_that_is_no_folder_is_never_asked_of_an_endpoint(folder: Path, model: str) -> None:
    Path("here").mkdir()
    Path("file").touch()
    assert f"{model} reads as a path" in failure(
        evaluate(None, folder, "--model", model), ConfigError
    )


def test_an_empty_address_or_name_and_a_folder_that_is_not_there_are_named(folder: Path) -> None:
    message = failure(evaluate(None, folder, "--base-url", ""), ConfigError)
    assert message.startswith("--base-url: ")
    assert failure(evaluate(None, folder, "--model", ""), ConfigError).startswith("--model: ")
    assert "nowhere is not a folder" in failure(evaluate(None, folder / "nowhere"), ArtifactError)


def test_a_folder_with_something_else_than_an_evaluation_is_left_alone(folder: Path) -> None:
    letters = Path("letters")
    letters.mkdir()
    (letters / "dear.txt").write_text("Dear Ada,")
    options = ["--base-url", "http://127.0.0.1:9/v1", "--out"]
    assert "letters holds no evaluation" in failure(
        evaluate(None, folder, *options, str(letters)), ConfigError
    )
    assert (letters / "dear.txt").read_text() == "Dear Ada,"


@pytest.mark.slow
def test_models_of_two_owners_and_two_settings_of_one_keep_their_results(folder: Path) -> None:
    def place(*options: str) -> Path:
        result = evaluate(chat, folder, "--questions", "1", *options)
        assert result.exit_code == 0, result.output
        [found] = re.findall(
            "^rollouts and rows.json: (.*)$", result.stderr + result.stdout, re.MULTILINE
        )
        return Path(found)

    with serve_chat(reads) as chat:
        settings = [
            ("--model", "a/llama"),
            ("--model", "b/llama"),
            ("--top-k", "1"),
            ("--prompt", "tiny"),
        ]
        places = [place(*options) for options in settings]
        asked = len(chat.requests)
        again = place("--model", "a/llama", "--concurrency", "2", "--json")
    assert len(set(places)) == 4
    assert (again, len(chat.requests)) == (places[0], asked)
    rows = [read_json(path / "rows.json")["rows"][0] for path in places]
    assert [row["checkpoint"].partition(" ")[0] for row in rows] == [
        "a/llama",
        "b/llama",
        "org/gpt-x",
        "org/gpt-x",
    ]
    assert [(row["top_k"], row["prompt"]) for row in rows[2:]] == [
        (1, "multihoprag_nothink"),
        (3, "tiny"),
    ]
    assert len(list(Path("work/evaluate/models").glob("llama-*/endpoint.json"))) == 2


@pytest.mark.slow
def test_a_missing_variable_and_a_server_that_is_away_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert "OPENAI_BASE_URL" in failure(evaluate(None, folder), ConfigError)
    away = evaluate(None, folder, "--base-url", "http://127.0.0.1:9/v1")
    assert "http://127.0.0.1:9/v1" in failure(away, EndpointError)
    monkeypatch.delenv("OPENAI_API_KEY")
    assert "OPENAI_API_KEY" in failure(
        evaluate(None, folder, "--base-url", "http://127.0.0.1:9/v1"), ConfigError
    )


@pytest.mark.slow
def test_a_folder_with_weights_is_served_and_evaluated(
    folder: Path, policy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate_model, "serve_models", serve_models_here)
    options = [
        "--context-tokens",
        "512",
        "--max-tokens",
        "16",
        "--prompt",
        "tiny",
        "--questions",
        "2",
    ]
    command = [
        "evaluate",
        "--model",
        str(policy_folder),
        "--dataset",
        "musique",
        "--data",
        str(folder),
        *options,
    ]
    result = CliRunner().invoke(app, [*command, "--json"])
    assert result.exit_code == 0, result.output
    [row] = json.loads(result.stdout)["rows"]
    assert (row["checkpoint"], row["n"]) == (policy_folder.as_posix(), 2)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_a_generated_world_is_made_once_and_its_four_sets_are_answered() -> None:
    def refuses(_: dict[str, Any]) -> dict[str, Any]:
        return says("<answer> Insufficient information.</answer>")

    def run(seed: int) -> dict[str, Any]:
        command = ["evaluate", "--model", "org/gpt-x", "--base-url", chat.endpoint.base_url]
        command += ["--world-seed", str(seed), "--questions", "2", "--json"]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        return {row["dataset"]: row for row in json.loads(result.stdout)["rows"]}

    with serve_chat(refuses) as chat:
        rows = run(3)
        made = {path: path.stat().st_mtime_ns for path in Path("work/evaluate/data").rglob("*")}
        again = run(3)

    assert set(rows) == {"multihoprag", "musique", "2wikimultihopqa", "hotpotqa"}
    assert {(row["n"], row["retriever"], row["prompt"]) for row in rows.values()} == {
        (2, "bm25", "tiny")
    }
    assert again == rows
    assert {path: path.stat().st_mtime_ns for path in made} == made
    # corpora/world/test_generate.py compares the worlds of two seeds
    [world] = Path("work/evaluate/data").glob("world-*")
    assert world.name.startswith("world-3-")


@pytest.mark.parametrize("option", ["--dataset", "--data"])
def test_a_world_has_its_own_sets(option: str, folder: Path) -> None:
    command = ["evaluate", "--model", "org/gpt-x", "--world-seed", "3", option, str(folder)]
    assert f"so {option} does not go with it" in failure(
        CliRunner().invoke(app, command), ConfigError
    )


def world_setting(*options: str) -> Profile:
    """The profile of a world's evaluation with these options."""
    described: list[WorldEvaluation] = []

    def note(world: WorldEvaluation, *_: object) -> None:
        described.append(world)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate_module, "_evaluate", note)
        command = ["evaluate", "--model", "org/gpt-x", "--base-url", "http://127.0.0.1:9/v1"]
        result = CliRunner().invoke(app, [*command, "--world-seed", "3", *options])
    assert result.exit_code == 0, result.exception
    [world] = described
    assert world.setting.chunk
    return world.profile


@pytest.mark.usefixtures("folder")
def test_an_option_brings_what_follows_from_it_into_a_world_as_well() -> None:
    plain = world_setting()
    tiny = find_profile(ROOT, "tiny")
    assert plain.value("agent") == tiny.value("agent") | {"prompt": "tiny"}
    assert world_setting("--max-searches", "12").value("agent.max_turns") == 14
    assert world_setting("--timeout-s", "30").value("agent.call_timeout_s") == 7.5
    assert world_setting("--max-tokens", "16").value("agent.answer_tokens") == 4
    wider = world_setting("--context-tokens", "4096").value("serving")
    assert (wider["cpu"]["context_tokens"], wider["vllm"]["max_model_len"]) == (4096, 4096)
    assert world_setting("--protocol", "search_tags").value("agent.prompt") == "search_tags"


@pytest.mark.parametrize("world", [(), ("--world-seed", "3")])
def test_tokens_of_a_call_that_leave_no_room_are_named_by_their_options(
    world: tuple[str, ...], folder: Path
) -> None:
    command = ["evaluate", "--model", "org/gpt-x", "--base-url", "http://127.0.0.1:9/v1", *world]
    command += [] if world else ["--dataset", "musique", "--data", str(folder)]
    result = CliRunner().invoke(app, [*command, "--max-tokens", "40000"])
    assert "--max-tokens 40000 leaves no room" in failure(result, ConfigError)


@pytest.mark.parametrize("option", ["--base-url", "--key-variable", "--request"])
def test_an_option_of_an_endpoint_is_refused_beside_a_folder(option: str, folder: Path) -> None:
    value = "temperature=omit" if option == "--request" else "http://127.0.0.1:9/v1"
    command = ["evaluate", "--model", str(folder), option, value, "--data", str(folder)]
    message = failure(CliRunner().invoke(app, [*command, "--dataset", "musique"]), ConfigError)
    assert message.startswith(f"{option} is for a model behind an endpoint")


@pytest.mark.parametrize("world", [(), ("--world-seed", "3")])
def test_a_server_of_weights_is_refused_beside_an_endpoint(
    world: tuple[str, ...], folder: Path
) -> None:
    write_json(folder / "api" / "endpoint.json", {})
    address = ("--base-url", "http://127.0.0.1:9/v1")
    for model in (("org/gpt-x", *address), (str(folder / "api"),)):
        command = ["evaluate", "--backend", "vllm", *world, "--model", *model]
        message = failure(CliRunner().invoke(app, command), ConfigError)
        assert message.startswith("--backend serves the weights of a folder")


def test_random_passages_without_controls_are_refused(folder: Path) -> None:
    options = ("--base-url", "http://127.0.0.1:9/v1", "--random-passages")
    assert "(--controls N)" in failure(evaluate(None, folder, *options), ConfigError)


RECORDED_VLLM = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

flags = dict(zip(sys.argv, sys.argv[1:]))
open({log!r}, "w").write(json.dumps(sys.argv[1:]))

class Vllm(BaseHTTPRequestHandler):
    def answer(self, body):
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self):
        self.answer({{}})

    def do_POST(self):
        model = json.loads(self.rfile.read(int(self.headers["content-length"])))["model"]
        message = {{"role": "assistant", "content": "<answer> Stoke</answer>"}}
        usage = {{"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}}
        choices = [{{"index": 0, "finish_reason": "stop", "message": message}}]
        self.answer({{"id": "c", "object": "chat.completion", "created": 0, "model": model, "choices": choices,
                     "usage": usage}})

HTTPServer((flags["--host"], int(flags["--port"])), Vllm).serve_forever()
"""
"""Stands in for vLLM, which needs a GPU: it notes its arguments and answers every chat with one town."""


@pytest.fixture
def vllm_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter with the stand-in beside it, on a machine that seems to have a GPU; the log of its arguments."""
    programs = tmp_path / "bin"
    programs.mkdir()
    scripts = {
        "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
        "vllm": RECORDED_VLLM.format(python=sys.executable, log=str(tmp_path / "vllm.json")),
    }
    for name, text in scripts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setattr(launch, "require_gpu", lambda *_, **__: None)
    return tmp_path / "vllm.json"


@pytest.mark.slow
def test_a_folder_with_weights_is_served_by_vllm_where_the_backend_says_so(
    folder: Path, policy_folder: Path, vllm_log: Path
) -> None:
    options = ["--backend", "vllm", "--context-tokens", "4096", "--retriever", "bm25", "--json"]
    command = [
        "evaluate",
        "--model",
        str(policy_folder),
        "--dataset",
        "musique",
        "--data",
        str(folder),
        *options,
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    [row] = json.loads(result.stdout)["rows"]
    assert (row["checkpoint"], row["n"], row["f1"]) == (policy_folder.as_posix(), 4, 0.25)
    arguments = read_json(vllm_log)
    assert arguments[:2] == ["serve", str(policy_folder)]
    assert arguments[arguments.index("--max-model-len") + 1] == "4096"
    assert "--reasoning-parser" not in arguments


@pytest.mark.slow
def test_the_tag_protocol_brings_its_own_prompt(folder: Path) -> None:
    def tags(body: dict[str, Any]) -> dict[str, Any]:
        assert "tools" not in body
        text = "".join(message["content"] for message in body["messages"])
        found = re.findall(
            r"born in (\w+)[.]", text.partition("<information>")[2].partition("<information>")[2]
        )
        who = re.findall(r"Where was (.*?) born", text)[-1]
        return says(f"<answer> {found[0]} </answer>" if found else f"<search> {who} </search>")

    with serve_chat(tags) as chat:
        result = evaluate(chat, folder, "--protocol", "search_tags", "--json")
    assert result.exit_code == 0, result.output
    [row] = json.loads(result.stdout)["rows"]
    assert (row["prompt"], row["f1"], row["mean_tool_calls"]) == ("search_tags", 1.0, 1.0)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("temperature", "write NAME=VALUE"),
        ("temperature=warm", "--request temperature"),
        ("colour=blue", "unknown option of --request 'colour'. .*token_limit"),
        ("extra_body={model: x}", "--request extra_body"),
        ("extra_body={", "--request extra_body"),
    ],
)
def test_an_option_of_a_request_that_does_not_fit_is_named(option: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _endpoint_folder("gpt-x", "https://api.example.com/v1", "KEY", [option])


@pytest.mark.slow
def test_a_row_whose_requests_leave_the_temperature_out_says_so_and_has_no_greedy_row(
    folder: Path,
) -> None:
    with serve_chat(reads) as chat:
        omit = ("--questions", "1", "--request", "temperature=omit")
        refused = failure(evaluate(chat, folder, *omit, "--greedy", "1"), ConfigError)
        assert chat.requests == []
        result = evaluate(chat, folder, *omit, "--json")
        shown = evaluate(chat, folder, *omit)
    assert "--greedy 0" in refused
    [row] = json.loads(result.stdout)["rows"]
    assert row["temperature_sent"] is False
    assert re.search(r"1 x 1 .* own ", shown.stdout)
