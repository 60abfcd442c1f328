"""The CPU twin of a GPU profile's preflight, whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


def test_every_phase_of_the_smoke_profile_passes_and_leaves_its_report_alone() -> None:
    command = [str(Path(sys.executable).with_name("deepsearch")), "preflight", "smoke"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    folder = ROOT / "work" / "smoke" / "preflight"
    report = json.loads((folder / "report.json").read_text())
    skipped = {outcome["phase"] for outcome in report if outcome["status"] == "skipped"}
    assert skipped == {"synthesize"}, "its teacher is a script"
    assert {path.name for path in folder.iterdir()} == {"report.json"}
