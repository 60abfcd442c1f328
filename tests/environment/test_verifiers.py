"""The conformance suite inside verifiers, and its evaluation command (`make check-trainers`)."""

from pathlib import Path
from typing import Any, cast

import pytest

from deepsearch_rl.chat.chat_format import ChatFormat
from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.processes import LOOPBACK
from deepsearch_rl.core.records import Trajectory
from deepsearch_rl.serve.chat_server import chat_app, serve_in_thread
from deepsearch_rl.serve.engine import Engine
from deepsearch_rl.train.rewards import reward_parts
from tests.environment.check_environments import (
    child_lines,
    interpreter_of,
    lines_by_script,
)
from tests.environment.params_of import write_params
from tests.environment.scripted import (
    QUESTION,
    REWARDS,
    SCRIPTS,
    Script,
    ScriptedEngine,
    own_rollout,
    policy_text,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not interpreter_of("verifiers").exists(),
        reason="make check-trainers builds verifiers' environment",
    ),
]


def run_in_verifiers(module: str, *arguments: object) -> list[dict[str, Any]]:
    """Return the JSON lines of a module in verifiers' environment."""
    return child_lines(interpreter_of("verifiers"), "-m", module, *arguments, SCRIPTED_KEY="none")


@pytest.fixture(scope="module")
def lines(policy_folder: Path, retrieval_url: str) -> dict[str, dict[str, Any]]:
    module = "tests.environment.verifiers_child"
    return lines_by_script(run_in_verifiers(module, policy_folder, retrieval_url))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_verifiers_records_the_agents_own_rollout(
    script: Script,
    lines: dict[str, dict[str, Any]],
    chat_format: ChatFormat,
    retrieval_url: str,
) -> None:
    reference = own_rollout(script, chat_format, retrieval_url)
    theirs = reference.trajectory
    line = lines[script.name]
    assert (line["prompts"], line["written"]) == (reference.prompts, reference.written)
    if script.stop_reason == "tool_error":
        assert "tool_error" in line["error"]
        return

    ours = Trajectory.model_validate(line["trajectory"])
    assert ours.stop_reason == theirs.stop_reason == script.stop_reason
    assert ours.messages == theirs.messages
    assert ours.retrievals == theirs.retrievals
    assert ours.usage == theirs.usage
    assert line["rewards"] == reward_parts(REWARDS, theirs, QUESTION, policy_text(chat_format))
    scores = score_rollout(theirs)
    figures = {"f1": scores.f1, "em": scores.em, "searches": theirs.tool_calls}
    assert {name: line["metrics"][name] for name in figures} == figures


def test_the_tokenizer_is_loaded_once_for_all_rollouts(lines: dict[str, dict[str, Any]]) -> None:
    assert lines["all"]["tokenizers_loaded"] == 1


def test_its_evaluation_command_runs_against_an_endpoint(
    chat_format: ChatFormat, policy_folder: Path, retrieval_url: str, tmp_path: Path
) -> None:
    script = next(script for script in SCRIPTS if script.name == "one search")
    end_id = cast(int, chat_format.tokenizer.eos_token_id)
    engine = ScriptedEngine(script.turn_ids(chat_format), end_id, script.config.context_tokens)
    write_jsonl(tmp_path / "questions.jsonl", [QUESTION])
    taskset = {
        "params": write_params(tmp_path / "params.yaml", script),
        "questions": tmp_path / "questions.jsonl",
        "model": policy_folder,
        "retrieval_url": retrieval_url,
    }

    with serve_in_thread(chat_app(cast(Engine, engine), chat_format, lambda: "policy")) as port:
        options: dict[str, object] = {
            f"env.taskset.{name}": value for name, value in taskset.items()
        }
        options |= {
            "client.base-url": f"http://{LOOPBACK}:{port}/v1",
            "client.api-key-var": "SCRIPTED_KEY",
            "model": "policy",
            "output-dir": tmp_path / "out",
        }
        arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        module = "deepsearch_rl.environment.adapters.verifiers"
        run_in_verifiers(module, *arguments, "--no-push", "--no-rich")

    (traces,) = (tmp_path / "out").rglob("traces.jsonl")
    (text,) = traces.read_text(encoding="utf-8").splitlines()
    assert '"stop_reason":"answered"' in text.replace(": ", ":")
    assert len(engine.prompts) == 2
