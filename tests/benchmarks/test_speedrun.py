"""`make speedrun`: a small graph in a repository of its own gives a row, and a run that differs gives none."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import speedrun
from benchmarks.speedrun import Inputs, Row
from deepsearch_rl.core.files import sha256_file
from deepsearch_rl.core.profile import find_profile
from deepsearch_rl.core.records import Question
from deepsearch_rl.data.download import DownloadConfig, download
from tests.conftest import REAL_DATA, ROOT
from tests.repository import commit_all, git

# A stage copies what the repository has for it, and notes its time as real ones do
STAGE = """
import json, pathlib, shutil, sys
name = sys.argv[1]
shutil.copytree(f"made/{name}", ".", dirs_exist_ok=True)
timings = pathlib.Path("work/timings.jsonl")
timings.parent.mkdir(exist_ok=True)
line = {"profile": "speedrun", "stage": name, "started": 1, "seconds": len(name), "peak_mb": 2048}
with timings.open("a") as lines:
    lines.write(json.dumps(line) + "\\n")
"""
OUTS = {
    "download": ["data/speedrun/questions", "data/speedrun/corpora"],
    "prepare_model": ["models/speedrun/base"],
    "filter": ["data/speedrun/sft"],
    "evaluate": ["data/speedrun/evaluate"],
}
QUESTIONS = "made/download/data/speedrun/questions/hotpotqa"
CORPUS = "made/download/data/speedrun/corpora/hotpotqa.jsonl"
WEIGHTS = "made/prepare_model/models/speedrun/base/model.safetensors"
TRAINED = "made/filter/data/speedrun/sft/train.jsonl"
ROWS = "made/evaluate/data/speedrun/evaluate/sft/rows.json"


def question(number: int, text: str, *titles: str) -> dict[str, Any]:
    return {
        "id": f"q{number}",
        "question": text,
        "golden_answers": [f"City {number}"],
        "metadata": {"supporting_titles": titles},
    }


def evaluated(**changes: object) -> dict[str, Any]:
    row = dict.fromkeys(("model", "checkpoint", "corpus", "prompt"), "sft")
    scores = ("em", "acc", "precision", "recall", "mean_rounds")
    row |= dict.fromkeys(scores, 0.5) | dict.fromkeys(("top_k", "chunk_size", "samples", "seed"), 1)
    row |= {"dataset": "hotpotqa", "n": 200, "temperature": 0.0, "greedy_only": True}
    row |= {"f1": 0.25, "f1_low": 0.2, "f1_high": 0.31, "mean_tool_calls": 1.875}
    row |= {"failures": {}, "generated": False, "pass_at": {1: 0.5}, "types": {}}
    row |= {"constant": {"answer": "x", "f1": 0.0, "em": 0.0}, **changes}
    return {"model": "sft", "seed": 0, "settings_sha256": "0", "inputs": {}, "rows": [row]}


def write(path: Path, *lines: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a graph of four stages, and the digests of what they make."""
    root = tmp_path / "project"
    (root / ".dvc").mkdir(parents=True)
    (root / ".dvc/config").write_text("[core]\n    analytics = false\n    check_update = false\n")
    (root / ".gitignore").write_text("/data/\n/models/\n/work/\n")
    (root / "stage.py").write_text(STAGE)
    (root / "docs").mkdir()
    (root / speedrun.DOCUMENT).write_text("<!-- speedrun -->\n<!-- /speedrun -->\n")

    params = {"profile": "speedrun", "models": {"sft": "models/speedrun/sft"}}
    params |= {name: {"source": "folder"} for name in ("download", "prepare_model")}
    stages = {
        name: {"wdir": "../..", "cmd": f"{sys.executable} stage.py {name}", "outs": outs}
        for name, outs in OUTS.items()
    }
    write(root / "profiles/speedrun/params.yaml", params)
    write(root / "profiles/speedrun/dvc.yaml", {"stages": stages})

    asked = [
        question(number, f"Where is tower {number}?", f"Tower {number}") for number in range(200)
    ]
    write(root / QUESTIONS / "val.jsonl", *asked)
    write(root / QUESTIONS / "train.jsonl", question(900, "Who built the old bridge?", "Bridge"))
    write(root / CORPUS, {"id": "0", "contents": "Tower 0\nIt is in City 0."})
    write(root / WEIGHTS, "weights")
    user = {"role": "user", "content": "Who built the old bridge?"}
    write(root / TRAINED, {"tools": "[]", "messages": [user]})
    write(root / ROWS, evaluated())

    inputs = speedrun.digest_inputs(root / "made/download/data/speedrun")
    base = sha256_file(root / WEIGHTS)
    digests = {"download": {"folder": inputs.model_dump()}, "base": {"folder": base}}
    write(root / speedrun.DIGESTS, digests)
    (root / speedrun.ROWS).write_text(",".join(Row.model_fields) + "\n")
    git(root, "init", "-q")
    commit_all(root, "A project")

    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "argv", ["speedrun", "fewer rows"])
    return root


def refusal(project: Path) -> str:
    """What the command says where it gives no row."""
    with pytest.raises(SystemExit) as end:
        speedrun.main()
    assert speedrun.read_rows(project) == []
    return str(end.value)


@pytest.mark.slow
def test_a_run_gives_a_row_and_the_table_has_it(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    speedrun.main()

    [row] = speedrun.read_rows(project)
    commit = git(project, "rev-parse", "HEAD")
    assert (row.commit, row.what, row.source) == (commit[:8], "fewer rows", "folder, folder")
    assert (row.f1, row.f1_low, row.f1_high, row.searches) == (0.25, 0.2, 0.31, 1.88)
    assert (row.peak_gib, row.minutes > 0) == (2.0, True)
    assert row.stages.split(", ")[0] in ("download 8", "prepare_model 13")
    assert {*row.stages.split(", ")} == {"download 8", "prepare_model 13", "filter 6", "evaluate 8"}
    document = (project / speedrun.DOCUMENT).read_text()
    assert f"| {row.minutes} | 0.250 [0.200, 0.310] | 1.88 | **0.20** | fewer rows |" in document
    assert "F1 0.250 [0.200, 0.310]: in benchmarks/speedrun.csv" in capfd.readouterr().out

    # The row alone is no change of the project, but this commit has been measured
    message = "work/speedrun/{} has the outputs of an earlier run"
    with pytest.raises(SystemExit, match=message.format(commit[:8])):
        speedrun.main()


@pytest.mark.slow
def test_a_change_that_no_commit_has_is_refused(project: Path) -> None:
    (project / "stage.py").write_text(STAGE.replace("2048", "4096"))
    assert "has changes that no commit has (stage.py)" in refusal(project)


@pytest.mark.slow
def test_a_source_without_digests_and_two_models_are_refused_before_a_stage_runs(
    project: Path,
) -> None:
    path = project / "profiles/speedrun/params.yaml"
    params = json.loads(path.read_text())
    write(path, params | {"download": {"source": "hub"}})
    commit_all(project, "From a hub")
    assert "no digests for download.source 'hub'" in refusal(project)

    write(path, params | {"models": {"base": "models/speedrun/base", "sft": "models/speedrun/sft"}})
    commit_all(project, "Two models")
    assert "evaluates base, sft; a row is of one model" in refusal(project)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "line", "message"),
    [
        (
            f"{QUESTIONS}/val.jsonl",
            question(900, "Where is the port?", "Port"),
            "other 200 questions than the table's rows",
        ),
        (CORPUS, {"id": "9", "contents": "Port\nIt is new."}, "other corpus than the table's rows"),
        (WEIGHTS, "more", "other base weights than the table's rows"),
        (
            f"{QUESTIONS}/train.jsonl",
            question(901, "where is a tower 7", "Tower"),
            "hotpotqa/train.jsonl has 'where is a tower 7', which asks what q7 of the 200",
        ),
        (
            TRAINED,
            {"tools": "[]", "messages": [{"role": "user", "content": "Where is tower 8?"}]},
            "sft/train.jsonl has 'Where is tower 8?', which asks what q8 of the 200",
        ),
    ],
)
def test_a_run_with_other_inputs_or_a_question_in_training_gives_no_row(
    path: str, line: object, message: str, project: Path
) -> None:
    with (project / path).open("a", encoding="utf-8") as lines:
        lines.write(f"{json.dumps(line)}\n")
    commit_all(project, "Changed")
    assert message in refusal(project)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 150}, "of 150 questions of hotpotqa at temperature 0;"),
        ({"temperature": 0.7, "greedy_only": False}, "at temperature 0.7;"),
    ],
)
def test_an_evaluation_that_is_not_greedy_and_whole_gives_no_row(
    changes: dict[str, Any], message: str, project: Path
) -> None:
    write(project / ROWS, evaluated(**changes))
    commit_all(project, "Changed")
    assert message in refusal(project)


def test_other_words_are_known_by_gold_documents_and_answer() -> None:
    def ask(text: str, answer: str, *titles: str) -> Question:
        metadata = {"supporting_titles": titles}
        return Question.model_validate(
            {"id": "a", "question": text, "golden_answers": [answer], "metadata": metadata}
        )

    val = [ask("What is the slogan of Ann's site?", "We go", "Ann", "Site")]
    others = [
        ask("Who made the site?", "Ann", "Ann", "Site"),
        ask("Which words go with the page that Ann made?", "We go", "Ann", "Page"),
    ]
    speedrun.require_unseen(val, others, "train")
    same = ask("Which words go with the page that Ann made?", "we go!", "Site", "Ann")
    with pytest.raises(speedrun.CheckFailedError, match="which asks what a of the 200"):
        speedrun.require_unseen(val, [*others, same], "train")


def measured(minutes: float, f1: float, machine: str = "2 cores, avx2") -> Row:
    return Row(
        date="2026-01-01",
        commit="0a1b2c3d",
        machine=machine,
        cpu="A CPU",
        source="folder, folder",
        minutes=minutes,
        f1=f1,
        f1_low=f1 - 0.1,
        f1_high=f1 + 0.1,
        searches=2.0,
        peak_gib=4.0,
        stages="download 9, sft 900, evaluate 95, merge 20",
        what="rows",
    )


def test_a_record_is_faster_than_all_rows_above_it_on_such_a_machine() -> None:
    rows = [
        measured(30, 0.19),
        measured(28, 0.22),
        measured(35, 0.31),
        measured(29, 0.25),
        measured(20, 0.30),
        measured(2, 0.21, "A GPU"),
    ]
    assert speedrun.records(rows) == [(), (0.2,), (0.3,), (), (0.2, 0.3), (0.2,)]
    line = speedrun.table(rows).splitlines()[6]
    assert "| 20.0 | 0.300 [0.200, 0.400] | 2.00 | **0.20**, **0.30** | rows |" in line
    assert (
        "| sft 900, evaluate 95, merge 20 | 4.0 | 2 cores, avx2 (A CPU); folder, folder |" in line
    )


def test_the_document_has_the_table_of_the_committed_rows() -> None:
    document = (ROOT / speedrun.DOCUMENT).read_text(encoding="utf-8")
    assert speedrun.table(speedrun.read_rows(ROOT)).strip() in document


@pytest.mark.realdata
@pytest.mark.slow
def test_the_committed_digests_are_of_questions_that_nothing_in_train_asks(tmp_path: Path) -> None:
    if not REAL_DATA.is_dir():
        pytest.skip(f"needs {REAL_DATA}")
    profile = find_profile(ROOT, speedrun.PROFILE)
    changed = profile.with_overrides({"download.folder.root": str(REAL_DATA)})
    config = changed.section("download", DownloadConfig)
    download(config, 0, tmp_path / "corpora", tmp_path / "questions")
    expected = json.loads((ROOT / speedrun.DIGESTS).read_text())["download"]["folder"]
    assert len(speedrun.require_inputs(tmp_path, Inputs(**expected))) == 200
