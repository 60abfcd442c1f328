"""Copies of the project inside it: clones of runs with other params, and the folders in which DVC's experiments run.

`dvc exp run --temp` and `dvc queue start` remove their copies when the experiment ends. So what has
to outlive a copy belongs to the project around it.
"""

from pathlib import Path

CHECKOUTS = Path("work", "checkouts")
EXPERIMENT_COPIES = Path(".dvc", "tmp", "exps")


def outer_project(folder: Path) -> Path:
    """Return the project that a folder is a copy in, or in a copy of; the folder itself where it is no copy."""
    project = folder.resolve()
    for copy in (project, *project.parents):
        for place in (CHECKOUTS, EXPERIMENT_COPIES):
            outer = copy.parents[len(place.parts)] if len(copy.parents) > len(place.parts) else copy
            if outer / place == copy.parent and (outer / ".dvc").is_dir():
                # The loop goes on, for that may be a copy as well
                project = outer

    return project
