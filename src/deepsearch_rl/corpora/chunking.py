"""Cutting documents into chunks of a bounded number of tokens, at sentence boundaries, one document at a time.

Sentences are packed in order until the next one would not fit. A sentence longer than a chunk is cut at tokens. Every
chunk is a verbatim slice of its document below the document's title; the title does not count as tokens.
"""

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
from pydantic import Field, model_validator

from deepsearch_rl.corpora.spans import BLOCK_CHARS, Sentences, Span, sentence_blocks
from deepsearch_rl.corpora.token_counts import TokenCounter, load_tokenizer
from deepsearch_rl.errors import ArtifactError, ConfigError, RecordError, UnknownNameError
from deepsearch_rl.files import numbered_records, write_jsonl
from deepsearch_rl.progress import track
from deepsearch_rl.records import Chunk, Document, Record


class ChunkVariant(Record):
    """The documents of a corpus cut another way, as a corpus of its own."""

    corpus: str = Field(description="whose documents")
    chunk_size: int = Field(ge=1, description="most tokens of a chunk, its title not counted")
    overlap: int = Field(ge=0, description="most tokens that a chunk repeats from the end of the one before")

    @model_validator(mode="after")
    def _check_overlap(self) -> Self:
        return _checked_overlap(self)


class ChunkConfig(Record):
    """Section ``chunk``: how documents are cut."""

    chunk_size: int = Field(ge=1, description="most tokens of a chunk, its title not counted")
    overlap: int = Field(ge=0, description="most tokens that a chunk repeats from the end of the one before")
    tokenizer: str = Field(description="what counts tokens: `words`, or `hf:<folder or repository[@revision]>`")
    passages: tuple[str, ...] = Field(description="corpora whose documents are passages already: one chunk each")
    variants: dict[str, ChunkVariant] = Field(description="further corpora, by the name that datasets and index use")

    @model_validator(mode="after")
    def _check_overlap(self) -> Self:
        return _checked_overlap(self)

    def size_of(self, corpus: str) -> int:
        """The chunk size of a corpus, in tokens; 0 where its documents are passages that are never cut."""
        if corpus in self.passages:
            return 0
        return self.variants[corpus].chunk_size if corpus in self.variants else self.chunk_size


CutT = TypeVar("CutT", ChunkConfig, ChunkVariant)


def _checked_overlap(config: CutT) -> CutT:
    if config.overlap >= config.chunk_size:
        raise ValueError(f"overlap {config.overlap} must be below chunk_size {config.chunk_size}")
    return config


def chunk_corpora(corpora: Path, chunks: Path, config: ChunkConfig) -> dict[str, int]:
    """Chunk every ``<corpus>.jsonl`` of a folder into the file of the same name in another; return chunks per corpus.

    Raises:
        ArtifactError: there is no corpus, or one is empty.
        RecordError: a document does not fit its schema, or its id is taken.
        UnknownNameError: a tokenizer, or a corpus in ``passages`` or ``variants``, that does not exist.
        ConfigError: a variant has the name of a corpus.
        UnavailableError: the tokenizer cannot be read.
    """
    counter = load_tokenizer(config.tokenizer)
    paths = sorted(corpora.glob("*.jsonl"))
    if not paths:
        raise ArtifactError(f"{corpora} holds no corpus (*.jsonl); run the stage that makes it (`dvc repro download`).")
    _check_names(config, {path.stem for path in paths})
    counts = {path.stem: _chunk_corpus(path, chunks / path.name, config, config, counter) for path in paths}
    for name, variant in config.variants.items():
        path = corpora / f"{variant.corpus}.jsonl"
        counts[name] = _chunk_corpus(path, chunks / f"{name}.jsonl", config, variant, counter)
    return counts


def _check_names(config: ChunkConfig, corpora: set[str]) -> None:
    for name in config.passages:
        if name not in corpora:
            raise UnknownNameError("corpus in chunk.passages", name, corpora)
    for name, variant in config.variants.items():
        if variant.corpus not in corpora:
            raise UnknownNameError(f"corpus of chunk.variants.{name}", variant.corpus, corpora)
        if name in corpora or variant.corpus in config.passages:
            raise ConfigError(
                f"chunk.variants.{name} cannot be made: "
                + (f"there is a corpus {name!r}." if name in corpora else f"{variant.corpus!r} is passages already.")
            )


def _chunk_corpus(
    path: Path, out: Path, config: ChunkConfig, cut: ChunkConfig | ChunkVariant, counter: TokenCounter
) -> int:
    documents = track(_read_documents(path), f"chunk {out.stem}", _count_lines(path), "documents")
    if path.stem in config.passages:
        return write_jsonl(
            out, (_chunk(document, f"{document.title}\n{document.text}", 0, 1) for document in documents)
        )
    return write_jsonl(out, chunk_documents(documents, counter, cut.chunk_size, cut.overlap))


def _count_lines(path: Path) -> int:
    with path.open("rb") as lines:
        return sum(block.count(b"\n") for block in iter(lambda: lines.read(1 << 20), b""))


def _read_documents(path: Path) -> Iterator[Document]:
    # Hashes of the ids, not the ids: a corpus may have 21 million of them.
    seen: set[int] = set()
    for number, document in numbered_records(path, Document):
        if hash(document.id) in seen:
            raise RecordError(path, number, "id", f"{document.id!r} is the id of an earlier document too")
        seen.add(hash(document.id))
        yield document
    if not seen:
        raise ArtifactError(f"{path} is an empty corpus: it holds no documents.")


def chunk_documents(
    documents: Iterable[Document], counter: TokenCounter, chunk_size: int, overlap: int
) -> Iterator[Chunk]:
    """Yield the chunks of documents, in order; a document without text gives one chunk with its title alone.

    Short documents are looked at together, a long one block by block. Where a document's chunks lie is found first,
    because each says how many there are; a chunk itself is made when it is asked for.
    """
    for batch in _batches(documents):
        for document, start, units in _batch_units(batch, counter, chunk_size, overlap):
            bounds = array("q", itertools.chain.from_iterable(pack(units, chunk_size, overlap)))
            yield from _cut(document, bounds, start)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Neighbouring documents, together no longer than a block, or one that is longer."""
    batch: list[Document] = []
    chars = 0
    for document in documents:
        length = len(document.contents) + 1
        if batch and chars + length > BLOCK_CHARS:
            yield batch
            batch, chars = [], 0
        batch.append(document)
        chars += length
    if batch:
        yield batch


def _batch_units(
    batch: Sequence[Document], counter: TokenCounter, chunk_size: int, overlap: int
) -> Iterator[tuple[Document, int, Iterable["Units"]]]:
    """Each document with where its contents stand in the text that the units lie in, and its units."""
    # No sentence goes beyond a newline, so that documents joined by one have the sentences that they have alone.
    text = batch[0].contents if len(batch) == 1 else "\n".join(document.contents for document in batch)
    blocks = (_units(text, found, counter, chunk_size, overlap) for found in sentence_blocks(text))
    if len(batch) == 1:
        body = _title_chars(batch[0])
        yield batch[0], 0, (block.between(body, len(text)) for block in blocks)
        return
    [units] = blocks
    start = 0
    for document in batch:
        end = start + len(document.contents)
        yield document, start, [units.between(start + _title_chars(document), end)]
        start = end + 1


def _title_chars(document: Document) -> int:
    """Length of the title, without a copy of the text below it, as :attr:`Document.title` makes one."""
    newline = document.contents.find("\n")
    return newline if newline >= 0 else len(document.contents)


def _cut(document: Document, bounds: Sequence[int], start: int) -> Iterator[Chunk]:
    """The chunks between pairs of bounds, counted from ``start``, where the document's contents begin."""
    contents = document.contents
    title = contents[: _title_chars(document)]
    count = max(1, len(bounds) // 2)
    ends = zip(bounds[::2], bounds[1::2], strict=True) if bounds else [(start, start)]
    for number, (first, last) in enumerate(ends):
        yield _chunk(document, f"{title}\n{contents[first - start : last - start]}", number, count)


def _chunk(document: Document, contents: str, number: int, count: int) -> Chunk:
    where = {"doc_id": document.id, "doc_chunks": count, "doc_chunk_id": number}
    return Chunk.model_validate(
        {"id": f"{document.id}-{number}", "contents": contents, "metadata": {**document.metadata, **where}}
    )


@dataclass(frozen=True, slots=True)
class Units:
    """Neighbouring spans that chunks are packed from, each of at most as many tokens as a chunk.

    A unit is a sentence or, of a sentence that is too long, a slice as long as the overlap (as a chunk, where chunks
    do not overlap), so that such chunks overlap too.
    """

    starts: list[int]
    ends: list[int]
    tokens: list[int]

    def between(self, start: int, end: int) -> "Units":
        """Those that begin between two offsets."""
        part = slice(bisect_left(self.starts, start), bisect_left(self.starts, end))
        return Units(self.starts[part], self.ends[part], self.tokens[part])


def _units(text: str, sentences: Sentences, counter: TokenCounter, chunk_size: int, overlap: int) -> Units:
    tokens_N = counter.counts(text, sentences)
    units = Units(sentences.starts_N.tolist(), sentences.ends_N.tolist(), tokens_N.tolist())
    for number in reversed(np.flatnonzero(tokens_N > chunk_size).tolist()):
        start = units.starts[number]
        spans = list(counter.spans(text[start : units.ends[number]]))
        slices = [
            spans[first : first + (overlap or chunk_size)] for first in range(0, len(spans), overlap or chunk_size)
        ]
        place = slice(number, number + 1)
        units.starts[place] = [start + piece[0][0] for piece in slices]
        units.ends[place] = [start + piece[-1][1] for piece in slices]
        units.tokens[place] = map(len, slices)
    return units


def pack(blocks: Iterable[Units], chunk_size: int, overlap: int) -> Iterator[Span]:
    """Join neighbouring units into spans of at most ``chunk_size`` tokens, in time linear in their number.

    A span begins with as many whole units from the end of the one before as fit into ``overlap`` tokens.
    """
    starts: list[int] = []
    ends: list[int] = []
    before = [0]  # tokens before each unit, and before the one to come
    for block in blocks:
        starts += block.starts
        ends += block.ends
        before += itertools.islice(itertools.accumulate(block.tokens, initial=before[-1]), 1, None)
        first = 0
        while (behind := bisect_right(before, before[first] + chunk_size) - 1) < len(starts):
            yield starts[first], ends[behind - 1]
            least = max(before[behind] - overlap, before[behind + 1] - chunk_size)
            first = bisect_left(before, least, first, behind)
        del starts[:first], ends[:first], before[:first]
    if starts:
        yield starts[0], ends[-1]
