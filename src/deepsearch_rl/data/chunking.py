"""Documents cut into chunks of a limited number of tokens.

Every chunk is a verbatim slice of its document below the document's title, which does not count as
tokens. ``sentences`` packs sentences in order until the next one would not fit, and cuts a sentence
longer than a chunk at tokens; ``chonkie_token`` and ``chonkie_recursive`` are the library chonkie's
(:mod:`.chonkie_spans`).
"""

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, get_args

import numpy as np
from pydantic import Field, model_validator

from deepsearch_rl.core.errors import (
    ArtifactError,
    ConfigError,
    UnavailableError,
    install_hint,
    look_up,
)
from deepsearch_rl.core.files import at_least_one, read_distinct, write_jsonl
from deepsearch_rl.core.progress import track
from deepsearch_rl.core.records import Chunk, ChunkMetadata, Document, Record
from deepsearch_rl.data.spans import BLOCK_CHARS, Sentences, Span, sentence_blocks
from deepsearch_rl.data.token_counts import TokenCounter, load_tokenizer

Chunker = Literal["sentences", "chonkie_token", "chonkie_recursive"]
CHUNKERS = get_args(Chunker)


class Cutting(Record):
    """How documents are cut."""

    chunker: Chunker = Field(description="sentences | chonkie_token | chonkie_recursive")
    chunk_size: int = Field(ge=1, description="tokens of a chunk at most, its title not counted")
    overlap: int = Field(
        ge=0, description="tokens that a chunk repeats from the end of the one before at most"
    )

    @model_validator(mode="after")
    def _check_overlap(self) -> Self:
        if self.overlap >= self.chunk_size:
            raise ValueError(f"overlap {self.overlap} must be below chunk_size {self.chunk_size}")
        if self.overlap and self.chunker == "chonkie_recursive":
            raise ValueError(
                f"overlap {self.overlap}: chunks of chonkie_recursive do not overlap; set it to 0"
            )

        return self


class ChunkVariant(Cutting):
    """The documents of a corpus cut another way, as a corpus of its own."""

    corpus: str = Field(description="whose documents")


class ChunkConfig(Cutting):
    """Section ``chunk``: how documents are cut, and what counts tokens."""

    tokenizer: str = Field(
        description="what counts tokens: `words`, or `hf:<folder or repository[@revision]>`"
    )
    passages: tuple[str, ...] = Field(
        description="corpora whose documents are passages already: one chunk each"
    )
    variants: dict[str, ChunkVariant] = Field(
        description="further corpora, by the name that datasets and index use"
    )

    def size_of(self, corpus: str) -> int:
        """Return the chunk size of a corpus, in tokens; 0 where its documents are passages that are never cut."""
        if corpus in self.passages:
            return 0
        return self.variants[corpus].chunk_size if corpus in self.variants else self.chunk_size


def chunk_corpora(corpora: Path, chunks: Path, config: ChunkConfig) -> dict[str, int]:
    """Chunk every ``<corpus>.jsonl`` of a folder into the file of the same name in another; return chunks per corpus.

    Raises:
        ArtifactError: there is no corpus, or one is empty.
        RecordError: a document does not fit its schema, or its id is taken.
        ConfigError: ``passages`` or ``variants`` do not fit the corpora.
        UnavailableError: the tokenizer cannot be read, or chonkie is not installed.
    """
    counter = load_tokenizer(config.tokenizer)
    paths = {path.stem: path for path in sorted(corpora.glob("*.jsonl"))}

    if not paths:
        raise ArtifactError(
            f"{corpora} holds no corpus (*.jsonl); run the stage that makes it (`dvc repro download`)."
        )

    _check_names(config, paths)
    cuttings: dict[str, Cutting] = {**dict.fromkeys(paths, config), **config.variants}
    counts: dict[str, int] = {}

    for name, cutting in cuttings.items():
        path = paths[cutting.corpus if isinstance(cutting, ChunkVariant) else name]
        corpus = at_least_one(
            read_distinct(path, Document), f"{path} is an empty corpus: it holds no documents."
        )
        documents = track(corpus, f"chunk {name}", _count_lines(path), "documents")

        # A corpus of passages stays as it was published
        is_cut = name not in config.passages
        passages = cut_documents(documents, counter, cutting) if is_cut else _uncut(documents)
        counts[name] = write_jsonl(chunks / f"{name}.jsonl", passages)

    return counts


def _count_lines(path: Path) -> int:
    """Return the number of newlines, which is what the progress bar counts up to."""
    total = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total += block.count(b"\n")

    return total


def _check_names(config: ChunkConfig, corpora: Mapping[str, Path]) -> None:
    for name in config.passages:
        look_up("corpus in chunk.passages", name, corpora)
    for name, variant in config.variants.items():
        look_up(f"corpus of chunk.variants.{name}", variant.corpus, corpora)
        if name in corpora:
            raise ConfigError(f"chunk.variants.{name} cannot be made: there is a corpus {name!r}.")
        if variant.corpus in config.passages:
            raise ConfigError(
                f"chunk.variants.{name} cannot be made: {variant.corpus!r} is passages already."
            )


def cut_documents(
    documents: Iterable[Document], counter: TokenCounter, cutting: Cutting
) -> Iterator[Chunk]:
    """Yield the chunks of documents, in order; a document without text gives one chunk with its title alone."""
    if cutting.chunker == "sentences":
        return _cut_at_sentences(documents, counter, cutting)
    try:
        from deepsearch_rl.data.chonkie_spans import span_chunker  # noqa: PLC0415 - only its profiles load chonkie
    except ModuleNotFoundError as error:
        raise UnavailableError(
            f"chunk.chunker {cutting.chunker!r} needs the package chonkie: {install_hint('chonkie')}."
        ) from error

    spans = span_chunker(cutting.chunker, counter, cutting.chunk_size, cutting.overlap)
    return _cut_by_spans(documents, spans)


def _cut_by_spans(
    documents: Iterable[Document], spans: Callable[[str], Iterator[Span]]
) -> Iterator[Chunk]:
    for document in documents:
        bounds = list(itertools.chain.from_iterable(spans(document.text)))

        # Offsets of the text below the title are counted from its first character.
        yield from _slices(document, bounds, -_title_chars(document) - 1)


def _cut_at_sentences(
    documents: Iterable[Document], counter: TokenCounter, cutting: Cutting
) -> Iterator[Chunk]:
    """Yield the chunks of documents; short documents are cut together, a long one block by block."""
    for batch in _batches(documents):
        # No sentence crosses a newline, so documents joined by newlines have the same sentences as
        # alone.
        text = "\n".join(document.contents for document in batch)
        blocks: Iterable[Units] = _unit_blocks(text, counter, cutting)

        # Several documents are one block, which all of them are cut from; the blocks of a long one
        # are never held together.
        if len(batch) > 1:
            blocks = list(blocks)

        start = 0
        for document in batch:
            body = start + _title_chars(document)
            end = start + len(document.contents)
            units = (block.between(body, end) for block in blocks)
            bounds = array("q", itertools.chain.from_iterable(_pack(units, cutting)))
            yield from _slices(document, bounds, start)
            start = end + 1


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Yield neighbouring documents, together no longer than a block, or one that is longer."""
    batch: list[Document] = []
    chars = 0

    for document in documents:
        length = len(document.contents) + 1
        if batch and chars + length > BLOCK_CHARS:
            yield batch
            batch = []
            chars = 0

        batch.append(document)
        chars += length

    if batch:
        yield batch


def _title_chars(document: Document) -> int:
    """Return the length of the title; :attr:`Document.title` would copy the text below it."""
    newline = document.contents.find("\n")
    return newline if newline >= 0 else len(document.contents)


def _slices(document: Document, bounds: Sequence[int], start: int) -> Iterator[Chunk]:
    """Yield the chunks between pairs of bounds; ``start`` is the offset of the document's contents."""
    contents = document.contents
    title = contents[: _title_chars(document)]
    count = max(1, len(bounds) // 2)
    ends = zip(bounds[::2], bounds[1::2], strict=True) if bounds else [(start, start)]

    for number, (first, last) in enumerate(ends):
        passage = f"{title}\n{contents[first - start : last - start]}"
        yield Chunk(
            id=f"{document.id}-{number}",
            contents=passage,
            metadata=ChunkMetadata.of(document, count, number),
        )


def _uncut(documents: Iterable[Document]) -> Iterator[Chunk]:
    """Yield every document as one chunk."""
    for document in documents:
        yield from _slices(document, (_title_chars(document) + 1, len(document.contents)), 0)


@dataclass(frozen=True, slots=True)
class Units:
    """Neighbouring spans to pack chunks from, none with more tokens than a chunk.

    A unit is a sentence, or a slice of a sentence that is too long. A slice is as long as the
    overlap (as a chunk, where chunks do not overlap), so that such chunks overlap too.
    """

    starts: list[int]
    ends: list[int]
    tokens: list[int]

    def between(self, start: int, end: int) -> "Units":
        """Return the units that begin between two offsets."""
        part = slice(bisect_left(self.starts, start), bisect_left(self.starts, end))
        return Units(self.starts[part], self.ends[part], self.tokens[part])


def _unit_blocks(text: str, counter: TokenCounter, cutting: Cutting) -> Iterator[Units]:
    """Yield the units of a text, block by block."""
    for sentences in sentence_blocks(text):
        yield _units(text, sentences, counter, cutting)


def _units(text: str, sentences: Sentences, counter: TokenCounter, cutting: Cutting) -> Units:
    tokens_N = counter.counts(text, sentences)
    units = Units(sentences.starts_N.tolist(), sentences.ends_N.tolist(), tokens_N.tolist())
    length = cutting.overlap or cutting.chunk_size

    # From the last one, because slices in place of a unit move those behind it.
    for number in reversed(np.flatnonzero(tokens_N > cutting.chunk_size).tolist()):
        start = units.starts[number]
        spans = list(counter.spans(text[start : units.ends[number]]))
        slices = Units([], [], [])

        for first in range(0, len(spans), length):
            piece = spans[first : first + length]
            slices.starts.append(start + piece[0][0])
            slices.ends.append(start + piece[-1][1])
            slices.tokens.append(len(piece))

        place = slice(number, number + 1)
        units.starts[place] = slices.starts
        units.ends[place] = slices.ends
        units.tokens[place] = slices.tokens

    return units


def _pack(blocks: Iterable[Units], cutting: Cutting) -> Iterator[Span]:
    """Yield units joined into spans of at most ``chunk_size`` tokens; whole units repeat up to ``overlap`` tokens."""
    starts: list[int] = []
    ends: list[int] = []

    # Tokens before each unit, and before the one to come; they grow, so that a sum of tokens is
    # found by bisection.
    before = [0]

    for block in blocks:
        starts += block.starts
        ends += block.ends
        for tokens in block.tokens:
            before.append(before[-1] + tokens)
        first = 0

        # A span is complete when the next unit does not fit: its own end may stand in the next
        # block.
        while True:
            behind = bisect_right(before, before[first] + cutting.chunk_size) - 1
            if behind >= len(starts):
                break
            yield starts[first], ends[behind - 1]

            # The next span repeats what the overlap allows, as long as the next unit still fits.
            min_tokens = max(
                before[behind] - cutting.overlap, before[behind + 1] - cutting.chunk_size
            )
            first = bisect_left(before, min_tokens, first, behind)

        # Memory does not grow with the document.
        del starts[:first], ends[:first], before[:first]

    if starts:
        yield starts[0], ends[-1]
