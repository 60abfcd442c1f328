"""A model that environment variables name: DVC sees that another one answers, and asks nobody twice."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.core.files import read_record
from deepsearch_rl.evaluate.tables import F1Table
from tests.evaluate.chat import KEY, ChatEndpoint, says, serve_chat
from tests.pipeline.smoke_copy import copy_of_working_tree, finish, run, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
GRAPH = "profiles/mine/dvc.yaml"
PROFILE = """# A model behind an API on a small world.
extends: smoke
profile: mine
stages: [endpoint, download, chunk, index, evaluate, report, track]
models: !replace {api: models/mine/api}
endpoints:
  api: {base_url: $OPENAI_BASE_URL, model: $OPENAI_MODEL, api_key_variable: OPENAI_API_KEY}
chunk: {variants: !replace {}}
evaluate: {variants: !replace {}}
report: {comparisons: []}
"""


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatEndpoint]:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        return says(f"<answer> {body['model']}</answer>")

    with serve_chat(answer) as chat:
        monkeypatch.setenv("OPENAI_BASE_URL", chat.endpoint.base_url)
        monkeypatch.setenv("OPENAI_MODEL", "first")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield chat


def test_another_model_runs_what_asks_it_and_the_same_one_runs_nothing(
    tmp_path: Path, chat: ChatEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = copy_of_working_tree(tmp_path / "project")
    (project / "profiles/mine").mkdir()
    (project / "profiles/mine/profile.yaml").write_text(PROFILE)
    run(project, "python", "-m", "tools.params")
    run(project, "dvc", "repro", GRAPH)
    assert checkpoint(project) == f"first at {chat.endpoint.base_url}"

    asked = len(chat.requests)
    again = run(project, "dvc", "repro", GRAPH)
    assert len(chat.requests) == asked
    assert again.count("Running stage") == 1, "the endpoint alone"

    monkeypatch.setenv("OPENAI_MODEL", "second")
    run(project, "dvc", "repro", GRAPH)
    assert checkpoint(project) == f"second at {chat.endpoint.base_url}"
    assert {request["model"] for request in chat.requests[asked:]} == {"second"}

    monkeypatch.delenv("OPENAI_MODEL")
    status, output = finish(start(project, "dvc", "repro", GRAPH))
    assert status != 0
    assert "error: set the environment variable OPENAI_MODEL to the name of the model" in output
    assert (project / "data/mine/evaluate/api").is_dir()

    written = [
        path
        for name in ("data", "models", "reports", "work")
        for path in (project / name).rglob("*")
    ]
    assert not any(KEY.encode() in path.read_bytes() for path in written if path.is_file())


def checkpoint(project: Path) -> str:
    table = read_record(project / "reports/mine/f1_table.json", F1Table)
    [checkpoint] = {row.checkpoint for row in table.rows}
    return checkpoint
