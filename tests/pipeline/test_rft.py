"""Rounds of rejection sampling by `make rft`, for real and small: a model samples, is trained, and samples again.

Of a round, what differs from any other training has a test by day: `test_smoke.py`.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from deepsearch_rl.core.files import file_digests
from tests.pipeline.smoke_copy import finished_smoke_graph, run

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
CHANGES = """
synthesize:
  teacher: models/smoke/base
  questions: 24
  samples: 3
  temperature: 1.0

filter:
  predicates: [answered]    # a model this small is hardly ever right
  per_question: 2

sft:
  save_steps: 2
  log_steps: 1

choose_checkpoint:
  by: dev
  dev: {dataset: multihoprag, questions: 8, samples: 1, temperature: 0.7}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, smoke_cache: Path) -> Path:
    """A finished smoke graph whose next teacher is its own base model."""
    folder = finished_smoke_graph(tmp_path_factory.mktemp("rft"), smoke_cache)
    with (folder / "profiles/smoke/profile.yaml").open("a") as profile:
        profile.write(CHANGES)
    run(folder, "python", "-m", "tools.params")
    return folder


def make_rft(folder: Path, rounds: int) -> "subprocess.CompletedProcess[str]":
    command = ["make", "-o", "environment", "rft", "PROFILE=smoke", f"ROUNDS={rounds}"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def stages_run(folder: Path) -> list[str]:
    """The stages that have run, in order."""
    lines = (folder / "work/timings.jsonl").read_text().splitlines()
    return [json.loads(line)["stage"] for line in lines]


ROUND = ["synthesize", "filter", "sft", "choose_checkpoint", "merge"]


def test_a_round_trains_on_what_the_model_itself_wrote(project: Path) -> None:
    before = len(stages_run(project))
    assert (made := make_rft(project, 1)).returncode == 0, made.stderr[-4000:]
    assert stages_run(project)[before:] == ROUND
    assert file_digests(project / "models/smoke/rft/1") != file_digests(
        project / "models/smoke/base"
    )
    manifest = json.loads((project / "models/smoke/sft_adapter/manifest.json").read_text())
    assert str(manifest["best_step"]) in manifest["dev_f1"]
    assert 1 <= len(manifest["dev_f1"]) <= 2, "kept_checkpoints"


def test_every_round_samples_from_the_model_of_the_one_before_and_none_is_made_twice(
    project: Path,
) -> None:
    assert (made := make_rft(project, 1)).returncode == 0, made.stderr[-4000:]
    round_1 = file_digests(project / "models/smoke/rft/1")

    before = len(stages_run(project))
    assert (made := make_rft(project, 2)).returncode == 0, made.stderr[-4000:]
    assert stages_run(project)[before:] == ROUND, "round 2 alone"
    assert file_digests(project / "models/smoke/rft/1") == round_1
    assert file_digests(project / "models/smoke/rft/2") != round_1
    params = yaml.safe_load((project / "profiles/smoke/params.yaml").read_text())
    assert params["synthesize"]["teacher"] == "models/smoke/rft/1"

    before = len(stages_run(project))
    assert make_rft(project, 2).returncode == 0
    assert stages_run(project)[before:] == [], "both rounds come from the cache"
