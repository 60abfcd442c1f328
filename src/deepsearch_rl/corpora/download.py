"""The first stage's one call: documents and questions from a named source, written as records.

Whatever the source, the result is the same: ``corpora/<corpus>.jsonl`` of Document records and
``questions/<dataset>/<split>.jsonl`` of Question records.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import Field

from deepsearch_rl.corpora.world.generate import WorldConfig, generate
from deepsearch_rl.errors import ArtifactError, ConfigError, UnknownNameError
from deepsearch_rl.files import write_jsonl
from deepsearch_rl.records import Document, Question, Record


class DownloadConfig(Record):
    """Where corpora and questions come from; only the section of the chosen source is needed."""

    source: str = Field(description="`world` (generated), `folder` (files at hand) or `hub` (Hugging Face)")
    world: WorldConfig | None = None


def download(config: DownloadConfig, seed: int, corpora: Path, questions: Path) -> dict[str, int]:
    """Write every corpus and question set of the source; return the number of records per file written.

    Raises:
        UnknownNameError: no such source.
        ConfigError: the section of the chosen source is missing, or its values do not fit together.
        ArtifactError: a corpus or a question set is empty.
    """
    if config.source != "world":
        raise UnknownNameError("source", config.source, ["world"])
    if config.world is None:
        raise ConfigError("download.source is 'world', so a section download.world is needed.")
    made = generate(config.world, seed)
    return write_corpora(made.corpora, corpora) | write_questions(made.questions, questions)


def write_corpora(documents: Mapping[str, Iterable[Document]], folder: Path) -> dict[str, int]:
    """Write ``folder/<corpus>.jsonl`` for every corpus."""
    return {name: _write(folder / f"{name}.jsonl", records) for name, records in documents.items()}


def write_questions(questions: Mapping[str, Mapping[str, Iterable[Question]]], folder: Path) -> dict[str, int]:
    """Write ``folder/<dataset>/<split>.jsonl`` for every split of every question set."""
    return {
        f"{dataset}/{split}": _write(folder / dataset / f"{split}.jsonl", records)
        for dataset, splits in questions.items()
        for split, records in splits.items()
    }


def _write(path: Path, records: Iterable[Document] | Iterable[Question]) -> int:
    count = write_jsonl(path, records)
    if not count:
        path.unlink()
        raise ArtifactError(f"{path} would be empty: the source gave no record.")
    return count
