"""``deepsearch retrieve convert``: passages of any layout that is read, as JSON Lines."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from deepsearch_rl.cli.targets import writable_file
from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import distinct, require_another_file, write_jsonl
from deepsearch_rl.core.records import Document
from deepsearch_rl.data.flashrag import numbered_documents


def convert_command(
    source: Annotated[
        Path, typer.Argument(help="Passages or documents in any layout that is read.")
    ],
    out: Annotated[Path, typer.Argument(help="JSON Lines file to write.", callback=writable_file)],
) -> None:
    """Write passages of another layout as JSON Lines, which an index is built over.

    Formats: JSON Lines, a JSON array, CSV and TSV with a header, and Parquet, each also gzipped. The
    keys or columns are `id` (or BEIR's `_id`), `contents`, `title` and `text`.

        deepsearch retrieve convert psgs_w100.tsv.gz corpus.jsonl
    """
    require_another_file(out, [source])
    documents = distinct(lambda: numbered_documents(source), source)
    count = write_jsonl(out, _require_one(documents, source))
    typer.echo(f"{count} documents in {out}")


def _require_one(documents: Iterable[Document], source: Path) -> Iterator[Document]:
    """Yield documents; raise ArtifactError where there is none, so that no empty file is written."""
    is_empty = True
    for document in documents:
        is_empty = False
        yield document

    if is_empty:
        raise ArtifactError(
            f"{source} holds no document; a table has rows below its header, and other files a document a line."
        )
