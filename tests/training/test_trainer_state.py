import json
from pathlib import Path

import pytest

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.training.trainer_state import read_log, read_state

ENTRY = {"loss": 1.5, "grad_norm": 0.2, "learning_rate": 1e-3, "token_acc": 0.7, "epoch": 0.1, "step": 5}
SUMMARY = {"train_runtime": 3.0, "train_loss": 1.5, "epoch": 1.0, "step": 5}


def write_state(folder: Path, **changes: object) -> Path:
    """A checkpoint with a finished run's state, some of it replaced."""
    state = {"global_step": 5, "max_steps": 5, "log_history": [ENTRY, SUMMARY], "best_metric": None}
    (folder / "trainer_state.json").write_text(json.dumps(state | changes))
    return folder


def test_the_training_curve_leaves_out_the_closing_summary(tmp_path: Path) -> None:
    lines = read_log(write_state(tmp_path))
    assert [(line.step, line.loss, line.token_acc) for line in lines] == [(5, 1.5, 0.7)]


@pytest.mark.parametrize(("steps", "finished"), [(4, False), (5, True)])
def test_a_run_is_finished_at_its_last_step(tmp_path: Path, steps: int, finished: bool) -> None:
    assert read_state(write_state(tmp_path, global_step=steps)).finished is finished


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"global_step": "five"}, "global_step"),
        ({"log_history": None}, "log_history"),
        ({"log_history": [SUMMARY, {**ENTRY, "loss": "low"}]}, "log_history.1.loss"),
        ({"log_history": [{"loss": 1.5, "step": 5}]}, "log_history.0.learning_rate"),
    ],
)
def test_a_state_of_another_trainer_is_named_by_file_and_field(
    tmp_path: Path, changes: dict[str, object], field: str
) -> None:
    with pytest.raises(ArtifactError, match=rf"trainer_state\.json, field '{field}': "):
        read_log(write_state(tmp_path, **changes))
