"""`dvc`, whose dvc.lock a kill cannot leave half-written, and which gives no advice after every stage.

    python flows/dvc repro profiles/smoke/dvc.yaml

DVC writes dvc.lock in place at the end of every stage, and for the lock of a whole graph that takes a second. A kill at
that moment leaves the first part of the file: DVC refuses it, or takes the stages of the rest for new. Here the file is
written beside it and renamed.

After every stage DVC advises `git add`, `autostage` and `dvc push`. A run of the whole graph would print that twenty
times; here it is left out.
"""

import logging
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dvc.dvcfile
import dvc.repo.scm_context
from dvc.cli import main
from dvc.ui import ui
from dvc.utils.serialize import modify_yaml

from deepsearch_rl.files import atomic_file

PUSH_ADVICE = "Use `dvc push` to send your updates to remote storage."


@contextmanager
def modify_yaml_at_once(path: str, fs: Any = None) -> Iterator[Any]:
    """Yield the values of a YAML file for changes, which it has all at once after the block."""
    with atomic_file(Path(path)) as partial:
        if Path(path).exists():
            shutil.copyfile(path, partial)
        with modify_yaml(str(partial), fs=fs) as values:
            yield values


def leave_out_advice() -> None:
    """Have DVC print no advice in this process; its warnings and all other lines stay."""
    logging.getLogger(dvc.repo.scm_context.__name__).setLevel(logging.WARNING)
    write = ui.write

    def write_unless_advice(*objects: Any, **options: Any) -> None:
        if objects != (PUSH_ADVICE,):
            write(*objects, **options)

    setattr(ui, "write", write_unless_advice)  # noqa: B010 - a method, which pyright guards


if __name__ == "__main__":
    leave_out_advice()
    setattr(dvc.dvcfile, "modify_yaml", modify_yaml_at_once)  # noqa: B010 - a module's function, which pyright guards
    sys.exit(main())
