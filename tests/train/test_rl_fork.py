"""Runs that are killed at random moments, and runs that begin at a checkpoint of another, against undisturbed ones.

The loop is the real one, the engine the one of a few lines. Its dev score is best from step 2 on.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deepsearch_rl.agent.collect import RolloutSetting
from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import ArtifactError, ConfigError, DeepsearchError
from deepsearch_rl.core.files import file_digests, read_json, write_json, write_jsonl
from deepsearch_rl.core.profile import Profile, load_profile
from deepsearch_rl.train.curves import TrainingStep
from deepsearch_rl.train.rl.checkpoints import checkpoints
from deepsearch_rl.train.rl.fork import find_runs, fork, run_name, run_of
from deepsearch_rl.train.rl.loop import train_policy
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTrainer
from deepsearch_rl.train.rl.run_log import TRAIN_LOG
from deepsearch_rl.train.rl.watchdog import WatchdogConfig, watch
from deepsearch_rl.train.rl.worker import RlRun
from tests.train.rl.killed_loop import QUESTIONS, Killed, task
from tests.train.rl.killed_loop import train as train_killed
from tests.train.rl.tiny_trainer import TinyTrainer
from tests.worlds import World

MakeRun = Callable[..., RlRun]


@pytest.fixture
def make_run(policy_folder: Path, smoke: Profile, tmp_path: Path) -> MakeRun:
    """Return a run in a folder of its own; all train alike but for ``changes`` of section rl."""

    def make(name: str, steps: int, **changes: object) -> RlRun:
        fields = {
            "epochs": 1000.0,
            "groups_per_step": 2,
            "group_size": 8,
            "rewards": {"f1": 2.0},
            "dev": {"every": 2, "questions": 2, "samples": 1, "temperature": 0.7},
            "keep": {"last": 2, "every": 4},
        }
        rl = {
            **smoke.section("rl", RlConfig).model_dump(),
            **fields,
            "steps": {"base": steps},
            **changes,
        }
        return RlRun(
            start_name="base",
            start=policy_folder,
            weights="0",
            setting=RolloutSetting.of(smoke, "multihoprag"),
            rl=RlConfig.model_validate(rl),
            scratch=tmp_path / "rl@base" / name,
            curve=tmp_path / "curve.jsonl",
            output=tmp_path / f"{name}-adapter",
        )

    return make


def train(run: RlRun) -> RlRun:
    """Train in this process, without a watchdog."""
    write_json(run.scratch / "run.json", run.model_dump(mode="json"))
    trainer: RlTrainer = TinyTrainer(run.scratch / "checkpoints")
    train_policy(task(run), run.rl, trainer, run.output)
    return run


def watch_loop(run: RlRun, kills: int) -> None:
    """Train in a watched process, which is killed so often, each time within .3 seconds of processor time."""
    command = [sys.executable, "-m", "tests.train.rl.killed_loop"]
    limits = WatchdogConfig(start_s=120, rollout_s=60, update_s=60, restarts=kills)
    settings = Killed(run=run, kills=kills, seconds=0.3)
    watch("rl@base", command, settings.model_dump_json(), limits, run.scratch)


def kill_in_its_steps(run: RlRun, seconds: float) -> None:
    """Train in a copy of this process, which is killed within these seconds of processor time."""
    run.scratch.mkdir(parents=True)
    settings = Killed(run=run, kills=1, seconds=seconds)
    # A new process would import for ten times as long as it trains
    process = multiprocessing.get_context("fork").Process(target=train_killed, args=(settings,))
    process.start()
    process.join(timeout=60)
    process.kill()
    assert process.exitcode == -signal.SIGPROF


def require_same_results(run: RlRun, other: RlRun) -> None:
    assert file_digests(run.output) == file_digests(other.output)
    assert checkpoints(run.scratch).keys() == checkpoints(other.scratch).keys()


@pytest.mark.slow
def test_a_run_killed_at_a_random_moment_leaves_the_bytes_of_one_that_was_not(
    make_run: MakeRun,
) -> None:
    # Far more than it makes until then, and far more time than the first one takes
    steps = 200
    undisturbed, killed = train(make_run("undisturbed", steps)), make_run("killed", steps)
    kill_in_its_steps(killed, seconds=0.2)
    done = len((killed.scratch / "train_log.jsonl").read_bytes().splitlines())
    assert 1 < done < steps
    train(killed)
    require_same_results(killed, undisturbed)


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("refills", [0, 2])
def test_a_watched_run_killed_several_times_leaves_the_bytes_of_one_that_was_not(
    make_run: MakeRun, refills: int
) -> None:
    undisturbed, killed = (
        make_run(name, 600, max_refills=refills) for name in ("undisturbed", "killed")
    )
    train(undisturbed)
    watch_loop(killed, kills=3)
    assert len((killed.scratch / "starts").read_text()) > 2, "it was killed in its steps"
    require_same_results(killed, undisturbed)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_gets_full_in_a_step_is_one_paragraph_and_with_more_space_the_run_continues(
    make_run: MakeRun,
) -> None:
    undisturbed, full = train(make_run("undisturbed", 300)), make_run("full", 300)
    full.scratch.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", full.scratch], check=True)
    try:
        with pytest.raises(
            DeepsearchError, match=r"^the disk is full \(.*\)\. Free some space"
        ) as caught:
            watch_loop(full, kills=0)
        assert "\n" not in str(caught.value)
        done = len((full.scratch / "train_log.jsonl").read_bytes().splitlines())
        assert 10 < done < 300
        subprocess.run(["mount", "-o", "remount,size=1m", full.scratch], check=True)
        watch_loop(full, kills=0)
    finally:
        subprocess.run(["umount", full.scratch], check=True)
    assert file_digests(full.output) == file_digests(undisturbed.output)


def test_a_fork_continues_as_the_run_would_have_whose_checkpoint_it_takes(
    make_run: MakeRun,
) -> None:
    source, target = train(make_run("rl-base-1", 6)), make_run("rl-base-2", 8)
    assert [*checkpoints(source.scratch)] == [2, 4, 5, 6], (
        "the best, a multiple of four, the last two"
    )
    before = file_digests(source.scratch)
    fork(run_name(source.scratch), source.scratch, 4, target)
    assert file_digests(source.scratch) == before
    assert [*checkpoints(target.scratch)] == [2, 4]
    straight = train(make_run("rl-base-3", 8))
    train(target)
    assert (target.output / "train_log.jsonl").read_bytes() == (
        straight.output / "train_log.jsonl"
    ).read_bytes()
    assert (target.output / "adapter").read_bytes() == (straight.output / "adapter").read_bytes()
    manifest, other = (read_json(run.output / "manifest.json") for run in (target, straight))
    assert manifest.pop("forked_from") == {"run": "base-rl-base-1", "step": 4}
    assert manifest == other


def test_a_fork_chooses_among_the_checkpoints_that_it_has(make_run: MakeRun) -> None:
    source, target = train(make_run("rl-base-1", 6)), make_run("rl-base-2", 8)
    (source.scratch / "checkpoints" / "2").unlink()
    fork(run_name(source.scratch), source.scratch, 4, target)
    assert read_json(train(target).output / "manifest.json")["best_step"] == 4
    (source.scratch / "checkpoints" / "3").write_text("1.0")
    (source.scratch / "checkpoints" / "4").unlink()
    with pytest.raises(ArtifactError, match="no checkpoint up to step 3 with a score on dev"):
        fork(run_name(source.scratch), source.scratch, 3, make_run("rl-base-3", 9))


@pytest.mark.parametrize(
    ("step", "name", "steps", "changes", "error", "message"),
    [
        (3, "rl-base-2", 8, {}, ArtifactError, r"no checkpoint of step 3; it has: 2, 4, 5, 6"),
        (4, "rl-base-1", 6, {}, ConfigError, "the stage continues base-rl-base-1 itself"),
        (
            6,
            "rl-base-2",
            6,
            {},
            ConfigError,
            r"rl\.steps\.base is 6, so nothing is left after step 6",
        ),
        (
            4,
            "rl-base-2",
            8,
            {"lora": {"rank": 3, "alpha": 1}},
            ConfigError,
            r"with another rl\.lora",
        ),
        (
            6,
            "rl-base-2",
            8,
            {"patience": 2},
            ConfigError,
            r"train nothing: at step 6, 2 scores .* of step 2, and",
        ),
    ],
)
def test_a_fork_that_could_not_be_trained_is_refused(
    make_run: MakeRun,
    step: int,
    name: str,
    steps: int,
    changes: dict[str, object],
    error: type[Exception],
    message: str,
) -> None:
    source, target = train(make_run("rl-base-1", 6)), make_run(name, steps, **changes)
    with pytest.raises(error, match=message):
        fork(run_name(source.scratch), source.scratch, step, target)


def test_a_fork_that_a_kill_left_unfinished_is_no_run(tmp_path: Path) -> None:
    line = TrainingStep.model_validate({"step": 0})
    for name in ("0123456789ab", ".abcdef012345.partial"):
        write_jsonl(tmp_path / "scratch" / "rl@sft" / name / TRAIN_LOG, [line])
    assert [*find_runs(tmp_path)] == ["sft-0123456789ab"]


def test_a_fork_takes_the_place_of_a_run_that_logged_no_step(make_run: MakeRun) -> None:
    source, target = train(make_run("rl-base-1", 6)), make_run("rl-base-2", 8)
    target.scratch.mkdir()
    (target.scratch / "train_log.jsonl").touch()
    fork(run_name(source.scratch), source.scratch, 4, target)
    assert [*checkpoints(target.scratch)] == [2, 4]


def test_a_fork_of_other_weights_or_over_a_run_is_refused(make_run: MakeRun) -> None:
    source, target = train(make_run("rl-base-1", 6)), train(make_run("rl-base-2", 8))
    with pytest.raises(ConfigError, match="rl-base-2 has trained with these params"):
        fork(run_name(source.scratch), source.scratch, 4, target)
    other = make_run("rl-base-3", 8).model_copy(update={"weights": "1"})
    with pytest.raises(ConfigError, match="changed other weights than those in"):
        fork(run_name(source.scratch), source.scratch, 4, other)


@pytest.fixture
def project(
    policy_folder: Path, root: Path, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder in which the stage rl of the smoke profile could run, as far as files go."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "profiles" / "smoke"
    folder.mkdir(parents=True)
    for name in ("params.yaml", "dvc.yaml", "packages.json"):
        (folder / name).write_bytes((root / "profiles/smoke" / name).read_bytes())
    prompt = Path("src", "deepsearch_rl", "prompts", "tiny.txt")
    (tmp_path / prompt).parent.mkdir(parents=True)
    (tmp_path / prompt).write_bytes((root / prompt).read_bytes())
    (tmp_path / "models" / "smoke").mkdir(parents=True)
    (tmp_path / "models" / "smoke" / "sft").symlink_to(policy_folder)
    (tmp_path / "data" / "smoke").mkdir(parents=True)
    (tmp_path / "data" / "smoke" / "index").symlink_to(world.index.parent)
    for split in ("train", "dev"):
        write_jsonl(tmp_path / f"data/smoke/questions/multihoprag/{split}.jsonl", QUESTIONS)
    return tmp_path


def test_without_a_run_of_rl_the_commands_say_what_makes_one(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_bytes((root / "params.yaml").read_bytes())
    for command in (["rl", "runs"], ["rl", "fork", "sft", "10"]):
        error = CliRunner().invoke(app, command).exception
        assert str(error) == "work/tiny has no run of RL yet; `dvc repro dvc.yaml` makes one."


def test_the_commands_list_runs_and_say_how_a_fork_is_trained(project: Path) -> None:
    profile = load_profile(project / "profiles/smoke/params.yaml").with_overrides(
        {"rl.keep.every": 1}
    )
    source = train(
        run_of(profile.with_overrides({"rl.steps.sft": 3, "rl.epochs": 3}), "sft", Path())
    )
    listed = CliRunner().invoke(app, ["rl", "runs", "smoke"], catch_exceptions=False)
    assert f"sft-{source.scratch.name}" in listed.output
    assert "1.000 (2)" in listed.output
    assert "1 2 3" in listed.output
    changes = ["-S", "rl.steps.sft= 4", "-S", "rl.learning_rate=5e-4"]
    forked = CliRunner().invoke(
        app, ["rl", "fork", "sft", "2", "--profile", "smoke", *changes], catch_exceptions=False
    )
    target = run_of(
        profile.with_overrides({"rl.steps.sft": 4, "rl.learning_rate": 0.0005}), "sft", Path()
    )
    assert [*checkpoints(target.scratch)] == [2]
    assert (
        f"sft-{target.scratch.name} begins at step 2 of sft-{source.scratch.name}" in forked.output
    )
    assert (
        "dvc exp run -S 'profiles/smoke/params.yaml:rl.steps.sft= 4' "
        "-S profiles/smoke/params.yaml:rl.learning_rate=5e-4 profiles/smoke/dvc.yaml:rl@sft"
        in forked.output
    )
