"""Runs of the stage ``rl`` that are kept, and new runs that begin at a checkpoint of one of them.

    work/<profile>/rl_runs/<start>-<digest>/        a finished run: its log, its settings and the checkpoints of rl.keep
    work/<profile>/scratch/rl@<start>/<digest>/     a run that was cut off

The stage continues from whatever its scratch folder holds, and that folder belongs to one state of
code, params and data. So a fork is the scratch folder of other params, filled with the log up to a
step and the checkpoints that go with it; the next run of the stage with these params continues
there.
"""

import shutil
from pathlib import Path

from deepsearch_rl.core.errors import ArtifactError, ConfigError, look_up
from deepsearch_rl.core.files import (
    atomic_directory,
    read_jsonl,
    read_record,
    write_json,
    write_jsonl,
)
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.scratch import STATE_FILE, scratch_path, unfinished
from deepsearch_rl.core.stage_state import read_state
from deepsearch_rl.train.curves import ERROR, TrainingStep, curve_path
from deepsearch_rl.train.rl.checkpoints import FORK_FILE, checkpoints
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.run_log import TRAIN_LOG, best_line, evaluations_since_best
from deepsearch_rl.train.rl.watchdog import OUTPUT_LOG
from deepsearch_rl.train.rl.worker import RUN_FILE, RlRun, rl_run

RUNS = "rl_runs"
# Fields of section ``rl`` that a checkpoint cannot change
SAME = ("backend", "lora")


def keep_run(scratch: Path, work: Path, start: str) -> Path:
    """Move a finished run out of its scratch folder, for forks; return its folder. It replaces a run of its state."""
    folder = work / RUNS / f"{start}-{scratch.name}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
    scratch.rename(folder)
    return folder


def find_runs(work: Path) -> dict[str, Path]:
    """Return the folders of a profile's runs with a line in their log by name, the one that trained last first."""
    folders: dict[str, Path] = {}
    for folder in (work / RUNS).glob("*"):
        folders[folder.name] = folder
    # After the finished ones: of a state that was trained again, the scratch folder is the newer
    for folder in unfinished(work, "rl@*"):
        # One with a dot is a fork that a kill left unfinished
        if not folder.name.startswith("."):
            folders[run_name(folder)] = folder

    last_step_at: dict[str, float] = {}
    for name, folder in folders.items():
        log = folder / TRAIN_LOG
        if log.is_file() and log.stat().st_size:
            last_step_at[name] = log.stat().st_mtime

    newest_first = sorted(last_step_at, key=last_step_at.__getitem__, reverse=True)
    return {name: folders[name] for name in newest_first}


def run_name(scratch: Path) -> str:
    """Return the name of a run from its scratch folder, ``.../rl@<start>/<digest>``."""
    return f"{scratch.parent.name.partition('@')[2]}-{scratch.name}"


def run_of(settings: Profile, start: str, root: Path) -> RlRun:
    """Return what the next run of the stage from a start will be; raise as :func:`rl_run` and :func:`read_state`."""
    scratch = scratch_path(settings.work, read_state(settings, f"rl@{start}", root))
    config = settings.section("rl", RlConfig)
    curve = curve_path(settings.work, f"rl-{start}-{scratch.name}")
    return rl_run(settings, config, start, scratch, curve)


def fork_run(settings: Profile, name: str, step: int, root: Path) -> tuple[str, RlRun]:
    """Have a profile's next run continue after ``step`` of an earlier one; return that one's name, and the new run.

    ``name`` is that of a run, or of a start for the newest run from it; ``root`` is the project's
    folder. Raises UnknownNameError for any other name, and as :func:`fork`.
    """
    runs = find_runs(settings.work)
    names: dict[str, str] = {}
    # The newest run comes last, so that the name of its start stands for it
    for run in reversed(runs):
        names[_start_name(run)] = run
    for run in runs:
        names[run] = run

    source = look_up(f"RL run of {settings.work}", name, names)
    target = run_of(settings, _start_name(source), root)
    fork(source, runs[source], step, target)
    return source, target


def _start_name(run: str) -> str:
    """Return the start of a run, from its name ``<start>-<digest>``."""
    return run.rpartition("-")[0]


def fork(name: str, folder: Path, step: int, target: RlRun) -> None:
    """Have ``target`` continue after ``step`` of the run ``name``, which lies in ``folder``.

    It takes the checkpoint of ``step`` and the best one before it. Where a better one is not kept
    any more, its score is left out of the log: nothing could be published under it.

    Raises:
        ConfigError: ``target`` has trained already, has no step or no patience left, or cannot load
            the checkpoint.
        ArtifactError: there is no checkpoint of ``step``, or nothing before it that dev has scored.
    """
    paths_of_step = checkpoints(folder)
    if step not in paths_of_step:
        has = ", ".join(map(str, paths_of_step)) or "none"
        raise ArtifactError(f"{name} keeps no checkpoint of step {step}; it has: {has} (rl.keep).")

    _check_target(name, folder, step, target)
    lines: list[TrainingStep] = []
    # The steps that the fork may publish: they have a score and a checkpoint
    scored: list[TrainingStep] = []
    for line in read_jsonl(folder / TRAIN_LOG, TrainingStep):
        if line.step > step:
            continue
        lines.append(line)
        if line.step in paths_of_step and line.dev_f1 is not None:
            scored.append(line)

    if not scored:
        raise ArtifactError(
            f"{name} has no checkpoint up to step {step} with a score on dev, so nothing could be "
            "chosen from. Fork a later step; rl.keep.every as a multiple of rl.dev.every keeps "
            "checkpoints with scores."
        )

    best = best_line(scored)
    lines = [_without_lost_score(line, best) for line in lines]
    worse = evaluations_since_best(lines)

    if target.rl.patience and worse >= target.rl.patience:
        raise ConfigError(
            f"the fork would train nothing: at step {step}, {worse} scores on dev came after the "
            f"best one, of step {best.step}, and rl.patience is {target.rl.patience}. Raise it, or "
            "fork an earlier step."
        )

    # Only the checkpoints that the fork can load or publish are copied
    unneeded = {folder / file for file in (TRAIN_LOG, RUN_FILE, OUTPUT_LOG, STATE_FILE)}
    for number, paths in paths_of_step.items():
        if number not in (step, best.step):
            unneeded.update(paths)

    with atomic_directory(target.scratch) as partial:
        _copy_without(folder, partial, unneeded)
        write_jsonl(partial / TRAIN_LOG, lines)
        write_json(partial / RUN_FILE, target.model_dump(mode="json"))
        write_json(partial / FORK_FILE, {"run": name, "step": step})


def _copy_without(folder: Path, copy: Path, unneeded: set[Path]) -> None:
    """Copy a folder into one that exists, without some files and folders of it."""

    def not_copied(parent: str, names: list[str]) -> list[str]:
        return [file for file in names if Path(parent, file) in unneeded]

    shutil.copytree(folder, copy, dirs_exist_ok=True, ignore=not_copied)


def _without_lost_score(line: TrainingStep, best: TrainingStep) -> TrainingStep:
    """Return a line, without its score on dev if that would be chosen before the best step that has a checkpoint."""
    is_lost = line.dev_f1 is not None and best_line([line, best]).step != best.step
    return line.model_copy(update={"dev_f1": None, "dev_f1" + ERROR: None}) if is_lost else line


def _check_target(name: str, folder: Path, step: int, target: RlRun) -> None:
    source = read_record(folder / RUN_FILE, RlRun)
    for field in SAME:
        if getattr(source.rl, field) != getattr(target.rl, field):
            raise ConfigError(
                f"{name} was trained with another rl.{field}, which its checkpoints depend on."
            )

    if source.weights != target.weights:
        raise ConfigError(
            f"{name} changed other weights than those in {target.start}; its checkpoints do not fit them."
        )

    # Equal params have the same scratch folder: it would be no fork
    if run_name(target.scratch) == name:
        raise ConfigError(
            f"with these params the stage continues {name} itself; say what the fork shall do "
            "otherwise, e.g. -S rl.learning_rate=5e-4, or edit the params."
        )

    log = target.scratch / TRAIN_LOG

    if log.is_file() and log.stat().st_size:
        raise ConfigError(
            f"{target.scratch} has trained with these params; remove it, or choose others."
        )

    if target.rl.steps[target.start_name] <= step:
        field = f"rl.steps.{target.start_name}"
        raise ConfigError(
            f"{field} is {target.rl.steps[target.start_name]}, so nothing is left after step {step}."
        )
