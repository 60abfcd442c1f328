"""What the commands of this folder share: where rows go, and how a command ends where something is wrong."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deepsearch_rl.core.errors import ConfigError, DeepsearchError
from deepsearch_rl.core.files import require_another_file


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Exit with status 1 and the error's paragraph where the block raises one of the project's errors."""
    try:
        yield
    except DeepsearchError as error:
        sys.exit(f"error: {error}")


def row_files(questions: Sequence[Path], folder: Path, suffix: str) -> list[Path]:
    """Return the file of each file's rows, which has its name and this suffix.

    Raise ConfigError where two would be one, as those of two sets' ``train.jsonl``, or one is a
    file of questions.
    """
    sources: dict[Path, Path] = {}
    for source in questions:
        rows = folder / f"{source.stem}{suffix}"
        if rows in sources:
            raise ConfigError(
                f"the rows of {sources[rows]} and of {source} would both be {rows}: call the command once for "
                "each with another --output_dir, or copy one to a file of another name."
            )
        require_another_file(rows, questions)
        sources[rows] = source

    return list(sources)
