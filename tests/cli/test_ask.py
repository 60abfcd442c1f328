import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import ArtifactError, ConfigError, UnknownNameError
from tests.agent.search_server import serve_search
from tests.evaluate.chat import KEY, ChatEndpoint, says, searches, serve_chat
from tests.terminals import Terminal

ROOT = Path(__file__).parents[2]


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatEndpoint]:
    """A project whose one model is an endpoint that searches once and then answers."""

    def reply(body: dict) -> dict:
        return (
            says("<answer>Mary Moss</answer>")
            if body["messages"][-1]["role"] == "tool"
            else searches("its director")
        )

    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["agent"]["prompt"] = str(ROOT / params["agent"]["prompt"])
    with serve_chat(reply) as chat:
        model = {
            "base_url": chat.endpoint.base_url,
            "model": "scripted",
            "api_key_variable": "KEY_OF_THE_TEST",
        }
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "endpoint.json").write_text(json.dumps(model))
        (tmp_path / "params.yaml").write_text(
            yaml.safe_dump({**params, "models": {"api": "model"}})
        )
        monkeypatch.setenv("KEY_OF_THE_TEST", KEY)
        monkeypatch.chdir(tmp_path)
        yield chat


def ask(*options: str) -> Result:
    with serve_search(lambda _: None) as port:
        url = f"http://127.0.0.1:{port}"
        return CliRunner().invoke(
            app, ["ask", "Who directed it?", "--retrieval-url", url, *options]
        )


@pytest.mark.usefixtures("chat")
def test_queries_passages_and_the_answer_are_shown_in_the_order_in_which_they_come() -> None:
    found = ask()
    lines = [line.split() for line in found.output.splitlines()]
    assert found.exit_code == 0
    assert lines[:3] == [
        ["searches", "its", "director"],
        ["[1]", "T:", "its", "director"],
        ["answer", "Mary", "Moss"],
    ]
    assert found.output.splitlines()[3] == "1 searches, 1 passages, 2 turns, 18 + 2 tokens"


@pytest.mark.usefixtures("chat")
def test_a_terminal_also_shows_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    with serve_search(lambda _: None) as port:
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(SystemExit):
            app(["ask", "Who directed it?", "--retrieval-url", url], standalone_mode=False)

    shown = terminal.getvalue()
    assert f"loading model and {url}" in shown[: shown.index("its director")]
    assert "waiting for the search" in shown[: shown.index("[1]")]
    assert "waiting for the model" in shown[shown.index("[1]") : shown.index("Mary Moss")]


def test_options_change_the_agent_of_the_profile(chat: ChatEndpoint) -> None:
    ask("--prompt", "multihoprag", "--temperature", "0.5")
    assert chat.requests[0]["temperature"] == 0.5
    assert chat.requests[0]["messages"][0]["content"] == (
        (ROOT / "src/deepsearch_rl/prompts/multihoprag.txt").read_text().strip()
    )


@pytest.mark.usefixtures("chat")
def test_as_json_the_whole_trajectory_is_printed() -> None:
    trajectory = json.loads(ask("--json").output)
    assert (trajectory["answer"], trajectory["stop_reason"]) == ("Mary Moss", "answered")


def test_a_key_that_the_server_refuses_and_repeats_is_not_shown(chat: ChatEndpoint) -> None:
    chat.reply = lambda _: 401
    found = ask()
    assert found.exit_code == 1
    assert "failed for Bearer ***" in f"{found.output}{found.exception}"
    assert KEY not in f"{found.output}{found.exception}"


def test_where_there_is_no_answer_the_reason_is_shown_and_the_status_is_one(
    chat: ChatEndpoint,
) -> None:
    chat.reply = lambda _: says("I do not know.")
    found = ask()
    assert found.exit_code == 1
    assert "no_answer_tag" in found.output


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (["--profile", "tinny"], UnknownNameError, "tiny"),
        (["--model", "apy"], UnknownNameError, "api"),
        (["--dataset", "musique"], ConfigError, "--dataset does nothing with --retrieval-url"),
        (["--prompt", "tinny"], UnknownNameError, "tiny"),
        (["--prompt", ""], UnknownNameError, "tiny"),
        (["--top-k", "5"], ConfigError, "--retrieval-url"),
    ],
)
@pytest.mark.usefixtures("chat")
def test_what_cannot_be_is_named(options: list[str], error: type, words: str) -> None:
    found = ask(*options)
    assert isinstance(found.exception, error)
    assert words in str(found.exception)


@pytest.mark.usefixtures("chat")
def test_an_unknown_data_set_is_named_with_those_that_there_are() -> None:
    found = CliRunner().invoke(app, ["ask", "Who directed it?", "--dataset", "musiqe"])
    assert isinstance(found.exception, UnknownNameError)
    assert "musique" in str(found.exception)


@pytest.mark.usefixtures("chat")
def test_a_model_that_is_not_made_yet_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = ask("--model", "empty")
    assert isinstance(found.exception, ArtifactError)
    assert "empty holds no model" in str(found.exception)


@pytest.mark.slow
def test_options_of_requests_take_the_place_of_the_endpoints_own(
    chat: ChatEndpoint, tmp_path: Path
) -> None:
    ask("--request", "temperature=omit", "--request", "token_limit=max_completion_tokens")
    assert {"temperature", "max_tokens"}.isdisjoint(chat.requests[0])
    assert "max_completion_tokens" in chat.requests[0]
    for option, message in (
        ("temperature=warm", "--request temperature: "),
        ("nothing", "write NAME=VALUE"),
        ("temprature=1", "option of --request .temprature.*Did you mean .temperature"),
    ):
        with pytest.raises(ConfigError, match=message):
            raise ask("--request", option).exception or AssertionError
    (tmp_path / "model" / "endpoint.json").unlink()
    with pytest.raises(ConfigError, match="--request is for a model behind an endpoint"):
        raise ask("--request", "seed=omit").exception or AssertionError
