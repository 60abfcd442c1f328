"""Documents cut into chunks of a limited number of tokens.

Every chunk is a verbatim slice of its document below the document's title, whose tokens do not
count. ``sentences`` packs sentences in order until the next one would not fit, and cuts a sentence
longer than a chunk at tokens; ``chonkie_token`` and ``chonkie_recursive`` come from the library
chonkie (:mod:`.chonkie_spans`).
"""

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self, get_args

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
from deepsearch_rl.data.sentences import Span, is_mark, sentence_spans
from deepsearch_rl.data.token_counts import TokenCounter, load_tokenizer

Chunker = Literal["sentences", "chonkie_token", "chonkie_recursive"]
CHUNKERS = get_args(Chunker)


class Cutting(Record):
    """How documents are cut."""

    chunker: Chunker = Field(description="sentences | chonkie_token | chonkie_recursive")
    chunk_size: int = Field(ge=1, description="at most so many tokens a chunk, without its title")
    overlap: int = Field(
        ge=0, description="at most so many tokens repeated from the end of the previous chunk"
    )

    @model_validator(mode="after")
    def _check_overlap(self) -> Self:
        if self.overlap >= self.chunk_size:
            raise ValueError(f"overlap {self.overlap} must be below chunk_size {self.chunk_size}")
        if self.overlap and self.chunker == "chonkie_recursive":
            raise ValueError(
                f"overlap {self.overlap}: chonkie_recursive has no overlap; set it to 0"
            )

        return self


class ChunkVariant(Cutting):
    """A corpus made by cutting the documents of another one differently."""

    corpus: str = Field(description="whose documents")


class ChunkConfig(Cutting):
    """Section ``chunk``: how documents are cut, and what counts tokens."""

    tokenizer: str = Field(description="`words`, or `hf:<folder or repository[@revision]>`")
    passages: tuple[str, ...] = Field(
        description="corpora that are passages already: one chunk per document"
    )
    variants: dict[str, ChunkVariant] = Field(
        description="further corpora, by the name that datasets and index use"
    )

    def size_of(self, corpus: str) -> int:
        """Return the chunk size of a corpus in tokens; 0 for passages, which are never cut."""
        if corpus in self.passages:
            return 0
        return self.variants[corpus].chunk_size if corpus in self.variants else self.chunk_size


def chunk_corpora(corpora: Path, chunks: Path, config: ChunkConfig) -> dict[str, int]:
    """Write the chunks of every ``corpora/<corpus>.jsonl`` to ``chunks``; return the number per corpus.

    Raises:
        ArtifactError: there is no corpus, or one is empty.
        RecordError: a document does not fit its schema, or repeats an id.
        ConfigError: ``passages`` or ``variants`` do not fit the corpora.
        UnavailableError: the tokenizer cannot be read, or chonkie is not installed.
    """
    counter = load_tokenizer(config.tokenizer)
    paths = {path.stem: path for path in sorted(corpora.glob("*.jsonl"))}

    if not paths:
        raise ArtifactError(
            f"{corpora} has no corpus (*.jsonl); run the stage that makes it (`dvc repro download`)."
        )

    _check_names(config, paths)
    cuttings: dict[str, Cutting] = {**dict.fromkeys(paths, config), **config.variants}
    counts: dict[str, int] = {}

    for name, cutting in cuttings.items():
        path = paths[cutting.corpus if isinstance(cutting, ChunkVariant) else name]
        corpus = at_least_one(
            read_distinct(path, Document), f"{path} is an empty corpus: it has no documents."
        )
        documents = track(corpus, f"chunk {name}", _count_lines(path), "documents")

        is_cut = name not in config.passages
        passages = cut_documents(documents, counter, cutting) if is_cut else _uncut(documents)
        counts[name] = write_jsonl(chunks / f"{name}.jsonl", passages)

    return counts


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


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
    """Yield the chunks of documents, in order; a document without text becomes a chunk of its title alone."""
    if cutting.chunker == "sentences":
        for document in documents:
            yield from _slices(document, list(_packed(document, counter, cutting)))
        return

    try:
        from deepsearch_rl.data.chonkie_spans import span_chunker  # noqa: PLC0415 - only its profiles load chonkie
    except ModuleNotFoundError as error:
        raise UnavailableError(
            f"chunk.chunker {cutting.chunker!r} needs the package chonkie: {install_hint('chonkie')}."
        ) from error

    spans = span_chunker(cutting.chunker, counter, cutting.chunk_size, cutting.overlap)
    for document in documents:
        first = _title_chars(document) + 1
        shifted = [(first + start, first + end) for start, end in spans(document.text)]
        yield from _slices(document, shifted)


def _title_chars(document: Document) -> int:
    newline = document.contents.find("\n")
    return newline if newline >= 0 else len(document.contents)


def _slices(document: Document, spans: Sequence[Span]) -> Iterator[Chunk]:
    """Yield the chunks at spans of the document's contents."""
    contents = document.contents
    title = contents[: _title_chars(document)]
    spans = spans or [(0, 0)]

    for number, (start, end) in enumerate(spans):
        yield Chunk(
            id=f"{document.id}-{number}",
            contents=f"{title}\n{contents[start:end]}",
            metadata=ChunkMetadata.of(document, len(spans), number),
        )


def _uncut(documents: Iterable[Document]) -> Iterator[Chunk]:
    """Yield every document as one chunk."""
    for document in documents:
        yield from _slices(document, [(_title_chars(document) + 1, len(document.contents))])


def _packed(document: Document, counter: TokenCounter, cutting: Cutting) -> Iterator[Span]:
    """Yield units joined into spans of at most ``chunk_size`` tokens; whole units repeat up to ``overlap`` tokens."""
    units = list(_units(document, counter, cutting))
    # Tokens before each unit and after the last one, so that sums are found by bisection
    before = [0, *itertools.accumulate(tokens for _, _, tokens in units)]
    first = 0

    while first < len(units):
        behind = bisect_right(before, before[first] + cutting.chunk_size) - 1
        yield units[first][0], units[behind - 1][1]
        if behind == len(units):
            return

        # The next chunk repeats what the overlap allows while its first new unit still fits
        min_tokens = max(before[behind] - cutting.overlap, before[behind + 1] - cutting.chunk_size)
        first = bisect_left(before, min_tokens, first, behind)


def _units(
    document: Document, counter: TokenCounter, cutting: Cutting
) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and tokens of what chunks are packed from: sentences, and slices of those longer than a chunk.

    A slice is as long as the overlap, so that such chunks overlap too, or without overlap as a chunk.
    """
    text = document.contents
    sentences = list(sentence_spans(text, _title_chars(document)))
    length = cutting.overlap or cutting.chunk_size

    for (start, end), tokens in zip(sentences, counter.counts(text, sentences), strict=True):
        if tokens <= cutting.chunk_size:
            yield start, end, tokens
            continue

        sentence = text[start:end]
        words = list(counter.spans(sentence))
        first = 0
        while first < len(words):
            behind = _before_marks(sentence, words, first, first + length)
            yield start + words[first][0], start + words[behind - 1][1], behind - first
            first = behind


def _before_marks(text: str, words: Sequence[Span], first: int, behind: int) -> int:
    """Return where a slice of the words from ``first`` ends: at ``behind``, or before, if a mark would be cut off."""
    for end in range(behind, first, -1):
        if end < len(words) and not is_mark(text[words[end][0]]):
            return end

    return min(behind, len(words))
