"""Reports that wait for MLflow: the outbox of a profile, ``work/<profile>/outbox/`` of the project.

A copy of the project in which an experiment runs has none of its own: the copy is removed when the
experiment ends.
"""

from pathlib import Path

from deepsearch_rl.core.copies import outer_project


def outbox_folder(root: Path, profile: str) -> Path:
    """Return the outbox of a profile, for the project at ``root`` or a copy of it."""
    outer = outer_project(root)
    project = root if outer == root.resolve() else outer
    return project / "work" / profile / "outbox"


def waiting_reports(outbox: Path) -> list[Path]:
    """Return the bundles in an outbox; a name with a dot is a copy that is not finished."""
    return sorted(outbox.glob("[!.]*"))
