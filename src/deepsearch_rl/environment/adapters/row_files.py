"""Where the commands of this folder write their rows: a file for each file of questions, never over one of them."""

from collections.abc import Sequence
from pathlib import Path

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.outputs import require_another_file


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
