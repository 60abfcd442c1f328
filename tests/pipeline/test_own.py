"""The profile of own documents through real DVC: files in, audited questions, an evaluated model, its row."""

import shutil
from pathlib import Path

import pytest
import yaml

from deepsearch_rl.core.files import read_jsonl, read_record
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Question
from deepsearch_rl.evaluation.tables.tables import F1Table
from deepsearch_rl.explain.causes.records import ExplainReport
from deepsearch_rl.question_writing.audit import Funnel
from tests.evaluation.chat import KEY, serve_chat
from tests.pipeline.smoke_copy import copy_of_working_tree, run
from tests.question_writing.planted_faults import audit_figures, require_found, write_world
from tests.question_writing.scripted_writer import ScriptedModel
from tests.worlds import smoke

__all__ = ["smoke"]

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]
QUESTIONS = 120
CONTROLS = 5


@pytest.fixture
def project(tmp_path: Path, smoke: Profile) -> Path:
    """A copy of the project with a folder ``documents`` of files, and fewer questions and samples in its profile."""
    folder = copy_of_working_tree(tmp_path / "project")
    (folder / "documents").mkdir()
    write_world(smoke, folder / "documents")

    path = folder / "profiles/own/params.yaml"
    params = yaml.safe_load(path.read_text())
    params["make_questions"] |= {"questions": QUESTIONS}
    params["make_questions"]["writer"] |= {"concurrency": 16}
    params["make_questions"]["audit"] |= {"findable_in": 20, "samples": 1, "agreeing": 1}
    params["evaluate"] |= {"draws": 100, "random_passages": True}
    params["evaluate"]["sets"]["own"] |= {"controls": CONTROLS}
    path.write_text(yaml.safe_dump(params, sort_keys=False))
    return folder


def test_documents_become_audited_questions_and_a_row_of_the_table(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ScriptedModel(share=0.5)
    make = str(shutil.which("make"))  # absolute: not the environment's
    with serve_chat(model.reply) as chat:
        monkeypatch.setenv("OPENAI_BASE_URL", chat.endpoint.base_url)
        monkeypatch.setenv("OPENAI_MODEL", "scripted")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        printed = run(project, make, "-o", "environment", "own", "DOCUMENTS=documents")
        asked = len(chat.requests)
        run(project, make, "-o", "environment", "own", "DOCUMENTS=documents")
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
