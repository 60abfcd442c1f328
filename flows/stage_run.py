"""One stage by DVC, in a process of its own; `make repro` and the Prefect flow run every stage so."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from logging import Logger, LoggerAdapter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import Field

from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.processes import ProcessGuard, stream_lines
from deepsearch_rl.core.profile import find_profile
from deepsearch_rl.core.records import Record
from deepsearch_rl.core.redaction import environment_secrets, redact
from deepsearch_rl.core.retries import retry
from deepsearch_rl.core.stage import OUTSIDE_STATUS
from flows.graph import Stage
from flows.locks import gpu_locks, held
from flows.outcome import OUTCOME_VARIABLE, Outcome, read_outcome

DVC = str(Path(__file__).with_name("dvc"))
# DVC sets it for the stages of `dvc exp run`
EXPERIMENT_VARIABLE = "DVC_EXP_NAME"
# A stage in the background gets a quarter of a core that another one wants: its servers still
# answer in time
BACKGROUND_NICENESS = 5
PUSH_ATTEMPTS = 4
PUSH_BACKOFF_S = 2.0
# How a stage ends: it ran; DVC calls it unchanged; DVC fetched the outputs of an earlier run of
# the same inputs
COMPLETED = "Completed"
CACHED = "Cached"
RESTORED = "Restored"
AnyLogger = Logger | LoggerAdapter[Any]


class FlowConfig(Record):
    """Section ``flow`` of params.yaml."""

    gpu_stages: frozenset[str] = Field(description="stage families that take turns at the GPU")
    outside_stages: frozenset[str] = Field(
        description="families that ask hubs or APIs; tried again where they fail"
    )


class StageFailedError(DeepsearchError):
    """A command ended with a status other than 0; ``status`` is that of a stage's own command, None of any other."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_outside(self) -> bool:
        """Whether a server that the stage asked did not answer, so that another attempt can help."""
        return self.status == OUTSIDE_STATUS


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where the stages of a run work: their folder, what ends them with the run, the run's name, and its settings.

    ``remote`` is whether stages are fetched from DVC's remote, and pushed to it. The descriptors
    ``locks`` are those of the run's locks, which are free when the run and all that its stages
    started have ended. ``experiment`` is the name under which the result will be kept, empty where
    it is none: stages give it to their runs in MLflow. ``niceness`` is that of their processes:
    the higher, the more they leave the processor to others.
    """

    root: Path
    guard: ProcessGuard
    holder: str
    config: FlowConfig
    remote: bool
    locks: tuple[int, ...] = ()
    experiment: str = ""
    niceness: int = 0


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


def run_stage(
    stage: Stage, place: Workplace, force: bool, log: AnyLogger, in_background: bool = False
) -> str:
    """Let DVC reproduce one stage and return how it ended; its output goes to ``log`` line by line.

    In the background it leaves the processor to others that need it. With the remote, what another
    machine has made of the same inputs is fetched, and what this one makes is pushed. Raises
    StageFailedError with the command, its exit status and its last lines.
    """
    if in_background:
        place = replace(place, niceness=BACKGROUND_NICENESS)
    with ExitStack() as turns:
        locks: list[int] = []
        for path in gpu_locks() if stage.family in place.config.gpu_stages else ():
            lock = held(path, place.holder, "uses the GPU", log.info, place.guard.check_open)
            locks.append(turns.enter_context(lock))

        outcome = _reproduce(stage, place, force, log, locks)
    if not outcome.has_run and not outcome.was_restored:
        return CACHED
    if place.remote:
        _push(stage, place, log)
    return COMPLETED if outcome.has_run else RESTORED


def _reproduce(
    stage: Stage, place: Workplace, force: bool, log: AnyLogger, locks: Sequence[int]
) -> Outcome:
    """Reproduce a stage and return what DVC did; one that cannot be fetched runs here."""
    options = ["--force"] if force else []
    if place.remote:
        try:
            return _repro(["--pull", *options, stage.address], place, log, locks)
        except StageFailedError as error:
            if error.status is not None:
                raise
            log.warning(
                "DVC's remote cannot be asked for %s, so it runs here: %s", stage.name, error
            )

    return _repro([*options, stage.address], place, log, locks)


def _repro(
    arguments: Sequence[str], place: Workplace, log: AnyLogger, locks: Sequence[int]
) -> Outcome:
    """Run `dvc repro` for one stage; raise StageFailedError, with the status of the stage's command if that failed."""
    with TemporaryDirectory(prefix="deepsearch-") as folder:
        path = Path(folder, "outcome.json")
        command = dvc_command("repro", "--single-item", *arguments)
        try:
            stream(command, place, log, locks, {OUTCOME_VARIABLE: str(path)})
        except StageFailedError as error:
            raise StageFailedError(str(error), read_outcome(path).status) from error
        return read_outcome(path)


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
    command: list[str],
    place: Workplace,
    log: AnyLogger,
    locks: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run a command with further environment variables, and log its output as it comes, without keys.

    The descriptors ``locks``, and those of the run, stay open until the command and all that it
    started have ended. Raises StageFailedError.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(variables or {})}
    if place.experiment:
        environment[EXPERIMENT_VARIABLE] = place.experiment
    # Prefect keeps logs on a server that others read
    secrets = environment_secrets(environment)
    prefix = ["nice", "-n", str(place.niceness)] if place.niceness else []
    process = place.guard.start(
        [*prefix, *command],
        folder=place.root,
        environment=environment,
        kept=[*place.locks, *locks],
    )
    lines = stream_lines(process, lambda line: log.info("%s", redact(line, secrets)))
    tail = [redact(line, secrets) for line in lines]

    if process.returncode != 0:
        call = " ".join(["dvc", *command[2:]] if command[1] == DVC else command)
        raise StageFailedError(
            f"`{call}` ended with status {process.returncode}; its last lines:\n" + "\n".join(tail)
        )
