from pathlib import Path

import numpy as np
import pytest

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.search.sentence_terms import (
    SentenceTerms,
    term_ids,
    write_sentence_terms,
)
from tests.chunks import make_chunk

TEXTS = (
    "Comets\nA comet is icy. The comet has a tail.",
    "Rivers\nA river flows.",
    "!\n?",
    "Comets\nA comet flows.",
)
CHUNKS = [make_chunk(text, doc_chunks=row + 1) for row, text in enumerate(TEXTS)]


@pytest.fixture
def terms(tmp_path: Path) -> SentenceTerms:
    write_sentence_terms(CHUNKS, tmp_path / "terms")
    return SentenceTerms.open(tmp_path / "terms")


def columns(text: str) -> list[int]:
    """The positions, among the terms of "comet river tail", of those of another text."""
    return np.searchsorted(term_ids("comet river tail"), term_ids(text)).tolist()


def test_a_term_counts_once_a_sentence_and_the_title_is_one(terms: SentenceTerms) -> None:
    matches = terms.match(np.array([0, 1, 2, 3]), term_ids("comet river tail"))
    [comet], [river], [tail] = columns("comet"), columns("river"), columns("tail")
    assert matches.counts_CU[:, comet].tolist() == [3, 0, 0, 2]
    assert matches.counts_CU[:, river].tolist() == [0, 2, 0, 0]
    assert matches.counts_CU[:, tail].tolist() == [1, 0, 0, 0]
    assert matches.length_C.tolist() == [6, 3, 0, 3]


def test_matches_name_the_sentence_among_those_of_the_candidates(terms: SentenceTerms) -> None:
    matches = terms.match(np.array([1, 0]), term_ids("tail"))
    # Row 1 has a title and a sentence, row 0 a title and two
    assert matches.starts_C.tolist() == [0, 2]
    assert matches.sentence_M.tolist() == [4]


def test_a_rarer_term_weighs_more(terms: SentenceTerms) -> None:
    common, rare, unknown = (
        float(terms.idf(term_ids(word))[0]) for word in ("comet", "tail", "unheard")
    )
    assert common < rare < unknown


def test_document_lengths_are_kept(terms: SentenceTerms) -> None:
    assert terms.doc_chunks_N.tolist() == [1, 2, 3, 4]


def test_files_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    write_sentence_terms(CHUNKS, tmp_path / "terms")
    np.save(tmp_path / "terms" / "doc_chunks.npy", np.ones(2, dtype=np.int32))
    with pytest.raises(ArtifactError, match="do not fit each other"):
        SentenceTerms.open(tmp_path / "terms")
