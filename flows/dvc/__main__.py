"""`dvc`, whose dvc.lock a kill cannot leave half-written, which waits for other DVCs, and which gives no advice.

    python flows/dvc repro profiles/smoke/dvc.yaml

DVC writes dvc.lock in place at the end of every stage, and for the lock of a whole graph that takes
a second. A kill at that moment leaves the first part of the file: DVC refuses it, or takes the
stages of the rest for new. Here the file is written beside it and renamed. It has no comments to
keep, so that it is read in a sixth of the time; its bytes are those that DVC writes.

DVC refuses a stage whose files another DVC process works on, and advises to remove its lock by
hand. Here `dvc repro` says for whom it waits, and begins anew when that one has ended, from DVC's
new state.

After every stage DVC advises `git add`, `autostage` and `dvc push`. A run of the whole graph would
print that twenty times; here it is left out.

DVC says in sentences alone how a stage ended. Here it is also written to the file that the variable
``DEEPSEARCH_OUTCOME`` names, as :class:`flows.outcome.Outcome`.
"""

import functools
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dvc.dvcfile
import dvc.repo.scm_context
import dvc.rwlock
import dvc.stage.run
from dvc.cli import main
from dvc.lock import LockError
from dvc.stage.cache import StageCache
from dvc.stage.exceptions import StageCmdFailedError
from dvc.ui import ui
from dvc.utils.serialize import dump_yaml, load_yaml, modify_yaml

from deepsearch_rl.core.dvc_lock import blocking_pids, wait_for_users
from deepsearch_rl.core.files import atomic_file

# DVC's own, after Ctrl-C
INTERRUPTED_STATUS = 252
PUSH_ADVICE = "Use `dvc push` to send your updates to remote storage."


@contextmanager
def modify_yaml_at_once(path: str, fs: Any = None) -> Iterator[Any]:
    """Yield the values of a YAML file for changes, which it has all at once after the block."""
    with atomic_file(Path(path)) as partial:
        if dvc.dvcfile.is_lock_file(path):
            values = load_yaml(path, fs=fs) if Path(path).exists() else {}
            yield values
            dump_yaml(str(partial), values, fs=fs)
        else:
            if Path(path).exists():
                shutil.copyfile(path, partial)
            with modify_yaml(str(partial), fs=fs) as values:
                yield values


class _Busy(BaseException):
    """Another process works on a stage's files; as with Ctrl-C, DVC only cleans up on its way out.

    The arguments are DVC's message and its lock file.
    """


_rwlock = dvc.rwlock.rwlock


@contextmanager
def rwlock_or_busy(folder: str, *arguments: Any) -> Iterator[None]:
    """Do what DVC's rwlock does, but raise _Busy in place of its LockError."""
    with ExitStack() as stack:
        try:
            stack.enter_context(_rwlock(folder, *arguments))
        except LockError as error:
            raise _Busy(str(error), Path(folder, dvc.rwlock.RWLOCK_FILE)) from error

        yield


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def run() -> int:
    """Run DVC's command line; `dvc repro` starts again after it has waited for another DVC."""
    # `dvc exp run` has changed files of the project when it comes to its first stage
    if "repro" in sys.argv[1:]:
        setattr(dvc.rwlock, "rwlock", rwlock_or_busy)  # noqa: B010 - as below
    try:
        return main()
    except _Busy as busy:
        from flows.locks import say_waiting  # noqa: PLC0415 - found only as set below

        message, lock_file = busy.args
        on_wait = functools.partial(say_waiting, _say, "works on files that this stage needs")

        try:
            wait_for_users(lock_file, blocking_pids(message), on_wait)
        except KeyboardInterrupt:
            return INTERRUPTED_STATUS

        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def leave_out_advice() -> None:
    """Have DVC print no advice in this process; its warnings and all other lines stay."""
    logging.getLogger(dvc.repo.scm_context.__name__).setLevel(logging.WARNING)
    write = ui.write

    def write_unless_advice(*objects: Any, **options: Any) -> None:
        if objects != (PUSH_ADVICE,):
            write(*objects, **options)

    # A method, which pyright guards
    setattr(ui, "write", write_unless_advice)  # noqa: B010


@contextmanager
def outcome_written(path: Path) -> Iterator[None]:
    """Write how the stages of the block ended: the command of one ran or failed, or its outputs were fetched."""
    from flows.outcome import Outcome  # noqa: PLC0415 - found only as set below

    outcome = Outcome()
    # DVC says this in sentences of its log alone, which change with its versions
    run_command = dvc.stage.run.cmd_run
    restore = StageCache.restore

    def run_noted(*arguments: Any, **options: Any) -> None:
        nonlocal outcome
        outcome = outcome.model_copy(update={"has_run": True})
        run_command(*arguments, **options)

    def restore_noted(*arguments: Any, **options: Any) -> None:
        nonlocal outcome
        restore(*arguments, **options)
        outcome = outcome.model_copy(update={"was_restored": True})

    class NotedCmdFailedError(StageCmdFailedError):
        def __init__(self, cmd: str, status: int | None = None) -> None:
            nonlocal outcome
            super().__init__(cmd, status)
            outcome = outcome.model_copy(update={"status": status})

    for owner, name, value in (
        (dvc.stage.run, "cmd_run", run_noted),
        (dvc.stage.run, "StageCmdFailedError", NotedCmdFailedError),
        (StageCache, "restore", restore_noted),
    ):
        setattr(owner, name, value)

    try:
        yield
    finally:
        path.write_text(outcome.model_dump_json(), encoding="utf-8")


def run_and_say() -> int:
    """Run DVC's command line, and write how it ended where somebody asks; what it starts is not asked."""
    from flows.outcome import OUTCOME_VARIABLE  # noqa: PLC0415

    path = os.environ.get(OUTCOME_VARIABLE)
    if not path:
        return run()
    with outcome_written(Path(path)):
        return run()


if __name__ == "__main__":
    # last: no folder of the project hides a package
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    leave_out_advice()
    # A module's function, which pyright guards
    setattr(dvc.dvcfile, "modify_yaml", modify_yaml_at_once)  # noqa: B010
    sys.exit(run_and_say())
