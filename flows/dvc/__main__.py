"""`dvc`, whose dvc.lock a kill cannot leave half-written.

    python flows/dvc repro profiles/smoke/dvc.yaml

DVC writes dvc.lock in place at the end of every stage, and for the lock of a whole graph that takes a second. A kill at
that moment leaves the first part of the file: DVC refuses it, or takes the stages of the rest for new. Here the file is
written beside it and renamed.
"""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dvc.dvcfile
from dvc.cli import main
from dvc.utils.serialize import modify_yaml

from deepsearch_rl.files import atomic_file


@contextmanager
def modify_yaml_at_once(path: str, fs: Any = None) -> Iterator[Any]:
    """Yield the values of a YAML file for changes, which it has all at once after the block."""
    with atomic_file(Path(path)) as partial:
        if Path(path).exists():
            shutil.copyfile(path, partial)
        with modify_yaml(str(partial), fs=fs) as values:
            yield values


if __name__ == "__main__":
    setattr(dvc.dvcfile, "modify_yaml", modify_yaml_at_once)  # noqa: B010 - a module's function, which pyright guards
    sys.exit(main())
