"""The profile for API models through real DVC: real articles, a scripted endpoint, no connection beyond loopback."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_jsonl, read_record
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.records import Trajectory
from deepsearch_rl.evaluate.tables import F1Table
from stages import prepare_model
from tests.data.real_news import read_rows, write_repository
from tests.evaluate.chat import KEY, says, searches, serve_chat
from tests.pipeline.smoke_copy import copy_of_working_tree, run
from tests.settings import new_scratch
from tools import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.realdata, pytest.mark.timeout(600)]
GRAPH = "profiles/multihoprag/dvc.yaml"
VAL = 6


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, real_data: Path) -> Path:
    """A copy of the project whose profile reads forty articles from a folder and answers a few questions."""
    folder = copy_of_working_tree(tmp_path_factory.mktemp("api"))
    queries = [
        row
        for row in read_rows(real_data / "multihoprag" / "queries.jsonl.gz")
        if row["evidence_list"]
    ][:24]
    named = {fact["title"] for row in queries for fact in row["evidence_list"]}
    articles = [
        row
        for row in read_rows(real_data / "multihoprag" / "corpus.jsonl.gz")
        if row["title"] in named
    ]
    write_repository(folder / "work/multihoprag/sources/multihoprag", articles[:40], queries)
    path = folder / "profiles/multihoprag/params.yaml"
    params = yaml.safe_load(path.read_text())
    params["download"]["source"] = "folder"
    params["download"]["folder"]["questions"]["multihoprag"][0]["splits"] = {
        "val": VAL,
        "dev": 2,
        "train": None,
    }
    params["optimize_prompt"] |= {
        "rollouts": 20,
        "questions": {"train": 4, "dev": 2},
        "minibatch": 2,
    }
    params["chunk"]["variants"] = {
        "news_128": {
            "corpus": "multihoprag",
            "chunker": "sentences",
            "chunk_size": 128,
            "overlap": 16,
        }
    }
    params["evaluate"] |= {"draws": 100, "variants": {"short": variant(corpus="news_128", top_k=5)}}
    params["evaluate"]["sets"]["multihoprag"] |= {"controls": 2}
    path.write_text(yaml.safe_dump(params, sort_keys=False))
    return folder


def variant(**changed: object) -> dict[str, object]:
    same = {"models": None, "dataset": "multihoprag", "prompt": None, "top_k": None, "corpus": None}
    return same | {"questions": 2, "samples": 1} | changed


def dvc(folder: Path, *arguments: str) -> None:
    run(folder, "dvc", "repro", *arguments)


def table(folder: Path) -> F1Table:
    return read_record(folder / "reports/multihoprag/f1_table.json", F1Table)


@pytest.mark.nightly
def test_an_api_model_gets_its_row_and_another_name_a_new_one(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = json.loads(
        (project / "work/multihoprag/sources/multihoprag/MultiHopRAG.json").read_text()
    )
    golds = {row["query"]: row["answer"] for row in sources}

    def answers(body: dict[str, Any]) -> dict[str, Any]:
        question = body["messages"][1]["content"]
        if "tools" in body and body["messages"][-1]["role"] == "user":
            return searches(question.split(",")[0].replace('"', ""))
        return says(
            f"<answer> {golds[question]}</answer>"
            if body["model"] == "good"
            else "<answer> nobody</answer>"
        )

    with serve_chat(answers) as chat:
        for name, value in (
            ("BASE_URL", chat.endpoint.base_url),
            ("MODEL", "good"),
            ("API_KEY", KEY),
        ):
            monkeypatch.setenv(f"OPENAI_{name}", value)
        dvc(project, f"{GRAPH}:track")
        good = table(project)
        answered = len(chat.requests)
        dvc(project, "--force", "--single-item", f"{GRAPH}:evaluate@api")
        # The same model: every answer is in the log
        assert len(chat.requests) == answered
        monkeypatch.setenv("OPENAI_MODEL", "bad")
        dvc(project, "--force", "--single-item", f"{GRAPH}:evaluate@api")
        dvc(project, f"{GRAPH}:report")

    main, short = good.rows
    assert (main.model, main.checkpoint) == ("api", f"good at {chat.endpoint.base_url}")
    assert (main.n, main.f1, main.failures, main.generated) == (VAL, 1.0, {}, False)
    assert (main.prompt, main.top_k, main.chunk_size, main.mean_tool_calls) == (
        "multihoprag_nothink",
        3,
        256,
        1.0,
    )
    assert set(main.controls) == {"no_search", "gold_passage"}
    assert (short.variant, short.corpus, short.top_k, short.chunk_size, short.n) == (
        "short",
        "news_128",
        5,
        128,
        2,
    )
    rollouts = list(
        read_jsonl(project / "data/multihoprag/evaluate/api" / main.rollouts_file, Trajectory)
    )
    assert all(rollout.retrievals[0].chunk_ids for rollout in rollouts)
    bad = table(project).rows[0]
    assert (bad.checkpoint, bad.f1) == (f"bad at {chat.endpoint.base_url}", 0.0)
    tracked = json.loads((project / "reports/multihoprag/track.json").read_text())
    assert "api" in tracked["models"]
    made = [
        path
        for name in ("data", "reports", "work", "mlruns")
        for path in (project / name).rglob("*")
    ]
    assert not any(KEY.encode() in path.read_bytes() for path in made if path.is_file())


@pytest.mark.nightly
def test_an_optimised_prompt_gets_a_row_beside_the_first_one(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = json.loads(
        (project / "work/multihoprag/sources/multihoprag/MultiHopRAG.json").read_text()
    )
    golds = {row["query"]: row["answer"] for row in sources}

    def answers(body: dict[str, Any]) -> dict[str, Any]:
        if body["model"] == "writer":
            return says("```\nKnow everything.\n```")
        knows = "Know everything" in body["messages"][0]["content"]
        return says(
            f"<answer> {golds[body['messages'][1]['content']] if knows else 'nobody'}</answer>"
        )

    with serve_chat(answers) as chat:
        named = {
            "BASE_URL": chat.endpoint.base_url,
            "MODEL": "m",
            "REFLECTION_MODEL": "writer",
            "API_KEY": KEY,
        }
        for name, value in named.items():
            monkeypatch.setenv(f"OPENAI_{name}", value)
        run(
            project, str(shutil.which("make")), "-o", "environment", "optimize-prompt"
        )  # absolute: not the environment's
    rows = {row.variant: row for row in table(project).rows}
    assert (rows[""].f1, rows["optimized"].f1) == (0.0, 1.0)
    assert rows["optimized"].prompt == "data/multihoprag/prompts/api"


def test_a_missing_variable_is_one_paragraph_that_names_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    command = [
        ".venv/bin/python",
        "-m",
        "stages.evaluate",
        "profiles/multihoprag/params.yaml",
        "api",
    ]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: set the environment variable OPENAI_BASE_URL to")
    assert done.stderr.count("\n") == 1


def test_without_targets_the_profile_stops_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = load_profile(ROOT / "profiles/multihoprag/params.yaml")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"no section prepare_model\.hub, .* README\.md .* `make own`"
    ):
        prepare_model.main(params, new_scratch(tmp_path))
