"""Back to the committed params and to the results that there are for them; nothing is trained.

    python -m flows.restore [PROFILE]          (`make restore PROFILE=smoke`)

Two machines have different results of the same params (docs/running.md), and DVC's cache holds the
files of its own machine. So `git restore dvc.lock` would name files that are not there, the next
`dvc repro` would train all of them again, and the record of what was there would be gone. Here

1. the workspace, with its params, its dvc.lock and its reports, becomes an experiment of DVC, if it
   is none yet;
2. params.yaml becomes the committed one;
3. if DVC's cache or remote has all files of the committed dvc.lock, this file, the reports that git
   has and the outputs become the committed ones;
4. otherwise dvc.lock stays this machine's own, and every stage whose params changed is restored
   from DVC's run cache. DVC keeps no runs of a stage whose outputs are in git (`report`, `track`):
   these run. Any other stage that is missing in the run cache is named, and nothing that follows
   from it runs.
"""

import argparse
import functools
import logging
import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import chdir, suppress
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.output import Output
from dvc.repo import Repo, lock_repo
from dvc.repo.reproduce import reproduce
from dvc.stage import PipelineStage
from dvc.stage.cache import RunCacheNotFoundError

from deepsearch_rl.core.dvc_lock import repair_dvc_locks
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.profile import PARAMS, dvc_file, require_profile
from flows.command_line import one_paragraph_errors
from flows.dvc_calls import find_foreign_run
from flows.graph import read_graph
from flows.locks import run_held
from flows.repro import log_to_stdout, repro

_LOG = logging.getLogger("stages")
_IDENTITY = ["-c", "user.name=deepsearch", "-c", "user.email=deepsearch@localhost"]


def restore(root: Path, profile: str, say: Callable[[str], object]) -> None:
    """Bring the working directory's project back to the committed params of a profile, and to their results.

    Raises:
        UnknownNameError: there is no such profile.
        ConfigError: the params are not committed, or a stage has no result for them here; nothing
            was lost.
        DeepsearchError: the stage `report` or `track` failed.
    """
    require_profile(root, profile)
    dvc_yaml = Path(dvc_file(profile))
    for sentence in repair_dvc_locks(root):
        say(sentence)
    find_other = functools.partial(find_foreign_run, root, profile)

    with run_held(root, profile, f"make restore PROFILE={profile}", say, find_other=find_other):
        # Before anything is replaced: edited params and their results are not in git
        name = save_workspace(root, dvc_yaml.with_suffix(".lock").as_posix())
        if name:
            say(f"what was here is the experiment {name}: `dvc exp apply {name}` brings it back")
        try:
            with chdir(root), Repo(_wait_for_lock=True) as repo:
                are_committed = _restore_committed(repo, root, profile)
                missing = "" if are_committed else _restore_own(repo, root, profile, say)
        except DvcException as error:
            raise ConfigError(f"DVC cannot restore {dvc_yaml}: {error}") from error

    if are_committed:
        say("these are the committed params and the committed results")
        return

    if missing:
        raise ConfigError(
            "the params are the committed ones, but this machine has no result of the stage "
            f"{missing} for them and this code: `make repro PROFILE={profile}` runs it and what "
            "follows from it."
        )

    repro(profile)
    say("these are the committed params and this machine's own results for them")


def save_workspace(root: Path, lock: str) -> str:
    """Save the tracked files of a project, and a lock file, as they are, as an experiment that DVC lists.

    `dvc exp save` is not used: it records the outputs that are there as those of the params that
    are there, whether they were made with them or not.

    Returns:
        The experiment's name; that of an earlier one where it is the same. Empty where all is as
            committed.
    """
    head = _git(root, "rev-parse", "HEAD")
    with tempfile.TemporaryDirectory() as folder:
        # An index of its own, so that what the user has staged stays as it is
        index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
        _git(root, "read-tree", "HEAD", **index)
        _git(root, "add", "--update", ".", **index)
        if (root / lock).is_file():
            _git(root, "add", "--force", lock, **index)
        tree = _git(root, "write-tree", **index)

    if tree == _git(root, "rev-parse", "HEAD^{tree}"):
        return ""
    experiments = f"refs/exps/{head[:2]}/{head[2:]}/"

    form = "--format=%(tree) %(refname:lstrip=4)"
    for line in _git(root, "for-each-ref", form, experiments).splitlines():
        saved, name = line.split()
        if saved == tree:
            return name

    name = f"before-restore-{tree[:7]}"
    commit = _git(root, *_IDENTITY, "commit-tree", "-p", head, "-m", f"dvc: {name}", tree)
    _git(root, "update-ref", f"{experiments}{name}", commit)
    return name


def _restore_committed(repo: Repo, root: Path, profile: str) -> bool:
    """Restore the committed params, and the committed results with their lock; return whether DVC has all of these."""
    dvc_yaml = Path(dvc_file(profile))
    _git(
        root, "restore", "--source=HEAD", "--worktree", "--", dvc_yaml.with_name(PARAMS).as_posix()
    )
    if not _has_committed_results(repo, dvc_yaml.as_posix()):
        return False
    candidates = (dvc_yaml.with_suffix(".lock").as_posix(), f"reports/{profile}")
    tracked = [path for path in candidates if _git(root, "ls-files", path)]
    _git(root, "restore", "--source=HEAD", "--worktree", "--", *tracked)
    repo.checkout([dvc_yaml.as_posix()], force=True)
    return True


def _has_committed_results(repo: Repo, dvc_yaml: str) -> bool:
    """Return whether DVC's cache has every file of the committed lock; what is missing is asked of the remote."""

    def are_cached() -> bool:
        with repo.switch("HEAD"):
            stages = repo.stage.collect(dvc_yaml)
            for stage in stages:
                for out in stage.outs:
                    if out.use_cache and out.changed_cache():
                        return False
            return True

    if are_cached():
        return True
    if not repo.config["core"].get("remote"):
        return False
    # The remote may not have them, or not answer
    with suppress(DvcException):
        repo.fetch([dvc_yaml], revs=["HEAD"], workspace=False)
    return are_cached()


def _restore_own(repo: Repo, root: Path, profile: str, say: Callable[[str], object]) -> str:
    """Restore all stages from the run cache, upstream first, and return the first that it does not have, or "".

    Stages of which DVC keeps no runs are left for `make repro`.
    """
    left: set[str] = set()
    for node in read_graph(root, profile).values():
        with lock_repo(repo):
            [stage] = repo.stage.collect(node.address)
            assert isinstance(stage, PipelineStage)
            follows_from_left = bool(node.upstream & left)
            if not follows_from_left and not stage.changed():
                continue
            if any(map(_is_in_git_alone, stage.outs)):
                left.add(node.name)
                continue

            if follows_from_left:
                return node.name
            try:
                repo.stage_cache.restore(stage)
            except RunCacheNotFoundError:
                return node.name

            # Finds the same run, and records it in dvc.lock
            reproduce(repo, [node.address], single_item=True)
            say(f"{node.name} is restored from DVC's run cache")

    return ""


def _is_in_git_alone(out: Output) -> bool:
    # As in DVC's Stage.run, which saves no run with such an output
    return not out.use_cache and not out.is_metric and not out.is_plot


def _git(folder: Path, *arguments: str, **variables: str) -> str:
    """Return what a git command prints, without the last line's end; raise ConfigError with its message."""
    environment = {**os.environ, **variables}
    result = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise ConfigError(f"`git {' '.join(arguments)}` failed: {result.stderr.strip()}")
    return result.stdout.strip()


def main() -> None:
    """Command line; an error ends it with status 1 and one paragraph."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profile", nargs="?", default="tiny", help="tiny, or a folder of profiles/")
    profile: str = parser.parse_args().profile
    log_to_stdout()
    # Its advice to `git add` is not for this
    logging.getLogger("dvc").setLevel(logging.WARNING)
    with one_paragraph_errors():
        restore(
            Path.cwd(),
            profile,
            lambda sentence: _LOG.info("%s", sentence, extra={"stage": "restore"}),
        )


if __name__ == "__main__":
    main()
