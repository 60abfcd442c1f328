"""Which of veRL's checkpoints a start goes on from."""

from pathlib import Path

import pytest

from deepsearch_rl.core.errors import CommandError, ConfigError, LostProcessError
from deepsearch_rl.train.curves import TrainingStep
from deepsearch_rl.train.verl.checkpoints import TRACKER, go_back_to_whole, step_folder
from deepsearch_rl.train.verl.engine import _best_saved, _keep_checkpoints, trainer_error
from tests.train.verl.verl_settings import verl_config

CONFIG = verl_config(verl={"gpus_per_node": 2})


def save(folder: Path, step: int, processes: int = 2) -> Path:
    """Make a folder of a step's files, and name it as the newest."""
    actor = folder / step_folder(step) / "actor"
    actor.mkdir(parents=True)
    for part in ("model", "optim", "extra_state"):
        for rank in range(processes):
            path = actor / f"{part}_world_size_{processes}_rank_{rank}.pt"
            path.write_bytes(b"weights")
    (folder / TRACKER).write_text(str(step))
    return actor


def test_a_whole_checkpoint_stays_the_newest_and_no_checkpoint_is_none(tmp_path: Path) -> None:
    go_back_to_whole(tmp_path, CONFIG)
    assert list(tmp_path.iterdir()) == []
    save(tmp_path, 4)
    go_back_to_whole(tmp_path, CONFIG)
    assert (tmp_path / TRACKER).read_text() == "4"


@pytest.mark.parametrize("text", ["", "\x00\x00", "4 or so"])
def test_a_tracker_that_a_kill_left_without_a_step_is_written_anew(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 2)
    save(tmp_path, 10)
    (tmp_path / TRACKER).write_text(text)
    go_back_to_whole(tmp_path, CONFIG)
    assert (tmp_path / TRACKER).read_text() == "10"
    assert "goes on from step 10" in caplog.text


@pytest.mark.parametrize("part", ["model", "optim", "extra_state"])
@pytest.mark.parametrize("empty", [True, False])
def test_a_half_written_checkpoint_is_said_and_the_one_before_is_taken(
    part: str, empty: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 2)
    half = save(tmp_path, 4)
    path = half / f"{part}_world_size_2_rank_1.pt"
    path.unlink()
    if empty:
        path.touch()

    go_back_to_whole(tmp_path, CONFIG)
    assert (tmp_path / TRACKER).read_text() == "2"
    assert not (tmp_path / step_folder(4)).exists(), "it is trained again, and never published"
    assert f"actor/{part}_world_size_2_rank_1.pt missing or empty" in caplog.text
    assert "goes on from step 2" in caplog.text


def test_a_broken_checkpoint_before_a_whole_one_is_removed_so_that_it_is_never_the_best(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (save(tmp_path, 2) / "model_world_size_2_rank_0.pt").unlink()
    save(tmp_path, 4)
    lines = [
        TrainingStep.model_validate({"step": step, "dev_f1": 1 / (step + 1)}) for step in (2, 4)
    ]
    assert _best_saved(lines, tmp_path).step == 2

    go_back_to_whole(tmp_path, CONFIG)
    assert _best_saved(lines, tmp_path).step == 4
    assert (tmp_path / TRACKER).read_text() == "4"
    assert f"{tmp_path / step_folder(2)} is not whole" in caplog.text
    assert "goes on from" not in caplog.text


def test_the_best_and_the_newest_checkpoints_stay(tmp_path: Path) -> None:
    figures = {20: 0.5, 40: 0.4}
    lines = [
        TrainingStep.model_validate({"step": step, "dev_f1": figures.get(step)})
        for step in range(60)
    ]
    for step in (10, 20, 30, 40, 50):
        save(tmp_path, step)
    save(tmp_path, 60)
    (tmp_path / TRACKER).write_text("50")  # 60 is still being written
    _keep_checkpoints(lines, tmp_path, CONFIG)
    kept = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert kept == {step_folder(step) for step in (20, 40, 50, 60)}


def test_without_a_whole_checkpoint_training_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (save(tmp_path, 2) / "model_world_size_2_rank_0.pt").unlink()
    go_back_to_whole(tmp_path, CONFIG)
    assert not (tmp_path / TRACKER).exists()
    assert "begins anew" in caplog.text


def test_a_critic_is_part_of_ppos_checkpoints(tmp_path: Path) -> None:
    save(tmp_path, 2)
    verl = {"gpus_per_node": 2, "critic": {"learning_rate": 1e-4}}
    ppo = verl_config(loss={"algorithm": "ppo"}, verl=verl, lora=None)
    go_back_to_whole(tmp_path, ppo)
    assert not (tmp_path / TRACKER).exists()


# As Ray words an error of an actor's constructor
IN_INIT = (
    "ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, "
    "ray::WorkerDict.__init__() (pid=1)\nValueError: no such attention"
)


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (1, "ray.exceptions.ActorDiedError: The actor died unexpectedly", LostProcessError),
        (1, "ray.exceptions.NodeDiedError: node", LostProcessError),
        (-9, "", LostProcessError),
        (1, "hydra.errors.ConfigCompositionException: no such key", CommandError),
        (1, f"RayTaskError(ActorDiedError): ray::run()\n{IN_INIT}", CommandError),
        (1, f"{IN_INIT}\nray.exceptions.WorkerCrashedError: gone", LostProcessError),
    ],
)
def test_a_lost_worker_is_told_from_an_error_that_would_come_again(
    code: int, text: str, kind: type[Exception], tmp_path: Path
) -> None:
    log = tmp_path / "000.txt"
    log.write_text(f"begins\n{text}\n(WorkerDict pid=1) ends\n")
    error = trainer_error("base", code, log)
    assert type(error) is kind
    assert f"exit code {code}" in str(error)


def test_a_checkpoint_of_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    (save(tmp_path, 1) / "model_world_size_2_rank_0.pt").unlink()
    save(tmp_path, 2, processes=4)
    with pytest.raises(ConfigError, match=r"saved by 4 processes, .* gpus_per_node = 2"):
        go_back_to_whole(tmp_path, CONFIG)
    assert (tmp_path / TRACKER).read_text() == "2"
    assert (tmp_path / step_folder(1)).is_dir(), "nothing is removed"
