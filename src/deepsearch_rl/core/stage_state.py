"""The state of a stage: the code, the params with the locked versions of packages, and the data that decide its result.

What a stage declares in dvc.yaml is what it depends on (:mod:`deepsearch_rl.core.stage_graph`), so its
state is the content of these files and values at one moment. Two things follow from it:

- a scratch folder belongs to one state (:mod:`deepsearch_rl.core.scratch`): a killed run resumes under
  the very state that it was killed in, and under no other;
- a stage whose state is another one at its end than at its start refuses to end well
  (``core/stage_entry.py``), so that DVC never records new code, params or data with the result of old
  ones.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, JsonValue

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import atomic_file, read_json, sha256_file, sha256_json
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Record
from deepsearch_rl.core.stage_graph import DeclaredStage, read_stage

# Digests of data by the stamp of their files, so that a large index is read once, not at every start
# of a stage.
DIGESTS = Path("work", "digests.json")

# Differences that a sentence names; the rest is a number.
LISTED_DIFFERENCES = 4

# Params that decide how a stage runs, or what it chooses at its end, but nothing of what it resumes
# from
OPERATIONAL = (
    "agent.concurrency",
    "retrieval.startup_timeout_s",
    "rl.concurrency",
    "rl.keep",
    "rl.watchdog",
    "serving.cpu.start_timeout_s",
    "serving.vllm.start_timeout_s",
)
# Stage families that resume under other params or data, because what their scratch holds names its
# own inputs
RESUMES_ACROSS = {
    "evaluate": frozenset({"params", "data"}),
    "make_questions": frozenset({"params", "data"}),
}
# Params that name a file or folder that no stage makes. DVC does not look into it; a scratch folder
# belongs to it.
FILES_IN_PARAMS = ("retrieval.online", "retrieval.reranker.model")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MISSING = "missing"
_IGNORED = frozenset({"__pycache__"})


class StageState(Record):
    """Digests of source files and data by their path, and values of params by ``<file>: <dotted name>``.

    ``packages`` are the locked versions of what the stage imports, named as params are. No killed
    run resumes under others, not even one of :data:`RESUMES_ACROSS`: its logs do not name them.
    """

    stage: str
    code: dict[str, str]
    params: dict[str, JsonValue]
    data: dict[str, str]
    packages: dict[str, str] = Field(default_factory=dict)

    def digest(self) -> str:
        """Return the SHA-256 of the state."""
        return sha256_json(self.model_dump(mode="json"))

    def resumable(self) -> "StageState":
        """Return the part of the state under which a killed run may be continued."""
        family = self.stage.partition("@")[0]
        across = RESUMES_ACROSS.get(family, frozenset())
        params: dict[str, JsonValue] = {}
        if "params" not in across:
            params = {name: value for name, value in self.params.items() if _decides(name)}

        data = {} if "data" in across else self.data
        return self.model_copy(update={"params": params, "data": data})


def read_state(profile: Profile, stage: str, root: Path) -> StageState:
    """Return the state of a stage of a profile now.

    ``root`` is the folder of the project whose sources run; data lie in the working directory.

    Raises:
        UnknownNameError: the profile's graph has no such stage.
        ConfigError: the graph cannot be read, or a param that it declares does not exist.
    """
    declared = read_stage(profile, stage, root)
    params = dict(_values(profile, declared, root))
    data = list(declared.data)
    for name in FILES_IN_PARAMS:
        # A path is a param like others: an edit of its file would go unseen
        path = params.get(f"{profile.path.as_posix()}: {name}")
        if isinstance(path, str):
            data.append(path)

    return StageState(
        stage=stage,
        code=code_digests(declared.sources, root),
        params=params,
        packages=dict(_packages(profile, declared, root)),
        data=data_digests(data),
    )


def code_digests(sources: Iterable[str], root: Path) -> dict[str, str]:
    """Return the SHA-256 of each source file, by its path from ``root``; a folder stands for all files in it."""
    digests: dict[str, str] = {}
    for name in sources:
        source = root / name
        if not source.is_dir():
            digests[name] = _digest(source)
            continue

        for file, path in _files(source):
            if not _is_left_by_a_tool(path):
                digests[f"{name}/{file}"] = sha256_file(path)

    return digests


def package_digest() -> str:
    """Return the SHA-256 of all code and data of this package, for commands outside of a graph."""
    return _digest(Path(__file__).parents[1])


def data_digests(paths: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of the content of files and folders; what did not change since the last call is not read."""
    known = _read_known()
    digests: dict[str, str] = {}

    for name in paths:
        stamp = file_stamp(Path(name))
        entry = known.get(name)
        digests[name] = entry[1] if entry and entry[0] == stamp else _digest(Path(name))
        known[name] = [stamp, digests[name]]

    _write_known(known)
    return digests


def file_stamp(path: Path) -> str:
    """Return a digest of the names, sizes, times and numbers of all files of a path; it reads none of them."""
    stamps: list[list[str | int]] = []
    for name, file in _files(path):
        stat = file.stat()
        stamps.append([name, stat.st_size, stat.st_mtime_ns, stat.st_ino])

    return sha256_json(stamps)


def differences(before: StageState, now: StageState) -> list[str]:
    """Return in words what differs, code first."""
    sentences: list[str] = []
    for old, new in ((before.code, now.code), (before.data, now.data)):
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                sentences.append(f"{name} {_change(old, new, name)}")

    # Values are shown, digests are not: nobody can read them
    old_values = {**before.params, **before.packages}
    new_values = {**now.params, **now.packages}

    for name in sorted({*old_values, *new_values}):
        old_value = old_values.get(name)
        new_value = new_values.get(name)
        if old_value != new_value:
            sentences.append(f"{name} (was {json.dumps(old_value)}, is {json.dumps(new_value)})")

    return sentences


def summary(sentences: list[str]) -> str:
    """Return the first few differences in a line, and the number of the others."""
    text = ", ".join(sentences[:LISTED_DIFFERENCES])
    rest = len(sentences) - LISTED_DIFFERENCES
    return f"{text} and {rest} more" if rest > 0 else text


def _change(old: Mapping[str, str], new: Mapping[str, str], name: str) -> str:
    if name not in old or old[name] == _MISSING:
        return "(new)"
    if name not in new or new[name] == _MISSING:
        return "(gone)"
    return "(changed)"


def _decides(param: str) -> bool:
    """Return whether a param, ``<file>: <dotted name>``, decides what a stage resumes from."""
    name = param.partition(": ")[2]
    return not any(name == field or name.startswith(f"{field}.") for field in OPERATIONAL)


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield all files of a path in order, with their path below it; nothing for a path that does not exist."""
    if path.is_file():
        yield "", path
        return

    for folder, folders, names in os.walk(path, followlinks=True):
        folders[:] = sorted(set(folders) - _IGNORED)
        for name in sorted(names):
            file = Path(folder, name)
            yield file.relative_to(path).as_posix(), file


def _is_left_by_a_tool(source: Path) -> bool:
    """Return whether a file in a folder of sources is an editor's or Python's own; ``.dvcignore`` has them, too."""
    return source.name.startswith(".") or source.name.endswith("~") or source.suffix == ".pyc"


def _digest(path: Path) -> str:
    if path.is_file():
        return sha256_file(path)
    files = {name: sha256_file(file) for name, file in _files(path)}
    return sha256_json(files) if files or path.is_dir() else _MISSING


def _values(
    profile: Profile, declared: DeclaredStage, root: Path
) -> Iterator[tuple[str, JsonValue]]:
    """Yield all values of the declared params; a section is as many of them as it has fields."""
    files: dict[str, Any] = {profile.path.as_posix(): profile.values}
    for file, name in declared.params:
        if file == profile.values.get("packages"):
            continue
        if file not in files:
            files[file] = yaml.load((root / file).read_text(encoding="utf-8"), yaml.CSafeLoader)
        yield from _leaves(f"{file}: {name}", _field(files[file], name, file))


def _packages(profile: Profile, declared: DeclaredStage, root: Path) -> Iterator[tuple[str, str]]:
    """Yield the versions that the stage declares of the profile's packages.json, as texts: 1.10 is not 1.1."""
    for file, name in declared.params:
        if file == profile.values.get("packages"):
            families = _field(read_json(root / file), name, file)
            for family, versions in families.items():
                for package, version in versions.items():
                    yield f"{file}: {name}.{family}.{package}", version


def _field(values: Any, name: str, file: str) -> Any:
    for key in name.split("."):
        if not isinstance(values, Mapping) or key not in values:
            raise ConfigError(f"{file} has no {name!r}, which dvc.yaml declares for this stage.")
        values = values[key]

    return values


def _leaves(name: str, value: Any) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner)
    elif isinstance(value, str) and _NUMBER.fullmatch(value):
        # YAML reads 5e-4 as a text, DVC's -S writes it as a number
        yield name, float(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield name, float(value)
    else:
        yield name, value


def _read_known() -> dict[str, list[str]]:
    """Return the digests that are known; none where the file is missing or cut off, since it only saves time."""
    try:
        known = json.loads(DIGESTS.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}

    return known if isinstance(known, dict) else {}


def _write_known(known: Mapping[str, list[str]]) -> None:
    present = {name: entry for name, entry in known.items() if Path(name).exists()}
    with atomic_file(DIGESTS) as partial:
        partial.write_text(json.dumps(present, indent=0, sort_keys=True), encoding="utf-8")
