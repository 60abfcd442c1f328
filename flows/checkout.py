"""The folder that a run works in: the project's own, or a clone with another revision or other parameters.

Clones are in ``work/checkouts/``. They share git objects and DVC's cache with the project, so that
what the project has made is not made again, and a run that was killed continues in its clone.
"""

import functools
import operator
import pkgutil
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any, cast

import yaml
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.utils.flatten import flatten

from deepsearch_rl.core.copies import CHECKOUTS
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import atomic_directory, atomic_file, sha256_json
from deepsearch_rl.core.profile import PARAMS, dvc_file, find_profile, read_values
from deepsearch_rl.core.project_state import require_git
from flows.dvc.__main__ import modify_yaml_at_once

# Section of params.yaml -> its config, imported only when a run changes the section: some load
# torch
SECTIONS = {
    "agent": "deepsearch_rl.agent.config:AgentConfig",
    "choose_checkpoint": "deepsearch_rl.train.choose_checkpoint:ChooseCheckpointConfig",
    "chunk": "deepsearch_rl.data.chunking:ChunkConfig",
    "download": "deepsearch_rl.data.download:DownloadConfig",
    "evaluate": "deepsearch_rl.evaluate.evaluation_plan:EvaluateConfig",
    "filter": "deepsearch_rl.train.training_set:FilterConfig",
    "flow": "flows.stage_run:FlowConfig",
    "ifeval": "deepsearch_rl.evaluate.ifeval:IfevalConfig",
    "index": "deepsearch_rl.search.build:IndexSection",
    "merge": "deepsearch_rl.train.merge:MergeConfig",
    "make_questions": "deepsearch_rl.data.question_writing.make:WritingConfig",
    "optimize_prompt": "deepsearch_rl.train.prompt_search:OptimizePromptConfig",
    "prepare_model": "deepsearch_rl.toy.prepare_model:PrepareModelConfig",
    "report": "deepsearch_rl.evaluate.report.write_report:ReportConfig",
    "requires": "deepsearch_rl.cli.doctor:Requirements",
    "retrieval": "deepsearch_rl.server.config:RetrievalConfig",
    "rl": "deepsearch_rl.train.rl.rl_config:RlConfig",
    "serving": "deepsearch_rl.serve.launch:ServingConfig",
    "sft": "deepsearch_rl.train.sft:SftConfig",
    "synthesize": "deepsearch_rl.agent.synthesize:SynthesizeConfig",
    "track": "deepsearch_rl.track.bundle:TrackConfig",
    "trained": "deepsearch_rl.evaluate.report.write_report:TrainedConfig",
    "unsloth_merge": "deepsearch_rl.train.merge:MergeConfig",
}


def resolve_revision(project: Path, revision: str, warn: Callable[[str], object]) -> str:
    """Return the commit of a branch, tag or commit; of a branch the newest that the remote ``origin`` has.

    ``HEAD`` is the project's own commit.

    Raises:
        ConfigError: neither the remote nor this clone has such a revision.
    """
    if revision == "HEAD":
        return _git(project, "rev-parse", "HEAD").stdout.strip()
    if "origin" in _git(project, "remote").stdout.split():
        fetched = _git(project, "fetch", "--quiet", "--tags", "origin")
        if fetched.returncode:
            warn(
                f"`git fetch origin` failed, so {revision} is what this machine has: "
                f"{fetched.stderr.strip()}"
            )

    # The remote's branch first: the local one of a worker is never moved
    for name in (f"origin/{revision}", revision):
        commit = _git(
            project, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"
        ).stdout.strip()
        if commit:
            return commit

    raise ConfigError(
        f"there is no git revision {revision!r}: name a branch, a tag or a commit that was pushed."
    )


def open_checkout(
    project: Path,
    profile: str,
    revision: str,
    params: Mapping[str, Any],
    warn: Callable[[str], object],
) -> Path:
    """Return the folder of a run: the project itself, unless there is a ``revision`` or there are ``params``.

    Uncommitted changes of the project are not in a clone.

    Args:
        project: the clone of the project that a person or a worker uses.
        profile: tiny, or a folder of profiles/.
        revision: a branch, tag or commit; empty for the project's own commit.
        params: other values by dotted name, ``{"rl.group_size": 16}``.
        warn: called with a sentence if the remote cannot be reached.

    Raises:
        ConfigError: there is no such revision, a value does not fit, or git cannot be used here.
        UnknownNameError: there is no such profile or parameter.
    """
    if not revision and not params:
        return project
    require_git(project)
    commit = resolve_revision(project, revision or "HEAD", warn)
    folder = project / CHECKOUTS / f"{profile}-{commit[:7]}-{sha256_json(dict(params))[:7]}"

    if not folder.is_dir():
        _clone(project, commit, folder)

    _connect(folder, project)
    _take_documents(folder, project, profile)
    # Checked in the clone: another revision has other sections and fields
    before = find_profile(folder, profile)
    changed = before.with_overrides(params)

    for section in {name.partition(".")[0] for name in params}:
        value = changed.values[section]
        if section in SECTIONS:
            changed.section(section, pkgutil.resolve_name(SECTIONS[section]))
        elif type(value) is not type(before.values[section]):
            # Without a config class, its kind is all that can be checked here
            raise ConfigError(
                f"{section} is a {type(before.values[section]).__name__}, not {value!r}."
            )

    if changed.values != before.values:
        _write_params((folder / dvc_file(profile)).with_name(PARAMS), params)
    return folder


def _clone(project: Path, commit: str, folder: Path) -> None:
    with atomic_directory(folder) as partial:
        # Shared: it borrows the project's objects, and nothing is copied
        options = ["--quiet", "--shared", "--no-checkout"]
        _require(_git(project, "clone", *options, str(project), str(partial)))
        _require(_git(partial, "checkout", "--quiet", "--detach", commit))


def _connect(folder: Path, project: Path) -> None:
    """Give a clone the git objects, cache and remotes of the project around it, which may have been moved or copied."""
    objects = _git(project, "rev-parse", "--path-format=absolute", "--git-path", "objects")
    _require(objects)
    with atomic_file(folder / ".git" / "objects" / "info" / "alternates") as alternates:
        alternates.write_text(objects.stdout, encoding="utf-8")
    _require(_git(folder, "remote", "set-url", "origin", str(project)))

    with Repo(str(project)) as repo:
        local: Any = repo.config.load_one("local")
        local["cache"] = {**local.get("cache", {}), "dir": repo.cache.local_cache_dir}
        # As read from the project: a relative path would lead elsewhere from the clone, and the
        # commit may have no remote yet.
        local["remote"] = {name: dict(remote) for name, remote in repo.config["remote"].items()}
        default = repo.config["core"].get("remote")
        local["core"] = {**local.get("core", {}), **({"remote": default} if default else {})}

    with Repo(str(folder)) as clone, clone.config.edit("local") as settings:
        cast("dict[str, Any]", settings).update(local)


def _take_documents(folder: Path, project: Path, profile: str) -> None:
    """Copy the documents of ``make_questions``, which no stage makes and git has not, unless the clone has the same."""
    values = read_values((folder / dvc_file(profile)).with_name(PARAMS))
    documents = values.get("make_questions", {}).get("documents", {})

    for path in documents.values():
        source, target = project / path, folder / path
        # An absolute path is one folder for both
        if source == target or not source.is_dir() or _stamps(source) == _stamps(target):
            continue
        with atomic_directory(target) as partial:
            shutil.copytree(source, partial, dirs_exist_ok=True)


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file in a folder, by its path there."""
    stamps: dict[str, tuple[int, int]] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            status = path.stat()
            stamps[path.relative_to(folder).as_posix()] = (status.st_size, status.st_mtime_ns)

    return stamps


def check_experiment_name(name: str) -> None:
    """Raise ConfigError for a name that git and DVC would refuse after the work is done."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ConfigError(
            f"an experiment's name has letters, digits, - and _ alone; {name!r} has others."
        )


def check_experiment_is_new(project: Path, folder: Path, profile: str, name: str) -> bool:
    """Return whether the project has no experiment of this name; one of the same profile and params may be made again.

    Args:
        project: the clone of the project that lists experiments.
        folder: the clone with the params of the run, from :func:`open_checkout`.
        profile: tiny, or a folder of profiles/.
        name: the name that the experiment shall have.

    Raises:
        ConfigError: an experiment of this name has other params or is of another profile, and would
            be replaced.
    """
    params = Path(dvc_file(profile)).with_name(PARAMS)
    values = flatten(read_values(folder / params))
    experiments = _experiments(project, name)
    for commit, began_at in experiments:
        difference = _other_profile(project, commit, began_at, params.parent)
        difference = difference or _other_params(project, commit, params, values)
        if difference:
            raise ConfigError(
                f"there is an experiment {name} {difference}. Choose another name, or remove that one: "
                f"`dvc exp remove {name}`."
            )

    return not experiments


def _other_profile(project: Path, commit: str, began_at: str, folder: Path) -> str:
    """Return of which other profile than that of ``folder`` an experiment is, in words; empty if it is of that one."""
    # An experiment does not say of which profile it is: its changed files do
    for changed in _git(project, "diff", "--name-only", began_at, commit).stdout.splitlines():
        file = Path(changed)
        if file.name in (PARAMS, "dvc.lock") and file.parent != folder:
            return f"of another profile ({changed} differs there)"

    return ""


def _other_params(project: Path, commit: str, params: Path, values: Mapping[str, Any]) -> str:
    """Return which params of an experiment differ from these ``values`` by dotted name, in words; empty if none."""
    text = _git(project, "show", f"{commit}:{params.as_posix()}").stdout
    before = flatten(yaml.load(text, yaml.CSafeLoader) or {})
    others: list[str] = []
    for key in sorted({*before, *values}):
        if before.get(key) != values.get(key):
            others.append(f"{key}={before.get(key)}")

    return f"with {', '.join(others)}" if others else ""


def _experiments(project: Path, name: str) -> list[tuple[str, str]]:
    """Return the experiments of a name: the commit of each, and the one that it began at."""
    listed = _git(
        project, "for-each-ref", "--format=%(objectname) %(refname)", f"refs/exps/??/*/{name}"
    )
    experiments: list[tuple[str, str]] = []

    for line in listed.stdout.splitlines():
        commit, ref = line.split()
        *_, start, rest, _ = ref.split("/")
        experiments.append((commit, start + rest))

    return experiments


def save_experiment(
    project: Path, folder: Path, profile: str, stages: Iterable[str], name: str
) -> None:
    """Save what the stages of these names made in a clone as a DVC experiment that the project shows under ``name``.

    Raises:
        ConfigError: DVC or git refuses, or meanwhile there is an experiment of this name with other
            params.
    """
    try:
        # Again: a run takes hours, and somebody may have used the name meanwhile
        check_experiment_is_new(project, folder, profile, name)
    except ConfigError as error:
        raise ConfigError(f"{error} What this run made is in {folder}.") from error

    dvc_yaml = Path(dvc_file(profile))
    made = [f"{dvc_yaml}:{stage}" for stage in stages]
    lock = str(dvc_yaml.with_suffix(".lock"))

    try:
        with chdir(folder), Repo() as repo:
            repo.experiments.save(targets=made, name=name, force=True, include_untracked=[lock])
            repo.experiments.push("origin", [name], force=True, push_cache=False)
    except DvcException as error:
        raise ConfigError(
            f"the experiment {name} cannot be saved; its results are in {folder}: {error}"
        ) from error


def _write_params(path: Path, params: Mapping[str, Any]) -> None:
    """Set values by dotted name, with all comments kept, by one rename."""
    with modify_yaml_at_once(str(path)) as values:
        for name, value in params.items():
            *sections, field = name.split(".")
            functools.reduce(operator.getitem, sections, values)[field] = value


def _git(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def _require(result: "subprocess.CompletedProcess[str]") -> None:
    if result.returncode:
        raise ConfigError(f"`{' '.join(result.args[:2])}` failed: {result.stderr.strip()}")
