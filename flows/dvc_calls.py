"""Command lines that run a profile's graph or one of its stages, and what is running of them.

`dvc repro` and `dvc exp run` of the project's environment hold the lock of a profile's runs
(:mod:`flows.locks`): the environment's hook, ``stages/environment.py``, takes it when their Python
starts, before DVC reads a file. A DVC of another environment has no such hook. It is known by its
command line and its folder, and a run of ours waits for it (:func:`find_foreign_run`). Its stages
have the hook: one that starts while a run of ours works on the profile fails with a sentence that
names the run. It does not wait, because DVC holds the stage's outputs for it, and the run of ours
may wait for those.

What cannot be known: a DVC in a container with process numbers of its own, or of another user whose
folder the system does not tell; a program that calls DVC's Python interface; a stage that went on
after its plain DVC was killed. Where such a one is in a stage that shares files with ours, DVC's
own lock names it, and ours waits (``flows/dvc``).

Only the standard library until a foreign DVC is looked for (:mod:`flows.locks`).
"""

import functools
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from flows.locks import (
    LOCKS_VARIABLE,
    Holder,
    Say,
    current_holder,
    is_inherited,
    is_noted,
    local_time,
    run_lock,
    take_run_lock,
)

# DVC sets it for the commands of a stage
STAGE_VARIABLE = "DVC_STAGE"
REFUSED_STATUS = 1
# As of a shell's command that Ctrl-C ended
CANCELLED_STATUS = 130
# Of `dvc`, `dvc repro` and `dvc exp run`: the word behind is a value, and no target
_OPTIONS_WITH_VALUE = {
    "--cd",
    "--cprofile-dump",
    "-n",
    "--name",
    "-S",
    "--set-param",
    "-j",
    "--jobs",
    "-C",
    "--copy-paths",
    "-m",
    "-M",
    "--message",
}
_PYTHON_OPTIONS_WITH_VALUE = {"-X", "-W", "--check-hash-based-pycs"}
# With one of these nothing runs, or it runs in a copy of the project
_NOT_HERE = {"--dry", "-h", "--help", "--queue", "--run-all", "--temp"}


@dataclass(frozen=True, slots=True)
class DvcRun:
    """A command of DVC that runs stages: its words without the program, what it names, and its folder.

    ``takes_all`` is whether it is for all graphs of the project.
    """

    words: tuple[str, ...]
    targets: tuple[str, ...]
    takes_all: bool
    folder: Path

    def __str__(self) -> str:
        return " ".join(["dvc", *self.words])


def dvc_words(command: Sequence[str]) -> tuple[str, ...] | None:
    """Return what follows the program where a process's command line is DVC's own; None where it is another program's.

    DVC is a program of its own, the script of a Python (``python .../dvc``) or its module (``python
    -P -m dvc``). What starts DVC and waits for it, as `time`, `timeout`, `sudo`, `uv run` and
    `conda run` do, is not DVC.
    """
    if not command:
        return None
    program, *words = command
    name = os.path.basename(program).lower()  # noqa: PTH119
    if name == "dvc":
        return tuple(words)
    if not name.startswith(("python", "pypy")):
        return None

    place = 0
    while place < len(words) and words[place].startswith("-"):
        option = words[place]
        # `-m`, or `-Pm` of letters that share a dash
        if not option.startswith("--") and option.endswith("m"):
            return tuple(words[place + 2 :]) if words[place + 1 : place + 2] == ["dvc"] else None
        place += 2 if option in _PYTHON_OPTIONS_WITH_VALUE else 1

    is_dvc = place < len(words) and os.path.basename(words[place]) == "dvc"  # noqa: PTH119
    return tuple(words[place + 1 :]) if is_dvc else None


def read_dvc_run(command: Sequence[str], folder: Path) -> DvcRun | None:
    """Return what a process's command line runs by DVC in its working directory; None where that is nothing."""
    words = dvc_words(command)
    if words is None:
        return None

    options: set[str] = set()
    names: list[str] = []
    rest = iter(words)

    for word in rest:
        if word in _OPTIONS_WITH_VALUE:
            # Or the value would be taken for a target
            value = next(rest, "")
            folder = folder / value if word == "--cd" else folder
        elif word.startswith("-"):
            options.add(word)
        else:
            names.append(word)

    is_experiment = names[:1] in (["exp"], ["experiments"]) and names[1:2] == ["run"]
    if options & _NOT_HERE or not (names[:1] == ["repro"] or is_experiment):
        return None
    targets = tuple(names[2 if is_experiment else 1 :])
    takes_all = any(map(_is_for_all_graphs, options))
    return DvcRun(words, targets, takes_all, folder)


def _is_for_all_graphs(option: str) -> bool:
    """Return whether an option is ``--all-pipelines`` or ``--recursive``, in full or as a letter, as in ``-fP``."""
    if option.startswith("--"):
        return option in ("--all-pipelines", "--recursive")
    return "P" in option or "R" in option


def project_of(folder: Path) -> Path | None:
    """Return the DVC project that a folder is in."""
    for place in (folder, *folder.parents):
        if (place / ".dvc").is_dir():
            return place
    return None


def profile_of(root: Path, path: Path) -> str:
    """Return the profile that a file or folder of the project is of; tiny where it is of no folder of ``profiles/``."""
    parts = Path(os.path.relpath(path, root)).parts
    return parts[1] if parts[:1] == ("profiles",) and len(parts) > 1 else "tiny"


def profiles_of(run: DvcRun, root: Path) -> list[str]:
    """Return the profiles whose graphs a command of DVC runs, in the order in which every run takes their locks."""
    if run.takes_all:
        return sorted({"tiny", *(path.parent.name for path in root.glob("profiles/*/dvc.yaml"))})
    # `profiles/smoke/dvc.yaml:rl@sft`, `rl@sft`, or nothing at all for the dvc.yaml of the working
    # directory
    profiles: set[str] = set()
    for target in run.targets or ("",):
        file = target.partition(":")[0]
        profiles.add(profile_of(root, run.folder / file))

    return sorted(profiles)


def read_stage_call(command: Sequence[str], folder: Path) -> tuple[str, Path] | None:
    """Return the module and params file of ``python -m stages.NAME PARAMS``; None of every other command line."""
    words = list(command)
    if "-m" not in words[1:]:
        return None
    module, *arguments = words[words.index("-m", 1) + 1 :] or [""]
    if not module.startswith("stages."):
        return None

    for word in arguments:
        if Path(word).name == "params.yaml":
            return module, folder / word
    return None


def find_foreign_run(root: Path, profile: str) -> Holder | None:
    """Return a DVC that runs a profile's graph in the project and does not know of the locks of :mod:`flows.locks`."""
    import psutil  # noqa: PLC0415 - not the standard library

    lock = run_lock(root, profile)
    for process in psutil.process_iter(["cmdline"]):
        if dvc_words(process.info["cmdline"] or []) is None:
            continue
        with suppress(psutil.Error, OSError):
            run = read_dvc_run(process.info["cmdline"], Path(process.cwd()))
            if process.pid == os.getpid() or run is None:
                continue
            if project_of(run.folder) != root.resolve() or profile not in profiles_of(run, root):
                continue

            # The project's own DVC holds the lock open, and so do its children
            has_lock_open = any(file.path == str(lock) for file in process.open_files())
            if has_lock_open or is_noted(lock, process.environ().get(LOCKS_VARIABLE, "")):
                continue

            return Holder(str(run), process.pid, local_time(process.create_time()))

    return None


def take_turn(command: Sequence[str], say: Say) -> None:
    """Have this process hold the locks that its command line needs, until it ends; wait for them where that is safe.

    Raises:
        BlockingIOError: a stage of a foreign DVC, while a run of ours works on its profile.
    """
    folder = Path.cwd()
    root = project_of(folder)
    if root is None:
        return

    if run := read_dvc_run(command, folder):
        for profile in profiles_of(run, root):
            if not _is_ours(root, profile):
                find_other = functools.partial(find_foreign_run, root, profile)
                take_run_lock(root, profile, str(run), say, find_other=find_other)

        return

    call = read_stage_call(command, folder)
    if call is None:
        return
    module, params = call
    profile = profile_of(root, params)
    is_of_a_profile = params.parent.resolve() in (root, root / "profiles" / profile)

    if is_of_a_profile and not _is_ours(root, profile):
        # Its DVC holds files that the run may need: the two would wait for each other
        if os.environ.get(STAGE_VARIABLE):
            _refuse_where_held(root, profile)
        take_run_lock(root, profile, f"python -m {module}", say)


def _is_ours(root: Path, profile: str) -> bool:
    """Return whether this process holds a profile's lock: its hook and then its package may both come here."""
    holder = current_holder(run_lock(root, profile))
    return holder is not None and holder.pid == os.getpid()


def _refuse_where_held(root: Path, profile: str) -> None:
    path = run_lock(root, profile)
    holder = current_holder(path)

    if holder and not is_inherited(path):
        raise BlockingIOError(
            f"{holder} works on the profile {profile}, so this stage does not start. Run the "
            f"command again when that has ended, or stop it with `kill {holder.pid}`. (The DVC of "
            "the project's environment, .venv/bin/dvc, waits by itself.)"
        )


def take_turn_or_exit() -> None:
    """Call :func:`take_turn` for this process as its Python starts; what ends it there is one paragraph."""
    try:
        take_turn(sys.orig_argv, lambda sentence: sys.stderr.write(f"{sentence}\n"))
    except KeyboardInterrupt:
        sys.stderr.write("cancelled\n")
        sys.stderr.flush()
        # The interpreter calls an exception at this moment a fatal error
        os._exit(CANCELLED_STATUS)
    except BlockingIOError as error:
        _end(str(error))
    except OSError as error:
        # Without the lock, another run of the profile would work on the same files
        _end(
            f"the run's lock cannot be written ({error}). Your user has to be able to write there."
        )


def _end(message: str) -> NoReturn:
    sys.stderr.write(f"error: {message}\n")
    sys.stderr.flush()
    os._exit(REFUSED_STATUS)
