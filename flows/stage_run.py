"""One stage by DVC, in a process of its own; `make repro` and the Prefect flow run every stage so."""

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

from pydantic import Field

from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.processes import ProcessGuard, stream_lines
from deepsearch_rl.core.profile import find_profile
from deepsearch_rl.core.records import Record
from deepsearch_rl.core.redaction import environment_secrets, redact
from deepsearch_rl.core.retries import retry
from flows.graph import Stage
from flows.locks import gpu_lock, held

DVC = str(Path(__file__).with_name("dvc"))
# DVC sets it for the stages of `dvc exp run`
EXPERIMENT_VARIABLE = "DVC_EXP_NAME"
PUSH_ATTEMPTS = 4
PUSH_BACKOFF_S = 2.0
# How a stage ends: it ran; DVC calls it unchanged; DVC fetched the outputs of an earlier run of
# the same inputs
COMPLETED = "Completed"
CACHED = "Cached"
RESTORED = "Restored"
_UNCHANGED = "Data and pipelines are up to date."
_STAGE_FAILED = "failed to run: "
_FROM_RUN_CACHE = "is cached - skipping run, checking out outputs"
AnyLogger = Logger | LoggerAdapter[Any]


class FlowConfig(Record):
    """Section ``flow`` of params.yaml."""

    gpu_stages: frozenset[str] = Field(description="stage families that take turns at the GPU")
    outside_stages: frozenset[str] = Field(
        description="families that ask hubs or APIs; tried again where they fail"
    )


class StageFailedError(DeepsearchError):
    """A stage ended with a status other than 0."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where the stages of a run work: their folder, what ends them with the run, the run's name, and its settings.

    ``remote`` is whether stages are fetched from DVC's remote, and pushed to it. The descriptors
    ``locks`` are those of the run's locks, which are free when the run and all that its stages
    started have ended. ``experiment`` is the name under which the result will be kept, empty where
    it is none: stages give it to their runs in MLflow.
    """

    root: Path
    guard: ProcessGuard
    holder: str
    config: FlowConfig
    remote: bool
    locks: tuple[int, ...] = ()
    experiment: str = ""


def workplace(
    root: Path,
    profile: str,
    guard: ProcessGuard,
    holder: str,
    remote: bool,
    locks: tuple[int, ...] = (),
    experiment: str = "",
) -> Workplace:
    """Return the workplace of a run of a profile; ``holder`` is its name for those who wait for its locks."""
    config = find_profile(root, profile).section("flow", FlowConfig)
    return Workplace(root, guard, holder, config, remote, locks, experiment)


def run_stage(stage: Stage, place: Workplace, force: bool, log: AnyLogger) -> str:
    """Let DVC reproduce one stage and return how it ended; its output goes to ``log`` line by line.

    With the remote, what another machine has made of the same inputs is fetched, and what this one
    makes is pushed. Raises StageFailedError with the command, its exit status and its last lines.
    """
    on_gpu = stage.family in place.config.gpu_stages
    turn = (
        held(gpu_lock(), place.holder, "uses the GPU", log.info, place.guard.check_open)
        if on_gpu
        else nullcontext()
    )
    with turn as lock:
        lines = _reproduce(stage, place, force, log, () if lock is None else (lock,))
    if _UNCHANGED in lines:
        return CACHED
    if place.remote:
        _push(stage, place, log)
    return RESTORED if any(line.endswith(_FROM_RUN_CACHE) for line in lines) else COMPLETED


def _reproduce(
    stage: Stage, place: Workplace, force: bool, log: AnyLogger, locks: Sequence[int]
) -> list[str]:
    """Reproduce a stage and return DVC's last lines; one that cannot be fetched runs here."""
    options = ["--force"] if force else []
    if place.remote:
        try:
            return stream(
                dvc_command("repro", "--single-item", "--pull", *options, stage.address),
                place,
                log,
                locks,
            )
        except StageFailedError as error:
            if _STAGE_FAILED in str(error):
                raise
            log.warning(
                "DVC's remote cannot be asked for %s, so it runs here: %s", stage.name, error
            )

    return stream(dvc_command("repro", "--single-item", *options, stage.address), place, log, locks)


def _push(stage: Stage, place: Workplace, log: AnyLogger) -> None:
    """Push what a stage made and its entry of the run cache; a remote that stays away fails no stage."""
    command = dvc_command("push", "--run-cache", stage.address)
    push = retry(
        PUSH_ATTEMPTS,
        PUSH_BACKOFF_S,
        StageFailedError,
        lambda _, attempt: log.info(
            "the push of %s failed (attempt %d); trying again", stage.name, attempt
        ),
    )

    try:
        push(lambda: stream(command, place, log))()
    except StageFailedError as error:
        log.error("NOT PUSHED to DVC's remote: %s", error)


def dvc_command(*arguments: str) -> list[str]:
    """A command of DVC. Several at once take turns at DVC's lock, which a running stage frees."""
    return [sys.executable, DVC, "--wait-for-lock", *arguments]


def stream(
    command: list[str], place: Workplace, log: AnyLogger, locks: Sequence[int] = ()
) -> list[str]:
    """Run a command, log its output as it comes, without keys, and return the last lines.

    The descriptors ``locks``, and those of the run, stay open until the command and all that it
    started have ended. Raises StageFailedError.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if place.experiment:
        environment[EXPERIMENT_VARIABLE] = place.experiment
    secrets = environment_secrets(environment)
    process = place.guard.start(
        command, folder=place.root, environment=environment, kept=[*place.locks, *locks]
    )
    lines = stream_lines(process, lambda line: log.info("%s", redact(line, secrets)))
    tail = [redact(line, secrets) for line in lines]

    if process.returncode != 0:
        call = " ".join(["dvc", *command[2:]] if command[1] == DVC else command)
        raise StageFailedError(
            f"`{call}` ended with status {process.returncode}; its last lines:\n" + "\n".join(tail)
        )

    return tail
