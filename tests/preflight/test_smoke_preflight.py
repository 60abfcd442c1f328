"""The CPU twin of a GPU profile's preflight, whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


def test_every_phase_of_the_smoke_profile_passes_and_leaves_its_report_alone() -> None:
    command = [
        str(Path(sys.executable).with_name("deepsearch")),
        "preflight",
        "smoke",
        "--jobs",
        "2",
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    folder = ROOT / "work" / "smoke" / "preflight"
    outcomes = {
        outcome["phase"]: outcome for outcome in json.loads((folder / "report.json").read_text())
    }
    skipped = {name for name, outcome in outcomes.items() if outcome["status"] == "skipped"}
    assert skipped == {"full_sft", "full_rl", "teacher"}, "those that need a GPU, or a key"
    assert outcomes["merge"]["figures"]["parity"] < 1e-4
    assert outcomes["serve"]["figures"]["parity"] < 1e-4
    assert (
        outcomes["adapter"]["figures"]["parity"]
        < 1e-4
        < 0.5
        < outcomes["adapter"]["figures"]["adapter_nats"]
    )
    assert outcomes["rl"]["figures"]["served_share"] == pytest.approx(1.0, abs=1e-3)
    slopes = json.loads((folder / "slopes.json").read_text())
    assert set(slopes) == {
        "swift_start_s",
        "sft_token_s",
        "serve_start_s",
        "merge_s",
        "adapter_merge_s",
    }
    assert {path.name for path in folder.iterdir()} == {"report.json", "slopes.json"}
