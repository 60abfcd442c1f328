"""How a stage runs: what it declares, its command line, its scratch folder, its errors.

A stage file reads

    STAGE = Stage(
        sections=("seed", "sft"),
        packages=("core", "chat", "train"),
        inputs=("data/{profile}/sft", "models/{profile}/base"),
    )


    def main(profile: Profile, scratch: Scratch) -> None:
        config = profile.section("sft", SftConfig)
        ...


    if __name__ == "__main__":
        run(STAGE, main)

and is called as ``python -m stages.sft params.yaml [--debug]``. A stage that DVC runs once for each
model takes the model as a further argument: ``python -m stages.rl params.yaml sft`` is ``rl@sft``.

What a stage declares is what dvc.yaml lists for it (a test compares them). Their content is the
*state* of the stage:

- A killed stage continues from ``work/<profile>/scratch/<stage>/<digest of its state>/``. After any
  edit that counts it starts anew and says in one line what changed.
- A stage whose state changes while it runs fails: DVC reads a stage's deps after its command has
  ended (dvc#11058), and would record the edited files with the result of the old ones.
"""

import argparse
import gc
import inspect
import json
import logging
import os
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepsearch_rl.core.errors import (
    ArtifactError,
    DeepsearchError,
    EndpointError,
    full_disk_named,
    look_up,
)
from deepsearch_rl.core.files import read_json, sha256_file, sha256_json, write_json
from deepsearch_rl.core.own_code import own_files, require_deps
from deepsearch_rl.core.profile import Profile, load_profile

_LOG = logging.getLogger(__name__)

# A measurement of every finished stage, one JSON line each, for `deepsearch summary`
TIMINGS = Path("work", "timings.jsonl")
# EX_TEMPFAIL of sysexits.h: a server did not answer, so another attempt can help
OUTSIDE_STATUS = 75

STATE_FILE = "state.json"
SOURCES = Path("src", "deepsearch_rl")
# A larger file counts by its size and time of change: to hash an index of 60 GB takes minutes
HASHED_BELOW_BYTES = 64 * 2**20
KEPT_DAYS = 14
LISTED_CHANGES = 4

# Params that decide how a stage runs, and nothing of its result
OPERATIONAL = (
    "agent.concurrency",
    "retrieval.startup_timeout_s",
    "rl.concurrency",
    "rl.kept_checkpoints",
    "rl.watchdog",
    "serving.cpu.start_timeout_s",
    "serving.vllm.start_timeout_s",
)

# Files by their digest, and params by their value
State = dict[str, Any]


class StageChangedError(DeepsearchError):
    """What a stage reads changed while it ran, so its output belongs to no state."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage reads; dvc.yaml lists the same.

    Attributes:
        sections: sections and values of params, by name; a profile has none of stages that it lacks.
        packages: packages of ``src/deepsearch_rl`` that its program can load.
        inputs: files and folders. ``{profile}`` is the profile's name, ``{item}`` the stage's argument;
            ``{agent.prompt}`` is the path that this param holds, ``{models.{item}}`` that of the item;
            with a question mark at its end, a param may be null or missing.
    """

    sections: tuple[str, ...]
    packages: tuple[str, ...]
    inputs: tuple[str, ...] = ()

    def input_paths(self, profile: Profile, item: str) -> list[str]:
        """Return the paths of the inputs for a profile."""
        paths: list[str] = []
        for template in self.inputs:
            if template.endswith(".{item}}"):
                section = template.removeprefix("{").removesuffix(".{item}}")
                paths.append(str(look_up(f"name in {section}", item, profile.value(section))))
            elif template.endswith("?}"):
                section, _, field = template.strip("{?}").partition(".")
                value = profile.value(section).get(field)
                paths += [str(value)] if value is not None else []
            elif template.startswith("{"):
                paths.append(str(profile.value(template.strip("{}"))))
            else:
                paths.append(template.format(profile=profile.name, item=item))

        return paths

    def read_state(self, profile: Profile, item: str, program: str) -> State:
        """Return the content of everything that decides the stage's result."""
        state: State = {}
        sections = [name for name in self.sections if name.partition(".")[0] in profile.values]
        for section in sections:
            for name, value in _leaves(section, profile.value(section)):
                if not any(f"{name}.".startswith(f"{other}.") for other in OPERATIONAL):
                    state[f"params: {name}"] = value

        paths = [f"stages/{program}.py", str(profile.value("packages"))]
        paths += [str(SOURCES / package) for package in self.packages]
        paths += self.input_paths(profile, item)
        for section in sections:
            paths += sorted(own_files(profile.value(section)))

        for path in paths:
            state |= _digests(Path(path))

        return state


@dataclass(frozen=True, slots=True)
class Scratch:
    """The scratch folder of one run of a stage, and the file for its training curve."""

    stage: str
    path: Path
    curve: Path


def run(stage: Stage, main: Callable[..., None]) -> None:
    """Run a stage from its command line; an error ends it with one paragraph on stderr.

    The exit status is then 1, or :data:`OUTSIDE_STATUS` where a server did not answer. ``main``
    takes the profile, the item if it has a parameter of this name, and likewise the scratch folder.
    """
    # From here on, and never among what was loaded until now (stages/__init__.py)
    gc.freeze()
    gc.enable()

    parameters = inspect.signature(main).parameters
    parser = argparse.ArgumentParser(description=sys.modules[main.__module__].__doc__)
    parser.add_argument("params", type=Path, help="the profile's params.yaml")
    if "item" in parameters:
        parser.add_argument("item", help="the model that the stage is about")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    arguments = parser.parse_args()

    program = Path(sys.argv[0]).stem
    item = arguments.item if "item" in parameters else ""
    name = f"{program}@{item}" if item else program
    started = time.monotonic()

    try:
        profile = load_profile(arguments.params)
        require_deps(profile)
        with full_disk_named("while writing"):
            run_stage(stage, main, profile, program, item)
        _record_run(profile.name, name, time.monotonic() - started)
    except (DeepsearchError, OSError) as error:
        if arguments.debug:
            traceback.print_exc()
        sys.stderr.write(f"error: {error}\n")
        # A flow tries a stage again whose server did not answer
        sys.exit(OUTSIDE_STATUS if isinstance(error, EndpointError) else 1)


def run_stage(
    stage: Stage, main: Callable[..., None], profile: Profile, program: str, item: str
) -> None:
    """Call a stage's ``main``; raise StageChangedError where what the stage reads was edited meanwhile."""
    name = f"{program}@{item}" if item else program
    parameters = inspect.signature(main).parameters
    before = stage.read_state(profile, item, program)

    arguments: list[Any] = [profile]
    if "item" in parameters:
        arguments.append(item)

    with open_scratch(profile.work, name, before) as scratch:
        if "scratch" in parameters:
            arguments.append(scratch)
        main(*arguments)

        now = stage.read_state(load_profile(profile.path), item, program)
        if now != before:
            shutil.rmtree(scratch.path)
            raise StageChangedError(
                f"{name} is not recorded, because what it reads changed while it ran: "
                f"{changes(before, now)}. Run it again."
            )


@contextmanager
def open_scratch(work: Path, stage: str, state: State) -> Iterator[Scratch]:
    """Yield the scratch folder of a state, with what a killed run left in it; remove it after success.

    Args:
        work: the profile's folder of ``work/``.
        stage: the stage's name, ``rl@sft``.
        state: the stage's state at its start.
    """
    folder = work / "scratch" / stage
    path = folder / sha256_json(state)[:12]
    if not path.is_dir():
        _say_what_changed(stage, folder, state)

    for other in folder.glob("*"):
        if other != path and time.time() - _last_written(other) > KEPT_DAYS * 86_400:
            shutil.rmtree(other, ignore_errors=True)

    path.mkdir(parents=True, exist_ok=True)
    write_json(path / STATE_FILE, state)
    program = stage.replace("@", "-")
    yield Scratch(stage, path, work / "curves" / f"{program}-{path.name}.jsonl")
    # Not reached after an error: the next run continues from here
    shutil.rmtree(path, ignore_errors=True)


def changes(before: State, now: State) -> str:
    """Return the first few differences of two states in words: code first, values of params in full."""
    sentences: list[str] = []
    for name in sorted(before.keys() | now.keys(), key=lambda name: name.startswith("params: ")):
        if before.get(name) == now.get(name):
            continue
        if name.startswith("params: "):
            values = f"was {json.dumps(before.get(name))}, is {json.dumps(now.get(name))}"
            sentences.append(f"{name.removeprefix('params: ')} ({values})")
        else:
            kind = "new" if name not in before else "gone" if name not in now else "changed"
            sentences.append(f"{name} ({kind})")

    rest = len(sentences) - LISTED_CHANGES
    return ", ".join(sentences[:LISTED_CHANGES]) + (f" and {rest} more" if rest > 0 else "")


def package_digest() -> str:
    """Return the SHA-256 of all code and data of the package, for commands outside of a graph."""
    return sha256_json(_digests(Path(__file__).parents[1]))


def _say_what_changed(stage: str, folder: Path, state: State) -> None:
    """Log one line where an unfinished run is not continued, because its state was another one."""
    for newest in sorted(folder.glob("*"), key=_last_written, reverse=True)[:1]:
        try:
            before = read_json(newest / STATE_FILE)
        except ArtifactError:
            return
        _LOG.warning(
            "%s starts anew, and does not continue its unfinished run: %s",
            stage,
            changes(before, state),
        )


def _last_written(folder: Path) -> float:
    return max((file.lstat().st_mtime for file in (folder, *folder.rglob("*"))), default=0.0)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values below a section by their dotted names."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner)
    else:
        yield name, value


def _digests(path: Path) -> State:
    """Return a digest of each file of a path; a dangling link or a missing path counts as missing."""
    if not path.is_dir():
        return {str(path): _digest(path)}

    digests: State = {}
    for folder, folders, names in os.walk(path, followlinks=True):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        for name in sorted(names):
            # What an editor leaves beside a source file; .dvcignore has the same
            if not name.startswith(".") and not name.endswith(("~", ".pyc")):
                digests[str(Path(folder, name))] = _digest(Path(folder, name))

    return digests


def _digest(path: Path) -> str:
    if not path.is_file():
        return "missing"
    stat = path.stat()
    if stat.st_size < HASHED_BELOW_BYTES:
        return sha256_file(path)
    return f"{stat.st_size} bytes of {stat.st_mtime_ns}"


def _record_run(profile: str, stage: str, seconds: float) -> None:
    """Note what a run took; a warning says where that cannot be written, since the stage itself has ended well."""
    own_peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    childrens_peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    timing = {
        "profile": profile,
        "stage": stage,
        "started": round(time.time() - seconds, 1),
        "seconds": round(seconds, 1),
        # Of the stage's own process and of its largest child together
        "peak_mb": round((own_peak_kib + childrens_peak_kib) / 1024),
    }
    try:
        TIMINGS.parent.mkdir(exist_ok=True)
        with TIMINGS.open("a", encoding="utf-8") as timings:
            timings.write(f"{json.dumps(timing)}\n")
    except OSError as error:
        _LOG.warning("the time of %s is not noted in %s: %s", stage, TIMINGS, error.strerror)
