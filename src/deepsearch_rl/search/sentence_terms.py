"""The terms of every sentence of every chunk, memory-mapped, for features of candidates.

    rows.npy         int64 N+1: the first sentence of a row; last, the number of sentences
    sentences.npy    int64 S+1: the first term of a sentence; last, the number of terms
    terms.npy        uint32: the distinct terms of one sentence after the other, ascending within each
    frequency.npy    int32: in how many chunks a term occurs, by the term modulo the array's length
    doc_chunks.npy   int32 N: into how many chunks the row's document was cut

A term is the CRC-32 of its spelling, so that no vocabulary needs to be held. A chunk's title is its
first sentence.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.records import Chunk
from deepsearch_rl.data.sentences import sentence_spans
from deepsearch_rl.search.analysis import analyse
from deepsearch_rl.search.rows import GrowingArray, open_column

# Frequencies of terms are counted in so many places, 4 MB whatever the corpus. Rare terms share
# one and then count as a little more frequent than they are.
BUCKETS = 1 << 20


def term_ids(text: str) -> NDArray[np.uint32]:
    """Return the distinct terms of a text, ascending."""
    ids = {zlib.crc32(term.encode()) for term in analyse(text)}
    return np.array(sorted(ids), dtype=np.uint32)


def write_sentence_terms(chunks: Iterable[Chunk], folder: Path) -> None:
    """Write the terms of a stream of chunks to a new folder; one chunk is held at a time."""
    folder.mkdir()
    frequency = np.zeros(BUCKETS, dtype=np.int32)
    sentences = terms = 0

    with (
        GrowingArray(folder / "rows.npy", np.int64) as row_starts,
        GrowingArray(folder / "sentences.npy", np.int64) as sentence_starts,
        GrowingArray(folder / "terms.npy", np.uint32) as all_terms,
        GrowingArray(folder / "doc_chunks.npy", np.int32) as doc_chunks,
    ):
        for chunk in chunks:
            row_starts.append(sentences)
            doc_chunks.append(chunk.metadata.doc_chunks)
            texts = [chunk.contents[start:end] for start, end in sentence_spans(chunk.contents)]

            # Every row has a sentence: ``reduceat`` over the sentences of rows knows no empty one.
            terms_by_sentence = list(map(term_ids, texts or [""]))
            for terms_of_sentence in terms_by_sentence:
                sentence_starts.append(terms)
                terms += len(terms_of_sentence)
                all_terms.extend(terms_of_sentence)

            sentences += len(terms_by_sentence)
            frequency[np.unique(np.concatenate(terms_by_sentence) % BUCKETS)] += 1

        row_starts.append(sentences)
        sentence_starts.append(terms)

    np.save(folder / "frequency.npy", frequency)


@dataclass(frozen=True, slots=True)
class Matches:
    """Where the U terms of a query occur among C candidates, whose S sentences stand one after the other."""

    # The first sentence of each candidate
    starts_C: NDArray[np.int64]
    # Of each match: in which sentence, and which term of the query
    sentence_M: NDArray[np.int64]
    term_M: NDArray[np.int64]
    # In how many of its sentences a candidate has a term
    counts_CU: NDArray[np.int64]
    # Terms of a candidate, summed over its sentences
    length_C: NDArray[np.int64]
    length_S: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SentenceTerms:
    """The opened arrays of a folder, over N rows."""

    row_starts: NDArray[np.int64]
    sentence_starts: NDArray[np.int64]
    terms: NDArray[np.uint32]
    frequency: NDArray[np.int32]
    doc_chunks_N: NDArray[np.int32]

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open what :func:`write_sentence_terms` wrote; raise ArtifactError where a file is missing or damaged."""
        rows = open_column(folder / "rows.npy", np.int64)
        sentences = open_column(folder / "sentences.npy", np.int64)
        terms = open_column(folder / "terms.npy", np.uint32)
        frequency = open_column(folder / "frequency.npy", np.int32)
        doc_chunks = open_column(folder / "doc_chunks.npy", np.int32)
        fit = len(rows) == len(doc_chunks) + 1 > 1 and len(frequency) == BUCKETS

        if not fit or rows[-1] != len(sentences) - 1 or sentences[-1] != len(terms):
            raise ArtifactError(
                f"the files in {folder} do not fit each other; build the index again."
            )

        return cls(rows, sentences, terms, frequency, doc_chunks)

    def __len__(self) -> int:
        return len(self.doc_chunks_N)

    def idf(self, terms_U: NDArray[np.uint32]) -> NDArray[np.float64]:
        """Return Lucene's idf of terms that n of N chunks have: ln(1 + (N - n + 0.5) / (n + 0.5))."""
        counts_U = self.frequency[terms_U % BUCKETS].astype(np.float64)
        return np.log1p((len(self) - counts_U + 0.5) / (counts_U + 0.5))

    def match(self, rows_C: NDArray[np.int64], terms_U: NDArray[np.uint32]) -> Matches:
        """Find at least one term, ascending, in the sentences of at least one row."""
        # The sentences of all candidates, and the T terms of all these sentences.
        sentences_S, starts_C = _ranges(self.row_starts[rows_C], self.row_starts[rows_C + 1])
        places_T, starts_S = _ranges(
            self.sentence_starts[sentences_S], self.sentence_starts[sentences_S + 1]
        )
        length_S = np.diff(starts_S, append=len(places_T))
        terms_T = self.terms[places_T]

        # Which of the query's terms each of them can only be, and where it is that one.
        number_T = np.minimum(np.searchsorted(terms_U, terms_T), len(terms_U) - 1)
        matching_M = np.flatnonzero(terms_U[number_T] == terms_T)
        sentence_M = np.repeat(np.arange(len(sentences_S)), length_S)[matching_M]
        term_M = number_T[matching_M]

        # A cell of counts_CU is numbered row by row.
        row_M = np.searchsorted(starts_C, sentence_M, side="right") - 1
        cell_M = row_M * len(terms_U) + term_M
        counts = np.bincount(cell_M, minlength=len(rows_C) * len(terms_U))
        return Matches(
            starts_C=starts_C,
            sentence_M=sentence_M,
            term_M=term_M,
            counts_CU=counts.reshape(len(rows_C), len(terms_U)),
            length_C=np.add.reduceat(length_S, starts_C),
            length_S=length_S,
        )


def _ranges(
    starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of several ranges one after the other, and where each range begins among them."""
    lengths = ends - starts
    begins = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(begins - starts, lengths), begins
