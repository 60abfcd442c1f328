"""The Makefile's own rules, with a program in place of the environment's Python."""

import os
import subprocess
from pathlib import Path

from tests.conftest import ROOT


def test_evaluating_an_apis_model_again_takes_the_answers_that_there_are(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "resume=$DEEPSEARCH_RESUME $*"\n')
    python.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "DEEPSEARCH_RESUME"}
    command = ["make", "--silent", "api-stages", "PROFILE=mine", f"BIN={tmp_path}"]
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    forced = [line for line in run.stdout.splitlines() if "--force" in line]
    graph = "profiles/mine/dvc.yaml"
    assert forced == [f"resume=1 flows/dvc repro --force --single-item {graph}:evaluate@api"]


def test_rejection_sampling_of_a_profile_that_trains_no_model_ends_before_dvc_starts() -> None:
    command = ["make", "--silent", "rft-rounds", "PROFILE=own", "ROUNDS=0"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith("error: the profile own trains no model")
    assert "Running stage" not in run.stdout + run.stderr
