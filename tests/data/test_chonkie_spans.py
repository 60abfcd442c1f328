"""Chunks of chonkie's chunkers: exact slices, nothing lost, at most as long as asked for."""

import gzip
import json
import sys
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from deepsearch_rl.core.errors import UnavailableError, UnknownNameError
from deepsearch_rl.core.files import read_jsonl, write_jsonl
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Chunk, Document
from deepsearch_rl.data.chonkie_spans import SpanChunker, span_chunker
from deepsearch_rl.data.chunking import ChunkConfig, chunk_corpora, cut_documents
from deepsearch_rl.data.sentences import Span
from deepsearch_rl.data.token_counts import HfCounter, TokenCounter, WordCounter
from tests.data.tokenizers_of import byte_pairs, word_pieces

MakeChunker = Callable[[TokenCounter, int, int], SpanChunker]
token_chunker: MakeChunker = partial(span_chunker, "chonkie_token")
recursive_chunker: MakeChunker = partial(span_chunker, "chonkie_recursive")
CONFIG = ChunkConfig(
    chunker="chonkie_token", chunk_size=8, overlap=0, tokenizer="words", passages=(), variants={}
)
TEXT = "One two. Drei ÄÖ — vier,\n\n  five (six)! " + "Seven eight nine ten eleven. " * 20


COUNTERS: dict[str, TokenCounter] = {
    "words": WordCounter(),
    "wordpiece": HfCounter(word_pieces([TEXT])),
    "bytes": HfCounter(byte_pairs([TEXT])),
}


def uncovered(text: str, spans: list[Span]) -> str:
    """What stands in no span."""
    ends = [0, *(end for _, end in spans)]
    return "".join(
        text[end:start]
        for end, start in zip(ends, [*(start for start, _ in spans), len(text)], strict=True)
    )


def tokens_between(counter: TokenCounter, text: str, spans: list[Span]) -> list[int]:
    """Tokens of the text that begin in each span; a word that is cut may have others when it stands alone."""
    starts = [start for start, _ in counter.spans(text)]
    return [bisect_left(starts, end) - bisect_left(starts, start) for start, end in spans]


@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.parametrize("make", [token_chunker, recursive_chunker])
@given(st.text(alphabet="aB1 .,!-(\n\t\u00e9\u6c34\U0001f600", max_size=300))
@settings(max_examples=60, deadline=None)
def test_chunks_are_bounded_slices_in_order_that_leave_out_white_space_alone(
    make: MakeChunker, name: str, text: str
) -> None:
    counter = COUNTERS[name]
    spans = list(make(counter, 8, 0)(text))
    assert uncovered(text, spans).strip() == ""
    assert all(first[1] <= second[0] for first, second in pairwise(spans))
    assert all(text[start:end].strip() == text[start:end] != "" for start, end in spans)
    assert name == "bytes" or max(tokens_between(counter, text, spans), default=0) <= 8


@pytest.mark.parametrize("name", ["words", "wordpiece"])
def test_chunks_of_tokens_repeat_the_end_of_the_one_before(name: str) -> None:
    counter = COUNTERS[name]
    spans = list(token_chunker(counter, 8, 3)(TEXT))
    assert len(spans) > 5
    shared = [
        (second_start, first_end) for (_, first_end), (second_start, _) in pairwise(spans[:-1])
    ]
    assert tokens_between(counter, TEXT, shared) == [3] * len(shared)


def test_recursive_chunks_end_at_sentences_where_those_fit() -> None:
    sentences = [f"Sentence number {number} has just seven words." for number in range(9)]
    text = " ".join(sentences)
    spans = list(recursive_chunker(WordCounter(), 16, 0)(text))
    assert [text[start:end] for start, end in spans] == [
        " ".join(sentences[at : at + 2]) for at in range(0, 9, 2)
    ]


@pytest.mark.parametrize("chunker", ["chonkie_token", "chonkie_recursive"])
def test_chunks_of_documents_have_their_title_metadata_and_number(
    tmp_path: Path, chunker: str
) -> None:
    documents = [
        Document(id="a", contents=f"A title\n{TEXT}", metadata={"source": "x"}),
        Document(id="b", contents="Only a title"),
    ]
    write_jsonl(tmp_path / "in" / "news.jsonl", documents)
    config = CONFIG.model_copy(update={"chunker": chunker})
    counts = chunk_corpora(tmp_path / "in", tmp_path / "out", config)
    chunks = list(read_jsonl(tmp_path / "out" / "news.jsonl", Chunk))
    assert counts == {"news": len(chunks)}
    assert len(chunks) > 10
    assert all(chunk.text in TEXT and chunk.title == "A title" for chunk in chunks[:-1])
    assert [chunk.metadata.doc_chunk_id for chunk in chunks[:-1]] == list(range(len(chunks) - 1))
    assert {chunk.metadata.doc_chunks for chunk in chunks[:-1]} == {len(chunks) - 1}
    assert chunks[0].metadata.model_extra == {"source": "x"}
    assert (chunks[-1].contents, chunks[-1].metadata.doc_chunks) == ("Only a title\n", 1)


def test_a_chunker_that_does_not_exist_and_an_overlap_that_is_not_made_are_refused() -> None:
    values = {"chunk": CONFIG.model_dump() | {"chunker": "chonkie_tokens"}}
    with pytest.raises(
        UnknownNameError, match=r"chunk\.chunker in params\.yaml.* Did you mean 'chonkie_token'"
    ):
        Profile(Path("params.yaml"), values).section("chunk", ChunkConfig)
    with pytest.raises(ValidationError, match="chonkie_recursive has no overlap"):
        ChunkConfig.model_validate(
            CONFIG.model_dump() | {"chunker": "chonkie_recursive", "overlap": 2}
        )


def test_without_chonkie_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "deepsearch_rl.data.chonkie_spans")
    monkeypatch.delattr("deepsearch_rl.data.chonkie_spans")
    monkeypatch.setitem(sys.modules, "chonkie", None)
    with pytest.raises(UnavailableError, match=r"deepsearch-rl\[chonkie\].* EXTRAS="):
        list(cut_documents([], WordCounter(), CONFIG))


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("make", [token_chunker, recursive_chunker])
def test_real_articles_are_cut_into_bounded_slices_without_loss(
    real_data: Path, make: MakeChunker
) -> None:
    with gzip.open(real_data / "multihoprag" / "corpus.jsonl.gz") as lines:
        bodies = [json.loads(line)["body"] for line in lines][:60]
    counter = HfCounter(word_pieces(bodies))
    chunker = make(counter, 128, 0)
    for body in bodies:
        spans = list(chunker(body))
        assert uncovered(body, spans).strip() == ""
        assert all(first[1] <= second[0] for first, second in pairwise(spans))
        assert max(tokens_between(counter, body, spans)) <= 128
