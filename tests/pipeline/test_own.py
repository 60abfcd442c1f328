"""The profiles of own documents through real DVC: files in, audited questions, models evaluated and trained, rows."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deepsearch_rl.core.files import read_jsonl, read_record
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Question
from deepsearch_rl.data.question_writing.audit import Funnel
from deepsearch_rl.evaluate.explain.records import ExplainReport
from deepsearch_rl.evaluate.tables import F1Table
from tests.data.question_writing.planted_faults import audit_figures, require_found, write_world
from tests.data.question_writing.scripted_writer import ScriptedModel
from tests.evaluate.chat import KEY, ChatEndpoint, serve_chat
from tests.pipeline.smoke_copy import copy_of_working_tree, run
from tests.worlds import smoke

__all__ = ["smoke"]

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]
QUESTIONS = 120
CONTROLS = 5


@contextmanager
def serve_scripted(model: ScriptedModel, patch: pytest.MonkeyPatch) -> Iterator[ChatEndpoint]:
    """Serve the model, and name it in the variables that both profiles read."""
    with serve_chat(model.reply) as chat:
        patch.setenv("OPENAI_BASE_URL", chat.endpoint.base_url)
        patch.setenv("OPENAI_MODEL", "scripted")
        patch.setenv("OPENAI_API_KEY", KEY)
        yield chat


def run_make(project: Path, *target: str) -> str:
    """Run a target of make over the folder ``documents``; return what it prints."""
    make = str(shutil.which("make"))  # absolute: not the environment's
    return run(project, make, "-o", "environment", *target, "DOCUMENTS=documents")


def read_params(path: Path) -> dict[str, Any]:
    """Return the params of a profile that makes questions, with fewer of them and of the audit's samples."""
    params = yaml.safe_load(path.read_text())
    params["make_questions"] |= {"questions": QUESTIONS}
    params["make_questions"]["writer"] |= {"concurrency": 16}
    params["make_questions"]["audit"] |= {"findable_in": 20, "samples": 1, "agreeing": 1}
    return params


@pytest.fixture
def project(tmp_path: Path, smoke: Profile) -> Path:
    """A copy of the project with a folder ``documents`` of files, and fewer questions and samples in its profiles."""
    folder = copy_of_working_tree(tmp_path / "project")
    (folder / "documents").mkdir()
    write_world(smoke, folder / "documents")

    path = folder / "profiles/own/params.yaml"
    params = read_params(path)
    params["evaluate"] |= {"draws": 100, "random_passages": True}
    params["evaluate"]["sets"]["own"] |= {"controls": CONTROLS}
    path.write_text(yaml.safe_dump(params, sort_keys=False))
    return folder


@pytest.fixture
def own_gpu_on_a_cpu(project: Path) -> Path:
    """The same with a profile own_gpu whose models, index and training are those of smoke."""
    path = project / "profiles/own_gpu/params.yaml"
    own = read_params(path)
    params = yaml.safe_load((project / "profiles/smoke/params.yaml").read_text())

    for name in (
        "profile",
        "models",
        "endpoints",
        "datasets",
        "make_questions",
        "download",
        "report",
    ):
        params[name] = own[name]
    for name in ("teacher", "dataset", "scripted"):
        params["synthesize"][name] = own["synthesize"][name]
    for name in ("dataset", "predicates"):
        params["filter"][name] = own["filter"][name]
    params["rl"]["dataset"] = own["rl"]["dataset"]

    params["choose_checkpoint"]["dev"] = own["choose_checkpoint"]["dev"]
    params["index"]["bm25"]["fields"] = own["index"]["bm25"]["fields"]
    # What two small steps make of the model may be anything
    params["rl"]["gate"]["min_f1"] = 0.0
    params["chunk"] |= {"chunk_size": 60, "variants": {}}
    params["evaluate"] |= {
        "sets": {"own": own["evaluate"]["sets"]["own"] | {"samples": 1, "controls": CONTROLS}},
        "variants": {},
    }
    path.write_text(yaml.safe_dump(params, sort_keys=False))
    return project


@pytest.mark.timeout(1200)
def test_a_model_is_trained_on_questions_of_documents_and_compared_with_its_start(
    own_gpu_on_a_cpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = own_gpu_on_a_cpu
    with serve_scripted(ScriptedModel(share=0.5), monkeypatch):
        run_make(project, "repro", "PROFILE=own_gpu")
        status = run(project, "dvc", "status", "profiles/own_gpu/dvc.yaml")

    assert "endpoint@api" in status
    assert "evaluate" not in status
    for split, other in (("train", "val"), ("dev", "val"), ("train", "dev")):
        assert not documents_of(project, split) & documents_of(project, other)

    table = read_record(project / "reports/own_gpu/f1_table.json", F1Table)
    rows = {row.model: row for row in table.rows}
    assert list(rows) == ["base", "sft", "sft_rl", "teacher"]
    assert rows["teacher"].f1 >= 0.5
    assert rows["teacher"].failures == {}
    compared = {(comparison.model, comparison.other) for comparison in table.comparisons}
    assert compared == {
        ("sft", "base"),
        ("sft_rl", "sft"),
        ("sft_rl", "base"),
        ("sft_rl", "teacher"),
    }

    # Fine-tuned on right answers to train questions, and on nothing else
    train = read_jsonl(project / "data/own_gpu/questions/own/train.jsonl", Question)
    asked = {question.question for question in train}
    lines = (project / "data/own_gpu/sft/train.jsonl").read_text().splitlines()
    assert len(lines) >= 10
    assert {json.loads(line)["messages"][1]["content"] for line in lines} <= asked


def documents_of(project: Path, split: str) -> set[str]:
    """Return the documents that prove the questions of a split."""
    questions = read_jsonl(project / f"data/own_gpu/questions/own/{split}.jsonl", Question)
    return {
        str(evidence.doc_id)
        for question in questions
        for evidence in question.metadata.evidence_list or ()
    }


def test_documents_become_audited_questions_and_a_row_of_the_table(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ScriptedModel(share=0.5)
    with serve_scripted(model, monkeypatch) as chat:
        printed = run_make(project, "repro", "PROFILE=own")
        asked = len(chat.requests)
        run_make(project, "repro", "PROFILE=own")
        # Every answer is in a log
        assert len(chat.requests) == asked

    made = project / "data/own/made/own"
    figures = audit_figures(model.planted, made)
    require_found(figures, least=4)
    funnel = read_record(made / "audit.json", Funnel)
    assert funnel.stopped_by == "enough"
    assert funnel.kept >= QUESTIONS

    val = list(read_jsonl(project / "data/own/questions/own/val.jsonl", Question))
    table = read_record(project / "reports/own/f1_table.json", F1Table)
    [row] = table.rows
    assert (row.model, row.dataset, row.n) == ("api", "own", len(val))
    assert row.checkpoint == f"scripted at {chat.endpoint.base_url}"
    assert row.failures == {}
    assert row.f1 >= 0.5
    assert f"{row.f1:.3f}".lstrip("0") in printed
    assert row.controls["gold_passage"].f1 == 1.0
    assert row.controls["random_passage"].f1 == row.controls["no_search"].f1 == 0.0

    explained = read_record(project / "reports/own/lost_points.json", ExplainReport)
    [lost] = explained.runs
    total = lost.f1.mean + sum(cause.lost.mean for cause in lost.causes.values())
    assert total == pytest.approx(1)
    assert lost.evidence == {"facts": len(val)}

    written: list[Path] = []
    for name in ("data", "reports", "work", "mlruns"):
        written += [path for path in (project / name).rglob("*") if path.is_file()]
    assert not any(KEY.encode() in path.read_bytes() for path in written)
