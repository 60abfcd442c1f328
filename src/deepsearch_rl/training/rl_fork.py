"""A new run of the stage ``rl`` that begins at a kept checkpoint of another run.

The stage continues from whatever its scratch folder holds, and that folder is named by a digest of its params and
inputs. So a fork is the scratch folder of other params, filled with the log up to a step and the checkpoints that go
with it; the next run of the stage with these params continues there.
"""

import shutil
from pathlib import Path

from deepsearch_rl.errors import ArtifactError, ConfigError, look_up
from deepsearch_rl.files import atomic_directory, read_jsonl, read_record, write_json, write_jsonl
from deepsearch_rl.profile import Profile
from deepsearch_rl.training.curves import ERROR, TrainingStep
from deepsearch_rl.training.rl.checkpoints import FORK_FILE, checkpoints
from deepsearch_rl.training.rl.loop import TRAIN_LOG, best_line, evaluations_since_best
from deepsearch_rl.training.rl.watchdog import OUTPUT_LOG
from deepsearch_rl.training.rl_worker import RUN_FILE, RlRun, rl_run

SAME = ("backend", "lora")
"""Fields of section ``rl`` that a checkpoint cannot change."""


def find_runs(work: Path) -> list[Path]:
    """Return the scratch folders of a profile's runs with a line in their log, the one that trained last first."""
    logs = [log for log in work.glob(f"rl-*/{TRAIN_LOG}") if log.stat().st_size]
    return [log.parent for log in sorted(logs, key=lambda log: log.stat().st_mtime, reverse=True)]


def fork_run(settings: Profile, name: str, step: int) -> tuple[Path, RlRun]:
    """Have a profile's next run continue after ``step`` of an earlier one; return that one's folder, and the run.

    ``name`` is that of a run's folder, or of a start for the newest run from it. Raises UnknownNameError for any other
    name, and as :func:`fork`.
    """
    runs = find_runs(settings.work)
    starts = {_start_name(run): run for run in reversed(runs)}
    source = look_up(f"RL run of {settings.work}", name, starts | {run.name: run for run in runs})
    target = rl_run(settings, _start_name(source))
    fork(source, step, target)
    return source, target


def _start_name(scratch: Path) -> str:
    """Return the start of a run, from its folder's name ``rl-<start>-<digest>``."""
    return scratch.name.removeprefix("rl-").rpartition("-")[0]


def fork(scratch: Path, step: int, target: RlRun) -> None:
    """Have ``target`` continue after ``step`` of the run in ``scratch``.

    It takes the checkpoint of ``step`` and the best one before it. Where a better one is not kept any more, its score
    is left out of the log: nothing could be published under it.

    Raises:
        ConfigError: ``target`` has trained already, has no step or no patience left, or cannot load the checkpoint.
        ArtifactError: there is no checkpoint of ``step``, or nothing before it that dev has scored.
    """
    kept = checkpoints(scratch)
    if step not in kept:
        has = ", ".join(map(str, kept)) or "none"
        raise ArtifactError(f"{scratch.name} keeps no checkpoint of step {step}; it has: {has} (rl.keep).")
    _check_target(scratch, step, target)
    lines = [line for line in read_jsonl(scratch / TRAIN_LOG, TrainingStep) if line.step <= step]
    scored = [line for line in lines if line.step in kept and line.dev_f1 is not None]
    if not scored:
        raise ArtifactError(
            f"{scratch.name} has no checkpoint up to step {step} with a score on dev, so nothing could be chosen from. "
            "Fork a later step; rl.keep.every as a multiple of rl.dev.every keeps checkpoints with scores."
        )
    best = best_line(scored)
    lines = [_without_lost_score(line, best) for line in lines]
    worse = evaluations_since_best(lines)
    if target.rl.patience and worse >= target.rl.patience:
        raise ConfigError(
            f"the fork would train nothing: at step {step}, {worse} scores on dev came after the best one, of step "
            f"{best.step}, and rl.patience is {target.rl.patience}. Raise it, or fork an earlier step."
        )
    unneeded = {path for number in kept.keys() - {step, best.step} for path in kept[number]}
    unneeded |= {scratch / name for name in (TRAIN_LOG, RUN_FILE, OUTPUT_LOG)}
    with atomic_directory(target.scratch) as partial:
        shutil.copytree(
            scratch,
            partial,
            dirs_exist_ok=True,
            ignore=lambda folder, names: [name for name in names if Path(folder, name) in unneeded],
        )
        write_jsonl(partial / TRAIN_LOG, lines)
        write_json(partial / RUN_FILE, target.model_dump(mode="json"))
        write_json(partial / FORK_FILE, {"run": scratch.name, "step": step})


def _without_lost_score(line: TrainingStep, best: TrainingStep) -> TrainingStep:
    """Return a line, without its score on dev if that would be chosen before the best step that has a checkpoint."""
    is_lost = line.dev_f1 is not None and best_line([line, best]).step != best.step
    return line.model_copy(update={"dev_f1": None, "dev_f1" + ERROR: None}) if is_lost else line


def _check_target(scratch: Path, step: int, target: RlRun) -> None:
    source = read_record(scratch / RUN_FILE, RlRun)
    field = next((name for name in SAME if getattr(source.rl, name) != getattr(target.rl, name)), None)
    if field:
        raise ConfigError(f"{scratch.name} was trained with another rl.{field}, which its checkpoints depend on.")
    if source.weights != target.weights:
        raise ConfigError(
            f"{scratch.name} changed other weights than those in {target.start}; its checkpoints do not fit them."
        )
    if target.scratch.name == scratch.name:
        raise ConfigError(
            f"with these params the stage continues {scratch.name} itself; say what the fork shall do otherwise, e.g. "
            "-S rl.learning_rate=5e-4, or edit the params."
        )
    if target.scratch in find_runs(target.scratch.parent):
        raise ConfigError(f"{target.scratch} has trained with these params; remove it, or choose others.")
    if target.rl.steps[target.start_name] <= step:
        name = f"rl.steps.{target.start_name}"
        raise ConfigError(f"{name} is {target.rl.steps[target.start_name]}, so nothing is left after step {step}.")
