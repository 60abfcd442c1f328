import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.cli.summary import render


def test_the_last_run_of_each_stage_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reports" / "tiny").mkdir(parents=True)
    (tmp_path / "reports" / "tiny" / "f1_table.md").write_text("| model | f1 |\n")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "timings.jsonl").write_text(
        '{"profile": "tiny", "stage": "chunk", "seconds": 900.0, "peak_mb": 99}\n'
        '{"profile": "tiny", "stage": "chunk", "seconds": 1.5, "peak_mb": 100}\n'
        '{"profile": "smoke", "stage": "sft", "seconds": 80.0, "peak_mb": 5000}\n'
        '{"profile": "tiny", "stage": "sft", "seconds": 60.0, "peak_mb": 1500}\n'
    )
    words = CliRunner().invoke(app, ["summary"]).output.split()
    assert "1.5 s 100 MiB sft 60.0 s 1,500 MiB total / highest 61.5 s 1,500 MiB" in " ".join(words)
    assert "reports/tiny/index.html" in words


def test_the_smoke_profile_says_that_its_models_find_nothing(tmp_path: Path) -> None:
    for profile in ("smoke", "tiny"):
        table = tmp_path / ("profiles/smoke" if profile == "smoke" else "") / "params.yaml"
        table.parent.mkdir(parents=True, exist_ok=True)
        table.touch()
        (tmp_path / "reports" / profile).mkdir(parents=True)
        (tmp_path / "reports" / profile / "f1_table.md").write_text("| model | f1 |\n")
    assert "F1 .000 is what to expect" in render(tmp_path, "smoke")
    assert ".000" not in render(tmp_path, "tiny")


def test_bars_show_when_the_stages_of_the_newest_run_ran(tmp_path: Path) -> None:
    (tmp_path / "reports" / "tiny").mkdir(parents=True)
    (tmp_path / "reports" / "tiny" / "f1_table.md").write_text("| model | f1 |\n")
    (tmp_path / "work").mkdir()
    runs = [
        ("download", 1e6, 5.0),
        ("rl@sft", 2e6, 100.0),
        ("evaluate@base", 2e6 + 10, 10.0),
        ("report", 2e6 + 100, 100.0),
    ]
    (tmp_path / "work" / "timings.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "profile": "tiny",
                    "stage": stage,
                    "started": started,
                    "seconds": seconds,
                    "peak_mb": 1,
                }
            )
            + "\n"
            for stage, started, seconds in runs
        )
    )
    lines = [line.rstrip() for line in render(tmp_path, "tiny").splitlines() if " s" in line]
    bars = {line.split()[0]: line.partition("MiB  ")[2] for line in lines}
    assert bars["download"] == "", "it ran long before"
    assert bars["rl@sft"] == "=" * 20
    assert bars["evaluate@base"] == " " * 2 + "=" * 2
    assert bars["report"] == " " * 20 + "=" * 20
    assert "from start to end         200.0 s" in lines
