"""``engine: verl``: a run of veRL's own trainer in its own environment, and its results as every engine leaves them.

The scratch folder of a run holds::

    verl/params.yaml, agent.yaml     what the episodes are played by
    verl/train.parquet, dev.parquet  the questions, in the order in which they are trained on
    verl/checkpoints/                veRL's: the best by dev F1, and the newest to go on from
    verl/logs/<number>.jsonl, .txt   veRL's figures and output of each start of its trainer

A run that was killed, or lost a worker, goes on from the newest whole checkpoint; the watchdog starts
it again.

Every step that is finished goes to the run's log while veRL trains, which says the alarms that it gives
(:mod:`deepsearch_rl.train.rl.run_log`), by the names that the log of other engines has
(:mod:`deepsearch_rl.train.verl.figures`). The best checkpoint by dev F1 is converted by
veRL's own ``model_merger``.
"""

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from deepsearch_rl.chat.prompts import TRAINED_WITH
from deepsearch_rl.core.errors import (
    ArtifactError,
    CommandError,
    LostProcessError,
    StalePolicyError,
)
from deepsearch_rl.core.files import (
    atomic_directory,
    atomic_file,
    read_json,
    write_json,
    write_jsonl,
)
from deepsearch_rl.core.processes import ProcessGuard, last_lines
from deepsearch_rl.train.curves import TrainingStep
from deepsearch_rl.train.model_folder import ADAPTER_FILES
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask
from deepsearch_rl.train.rl.rollouts import batch
from deepsearch_rl.train.rl.run_log import TRAIN_LOG, RunLog, best_line
from deepsearch_rl.train.rl.task_checks import check_task
from deepsearch_rl.train.rl.watchdog import begin
from deepsearch_rl.train.verl.checkpoints import (
    go_back_to_whole,
    keep_only,
    merge_command,
    step_folder,
)
from deepsearch_rl.train.verl.cluster import THIS_MACHINE
from deepsearch_rl.train.verl.figures import VerlSteps, read_logs
from deepsearch_rl.train.verl.overrides import (
    VerlRun,
    hydra_overrides,
    hydra_value,
    require_honoured,
)

_LOG = logging.getLogger(__name__)
SOURCES = Path(__file__).resolve().parents[3]
# Between two looks at what veRL has logged
POLL_S = 1.0
# Ray's errors of a worker or node that is gone. An actor whose constructor raised an error has
# "died", too; the next start would end the same.
_LOST = re.compile(
    r"\b(ActorDiedError|ActorUnavailableError|NodeDiedError|OwnerDiedError|WorkerCrashedError)"
    r"(: (?!The actor died because of an error raised in its creation task)|$)",
    re.MULTILINE,
)
CPU_ENVIRONMENT = {
    "VERL_USE_EXTERNAL_MODULES": "deepsearch_rl.train.verl.cpu",
    "VERL_PLATFORM": "cpu",
    # The engines are registered for accelerators alone
    "VERL_ENGINE_DEVICE": "cuda",
    "OMP_NUM_THREADS": "1",
}
# Without it Ray listens on every interface, and with it no second node may join
LOOPBACK_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def train_with_verl(task: RlTask, config: RlConfig, output: Path) -> None:
    """Train from ``task.start`` and write what :func:`~deepsearch_rl.train.rl.loop.train_policy` writes.

    Raises as that, ConfigError where veRL cannot honour section ``rl``, CommandError where its
    trainer ends with an error.
    """
    require_honoured(config)
    served, _ = check_task(task, config)

    begin("start", 0)
    _require_cluster(task, config)
    run = _write_inputs(task, config)
    go_back_to_whole(run.checkpoints, config)
    log = _train(task, config, run)
    lines = log.lines
    best = _best_saved(lines, run.checkpoints)
    manifest = {
        "start": task.start_name,
        "steps": lines[-1].step,
        "best_step": best.step,
        "best_dev_f1": best.dev_f1,
        "start_dev_f1": lines[0].dev_f1,
        "alarms": [alarm.model_dump() for alarm in log.alarms.began],
        "backend": "verl",
        "device": config.backend.device,
        "dtype": config.dtype,
        "seed": task.seed,
        TRAINED_WITH: served.model_dump(),
    }

    begin("save", best.step)
    with atomic_directory(output) as partial:
        _convert(config, task.start, run.checkpoints / step_folder(best.step), partial)
        write_jsonl(partial / TRAIN_LOG, lines)
        write_json(partial / "manifest.json", manifest)


def _require_cluster(task: RlTask, config: RlConfig) -> None:
    """Raise CommandError where a machine has too few GPUs, or does not reach the retrieval server.

    So it does where the nodes at ``rl.backend.verl.address`` have other versions than the head.
    """
    verl = require_honoured(config)
    # On a CPU veRL is told of as many as it asks for
    if verl.address is None and config.backend.device == "cpu":
        return
    log = task.scratch / "cluster.txt"
    command = [*_python(config), "-m", "deepsearch_rl.train.verl.cluster"]
    command += [verl.address or THIS_MACHINE, str(verl.nodes), str(verl.gpus_per_node)]
    place = "on this machine" if verl.address is None else f"on the Ray cluster {verl.address}"
    _run(
        [*command, task.retrieval_url],
        log,
        f"veRL cannot train {place}",
        _environment(config, log),
    )


def _write_inputs(task: RlTask, config: RlConfig) -> VerlRun:
    """Write what veRL's processes read, and return where it is."""
    folder = (task.scratch / "verl").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    steps = config.steps[task.start_name]
    run = VerlRun(
        start=task.start.absolute(),
        train=folder / "train.parquet",
        dev=folder / "dev.parquet",
        agent=folder / "agent.yaml",
        checkpoints=folder / "checkpoints",
        steps=steps,
        context_tokens=task.agent.context_tokens,
        seed=task.seed,
    )
    params = folder / "params.yaml"
    agent = task.agent.model_dump(mode="json")
    # Workers of a cluster have another working directory
    if (prompt := Path(task.agent.prompt)).exists():
        agent["prompt"] = str(prompt.absolute())
    sections = {"profile": "verl", "agent": agent, "rl": config.model_dump(mode="json")}
    with atomic_file(params) as partial:
        partial.write_text(yaml.safe_dump(sections, sort_keys=False), encoding="utf-8")

    train = batch(task, 0, steps * config.groups_per_step)
    write_jsonl(run.train.with_suffix(".jsonl"), train)
    write_jsonl(run.dev.with_suffix(".jsonl"), task.dev[: config.dev.questions])

    # The environment is above the layer of training, so that it is started by name
    command = [sys.executable, "-m", "deepsearch_rl.environment.adapters.verl"]
    command += ["--params", str(params), "--model", str(run.start)]
    command += ["--retrieval_url", task.retrieval_url, "--data_source", config.dataset]
    command += ["--output_dir", str(folder), "--questions"]
    command += [str(path.with_suffix(".jsonl")) for path in (run.train, run.dev)]
    _run(command, folder / "rows.txt", "the questions cannot be rows of veRL's")
    return run


def _run(
    command: Sequence[str],
    log: Path,
    problem: str,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command to its end; raise CommandError with its last lines where it fails."""
    with ProcessGuard() as guard, log.open("w", encoding="utf-8") as output:
        process = guard.start(command, environment=environment, output=output)
        process.wait()
    if process.returncode != 0:
        raise CommandError(f"{problem}: {last_lines(log)}")


def _train(task: RlTask, config: RlConfig, run: VerlRun) -> RunLog:
    """Start veRL's trainer, which goes on from its newest checkpoint, and return the log of all steps."""
    logs = run.agent.parent / "logs"
    logs.mkdir(exist_ok=True)
    steps = VerlSteps(task.start_name, read_logs(logs, config))
    if steps.last == run.steps and (run.checkpoints / step_folder(run.steps)).is_dir():
        return steps.log

    number = len(list(logs.glob("*.jsonl")))
    figures = logs / f"{number:03}.jsonl"
    # A start that dies before its first figure has a number, too
    figures.touch()
    command = [
        *_python(config),
        "-m",
        "verl.trainer.main_ppo",
        f"hydra.run.dir={run.agent.parent / 'hydra'}",
        *hydra_overrides(config, run),
        *_workers_environment(config, figures),
    ]
    text = logs / f"{number:03}.txt"

    with ProcessGuard() as guard, text.open("w", encoding="utf-8") as log:
        process = guard.start(command, environment=_environment(config, figures), output=log)
        while not _has_ended(process):
            _take(steps, logs, run.checkpoints, config)

    _take(steps, logs, run.checkpoints, config)
    if process.returncode != 0:
        raise trainer_error(task.start_name, process.returncode, text)
    if steps.last != run.steps:
        raise ArtifactError(f"veRL ended well, and {figures} has no figures of step {run.steps}.")
    return steps.log


def _take(steps: VerlSteps, logs: Path, checkpoints: Path, config: RlConfig) -> None:
    """Take what veRL has logged since the last look, and remove checkpoints that are not needed any more.

    Raise StalePolicyError for a step of another policy.
    """
    for line in steps.take(read_logs(logs, config)):
        _require_same_policy(line, config)
        begin("roll out", line.step + 1)
        _keep_checkpoints(steps.log.lines, checkpoints, config)


def _keep_checkpoints(lines: Sequence[TrainingStep], checkpoints: Path, config: RlConfig) -> None:
    """Remove checkpoints as other engines do: the best and the newest ``rl.kept_checkpoints`` stay."""
    saved = _saved(lines, checkpoints)
    if saved:
        keep_only(checkpoints, best_line(saved).step, config.kept_checkpoints)


def _saved(lines: Sequence[TrainingStep], checkpoints: Path) -> list[TrainingStep]:
    """Return the lines of the steps that have a checkpoint."""
    return [line for line in lines if (checkpoints / step_folder(line.step)).is_dir()]


def _require_same_policy(line: TrainingStep, config: RlConfig) -> None:
    """Raise StalePolicyError where the sampler's tokens are not the trained policy's."""
    mismatch = line.metrics.get("mismatch_mean", 0.0)
    if mismatch > config.max_mismatch:
        raise StalePolicyError(
            f"in step {line.step} the log-probabilities of veRL's sampler and trainer differ by {mismatch:.2g} nats on "
            f"average, more than rl.max_mismatch = {config.max_mismatch:g}: the sampler does not serve the weights "
            "that are trained, or computes them otherwise."
        )


def _has_ended(process: "subprocess.Popen[str]") -> bool:
    try:
        process.wait(POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def trainer_error(start: str, code: int, log: Path) -> CommandError:
    """Return what veRL's trainer ended with: a LostProcessError where it lost a worker or a node."""
    text = log.read_text(encoding="utf-8", errors="replace")
    kind = LostProcessError if code < 0 or _LOST.search(text) else CommandError
    return kind(
        f"veRL's trainer of rl@{start} ended with exit code {code}; run the command again to go on from its last "
        f"checkpoint. Its output is in {log}, the end is:\n{last_lines(log)}"
    )


def _python(config: RlConfig) -> list[str]:
    return [require_honoured(config).python, "-u"]


def _environment(config: RlConfig, figures: Path) -> dict[str, str]:
    """Return the environment of veRL's processes."""
    values = {**os.environ, **_own_variables(config, figures)}
    is_alone = config.backend.device == "cpu" and require_honoured(config).address is None
    return {**values, **LOOPBACK_ALONE} if is_alone else values


def _own_variables(config: RlConfig, figures: Path) -> dict[str, str]:
    """Return what veRL's processes are told: nothing is reported to anybody."""
    paths = [str(SOURCES), os.environ.get("PYTHONPATH", "")]
    ours = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "VERL_FILE_LOGGER_PATH": str(figures.absolute()),
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",
        "HYDRA_FULL_ERROR": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    return {**ours, **CPU_ENVIRONMENT} if config.backend.device == "cpu" else ours


def _workers_environment(config: RlConfig, figures: Path) -> list[str]:
    """Return the arguments that give these variables to the workers of a cluster.

    They have the environment in which their node was started. That of a Ray which veRL starts
    itself is the trainer's.
    """
    if require_honoured(config).address is None:
        return []
    place = "+ray_kwargs.ray_init.runtime_env.env_vars"
    variables = _own_variables(config, figures)
    return [f"{place}.{name}={hydra_value(value)}" for name, value in variables.items()]


def _best_saved(lines: Sequence[TrainingStep], checkpoints: Path) -> TrainingStep:
    """Return the best line by dev F1 that has a checkpoint: the start has none."""
    saved = _saved(lines, checkpoints)
    if not saved:
        raise ArtifactError(f"{checkpoints} has no checkpoint of a step in veRL's log.")
    best = best_line(saved)
    start = lines[0].dev_f1
    if start is not None and best.dev_f1 is not None and start > best.dev_f1:
        _LOG.warning(
            "dev F1 of the best step, %d, is %.3f, below the start's %.3f",
            best.step,
            best.dev_f1,
            start,
        )
    return best


def _convert(config: RlConfig, start: Path, checkpoint: Path, folder: Path) -> None:
    """Write a checkpoint as the adapter, or all weights, by veRL's own converter."""
    merged = folder / "merged"
    command = merge_command(
        require_honoured(config).python,
        "fsdp",
        checkpoint / "actor",
        merged,
        rounds=config.dtype == "bfloat16",
    )
    log = checkpoint.parent / "merge.txt"
    _run(command, log, "veRL's model_merger failed", _environment(config, log))

    if config.lora is None:
        for path in merged.iterdir():
            path.rename(folder / path.name)
    else:
        settings, weights = ADAPTER_FILES
        adapter = merged / "lora_adapter"
        values = read_json(adapter / settings) | {"base_model_name_or_path": str(start)}
        write_json(folder / settings, values)
        shutil.move(adapter / weights, folder / weights)
    shutil.rmtree(merged)
