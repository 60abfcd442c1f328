"""Cutting documents into chunks of a bounded number of tokens, at sentence boundaries, one document at a time.

Sentences are packed in order until the next one would not fit. A sentence longer than a chunk is cut at tokens. Every
chunk is a verbatim slice of its document below the document's title; the title does not count as tokens.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from deepsearch_rl.corpora.spans import Span, TokenSpans, load_tokenizer, sentence_spans
from deepsearch_rl.errors import ArtifactError, RecordError, UnknownNameError
from deepsearch_rl.files import read_jsonl, write_jsonl
from deepsearch_rl.progress import track
from deepsearch_rl.records import Chunk, ChunkMetadata, Document, Record


class ChunkConfig(Record):
    """How documents are cut."""

    chunk_size: int = Field(ge=1, description="most tokens of a chunk, its title not counted")
    overlap: int = Field(ge=0, description="most tokens that a chunk repeats from the end of the one before")
    tokenizer: str = Field(description="what counts tokens: `words`, or `hf:<folder or repository[@revision]>`")
    passages: tuple[str, ...] = Field(description="corpora whose documents are passages already: one chunk each")

    @model_validator(mode="after")
    def _check_overlap(self) -> Self:
        if self.overlap >= self.chunk_size:
            raise ValueError(f"overlap {self.overlap} must be below chunk_size {self.chunk_size}")
        return self


def chunk_corpora(corpora: Path, chunks: Path, config: ChunkConfig) -> dict[str, int]:
    """Chunk every ``<corpus>.jsonl`` of a folder into the file of the same name in another; return chunks per corpus.

    Raises:
        ArtifactError: there is no corpus, or one is empty.
        RecordError: a document does not fit its schema, or its id is taken.
        UnknownNameError: a tokenizer, or a corpus in ``passages``, that does not exist.
        UnavailableError: the tokenizer cannot be read.
    """
    token_spans = load_tokenizer(config.tokenizer)
    paths = sorted(corpora.glob("*.jsonl"))
    if not paths:
        raise ArtifactError(f"{corpora} holds no corpus (*.jsonl); run the stage that makes it (`dvc repro download`).")
    names = {path.stem for path in paths}
    for name in config.passages:
        if name not in names:
            raise UnknownNameError("corpus in chunk.passages", name, names)
    return {path.stem: _chunk_corpus(path, chunks / path.name, config, token_spans) for path in paths}


def _chunk_corpus(path: Path, out: Path, config: ChunkConfig, token_spans: TokenSpans) -> int:
    documents = track(_read_documents(path), f"chunk {path.stem}", _count_lines(path), "documents")
    if path.stem in config.passages:
        return write_jsonl(out, (_chunk(document, document.text, 0, 1) for document in documents))
    cut = (chunk_document(document, token_spans, config.chunk_size, config.overlap) for document in documents)
    return write_jsonl(out, itertools.chain.from_iterable(cut))


def _count_lines(path: Path) -> int:
    with path.open("rb") as lines:
        return sum(block.count(b"\n") for block in iter(lambda: lines.read(1 << 20), b""))


def _read_documents(path: Path) -> Iterator[Document]:
    # Hashes of the ids, not the ids: a corpus may have 21 million of them.
    seen: set[int] = set()
    for number, document in enumerate(read_jsonl(path, Document), 1):
        if hash(document.id) in seen:
            raise RecordError(path, number, "id", f"{document.id!r} is the id of an earlier document too")
        seen.add(hash(document.id))
        yield document
    if not seen:
        raise ArtifactError(f"{path} is an empty corpus: it holds no documents.")


def chunk_document(document: Document, token_spans: TokenSpans, chunk_size: int, overlap: int) -> list[Chunk]:
    """All chunks of one document, in order; a document without text gives one chunk that holds its title alone."""
    text = document.text
    slices = list(pack(_units(text, token_spans, chunk_size, overlap), chunk_size, overlap)) or [(0, 0)]
    return [_chunk(document, text[start:end], number, len(slices)) for number, (start, end) in enumerate(slices)]


def _chunk(document: Document, passage: str, number: int, count: int) -> Chunk:
    metadata = document.metadata | {"doc_id": document.id, "doc_chunks": count, "doc_chunk_id": number}
    return Chunk(
        id=f"{document.id}-{number}",
        contents=f"{document.title}\n{passage}",
        metadata=ChunkMetadata.model_validate(metadata),
    )


def _units(text: str, token_spans: TokenSpans, chunk_size: int, overlap: int) -> Iterator[tuple[Span, int]]:
    """The spans that chunks are packed from, with their numbers of tokens (at most ``chunk_size`` each).

    A unit is a sentence or, of a sentence that is too long, a slice as long as the overlap (as a chunk, where chunks
    do not overlap), so that such chunks overlap too.
    """
    for start, end in sentence_spans(text):
        tokens = list(token_spans(text[start:end]))
        if len(tokens) <= chunk_size:
            yield (start, end), len(tokens)
            continue
        length = overlap or chunk_size
        for first in range(0, len(tokens), length):
            piece = tokens[first : first + length]
            yield (start + piece[0][0], start + piece[-1][1]), len(piece)


def pack(units: Iterable[tuple[Span, int]], chunk_size: int, overlap: int) -> Iterator[Span]:
    """Join neighbouring units into spans of at most ``chunk_size`` tokens, in time linear in their number.

    A span begins with as many whole units from the end of the one before as fit into ``overlap`` tokens.
    """
    open_units: deque[tuple[Span, int]] = deque()
    total = 0
    for span, tokens in units:
        if open_units and total + tokens > chunk_size:
            yield open_units[0][0][0], open_units[-1][0][1]
            while open_units and (total > overlap or total + tokens > chunk_size):
                total -= open_units.popleft()[1]
        open_units.append((span, tokens))
        total += tokens
    if open_units:
        yield open_units[0][0][0], open_units[-1][0][1]
