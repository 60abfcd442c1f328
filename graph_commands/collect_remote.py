"""Remove from DVC's default remote what is not in use: the part of `deepsearch gc --remote` that needs DVC.

    python -m graph_commands.collect_remote [--yes] < DIGESTS

Standard input names the objects in use, a digest a line. A folder object (``<digest>.dir``) stands
for the files that it lists; one that this machine does not have is read from the remote.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator

from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc_data.hashfile.db import HashFileDB, get_index
from dvc_data.hashfile.gc import gc
from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.tree import Tree
from dvc_objects.errors import ObjectFormatError

from deepsearch_rl.core.errors import ArtifactError, ConfigError, DeepsearchError

DIRECTORY = ".dir"


def collect(recorded: Iterable[str], is_real: bool) -> tuple[str, int]:
    """Remove what is not recorded from the default remote of the working directory's project.

    Returns:
        The remote's name, and how many objects were removed; with ``is_real`` false, how many would
            be.

    Raises:
        ConfigError: there is no default remote, or it cannot be reached.
        ArtifactError: a folder object of the remote cannot be read; nothing was removed.
    """
    try:
        with Repo() as repo:
            name = repo.config["core"].get("remote")
            if not name:
                raise ConfigError("there is no default remote: `deepsearch remote set` sets one.")
            remote = repo.cloud.get_remote_odb(hash_name="md5")
            used = [
                HashInfo("md5", digest)
                for digest in _with_files(set(recorded), repo.cache.local, remote)
            ]
            count = gc(remote, used, dry=not is_real)
            if count and is_real:
                get_index(remote).clear()
            return name, count
    except DvcException as error:
        raise ConfigError(f"DVC's remote cannot be reached: {error}") from error


def _with_files(recorded: set[str], local: HashFileDB, remote: HashFileDB) -> Iterator[str]:
    """Yield the recorded objects, and the files of every folder object that this machine or the remote has."""
    yield from recorded
    for digest in filter(lambda digest: digest.endswith(DIRECTORY), recorded):
        place = next((store for store in (local, remote) if store.exists(digest)), None)
        if place is None:
            # Never pushed, or removed: there is nothing to keep
            continue
        try:
            tree = Tree.load(place, HashInfo("md5", digest))
        except ObjectFormatError as error:
            raise ArtifactError(
                f"{place.oid_to_path(digest)} is damaged, so nothing was removed: {error}"
            ) from error

        for _, _, entry in tree:
            if entry:
                yield str(entry.value)


def main() -> None:
    """Command line; an error ends it with status 1 and one paragraph."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--yes", action="store_true", help="remove it, instead of counting it")
    is_real: bool = parser.parse_args().yes

    try:
        name, count = collect(sys.stdin.read().split(), is_real)
        freed = "freed" if is_real else "can be freed"
        sys.stdout.write(f"DVC's remote {name}\n  {freed}: {count:,} files\n")
    except DeepsearchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
