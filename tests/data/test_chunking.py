"""Chunks: bounded, verbatim, whole sentences, each with its own metadata; written whole or not at all."""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from deepsearch_rl.core.errors import ArtifactError, ConfigError, RecordError, UnknownNameError
from deepsearch_rl.core.files import read_jsonl, write_jsonl
from deepsearch_rl.core.records import Chunk, Document
from deepsearch_rl.data.chunking import (
    ChunkConfig,
    Cutting,
    chunk_corpora,
    cut_documents,
)
from deepsearch_rl.data.sentences import sentence_spans, word_spans
from deepsearch_rl.data.token_counts import HfCounter, WordCounter

CONFIG = ChunkConfig(
    chunker="sentences", chunk_size=12, overlap=0, tokenizer="words", passages=(), variants={}
)
SENTENCES = [
    f"Sentence number {number} has just seven words." for number in range(9)
]  # 8 tokens each
ARTICLE = Document(id="a", contents="Title\n" + " ".join(SENTENCES), metadata={"source": "x"})


def chunk_document(document: Document, chunk_size: int, overlap: int) -> list[Chunk]:
    return cut([document], chunk_size, overlap)


def cut(documents: list[Document], chunk_size: int, overlap: int) -> list[Chunk]:
    cutting = Cutting(chunker="sentences", chunk_size=chunk_size, overlap=overlap)
    return list(cut_documents(documents, WordCounter(), cutting))


def count(text: str) -> int:
    return sum(1 for _ in word_spans(text))


def write_corpus(folder: Path, *lines: str, name: str = "news") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.jsonl"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def row(id_: str, contents: str) -> str:
    return json.dumps({"id": id_, "contents": contents})


def test_chunks_hold_whole_sentences_up_to_the_size_below_the_title() -> None:
    chunks = chunk_document(ARTICLE, chunk_size=24, overlap=0)
    assert [chunk.text for chunk in chunks] == [
        " ".join(SENTENCES[start : start + 3]) for start in (0, 3, 6)
    ]
    assert {chunk.title for chunk in chunks} == {"Title"}


def test_every_chunk_has_metadata_of_its_own() -> None:
    chunks = chunk_document(ARTICLE, chunk_size=24, overlap=0)
    assert [chunk.metadata.doc_chunk_id for chunk in chunks] == [0, 1, 2]
    assert [(chunk.id, chunk.metadata.doc_id, chunk.metadata.doc_chunks) for chunk in chunks] == [
        ("a-0", "a", 3), ("a-1", "a", 3), ("a-2", "a", 3),
    ]  # fmt: skip
    assert chunks[1].metadata.model_extra == {"source": "x"}


def test_overlap_repeats_whole_sentences_from_the_end_of_the_chunk_before() -> None:
    chunks = chunk_document(ARTICLE, chunk_size=24, overlap=8)
    assert [chunk.text for chunk in chunks] == [
        " ".join(SENTENCES[start : start + 3]) for start in (0, 2, 4, 6)
    ]


def test_no_overlap_is_forced_where_the_last_sentence_is_longer_than_it() -> None:
    assert [chunk.text for chunk in chunk_document(ARTICLE, chunk_size=16, overlap=7)] == [
        " ".join(SENTENCES[start : start + 2]) for start in (0, 2, 4, 6, 8)
    ]


@pytest.mark.parametrize("overlap", [0, 3])
def test_a_sentence_longer_than_a_chunk_is_cut_at_tokens_and_nothing_is_lost(overlap: int) -> None:
    words = [f"w{number}" for number in range(50)]
    document = Document(id="a", contents=f"T\nFirst one. {' '.join(words)}. Last one.")
    chunks = chunk_document(document, chunk_size=10, overlap=overlap)
    assert max(count(chunk.text) for chunk in chunks) <= 10
    assert {word for chunk in chunks for word in chunk.text.replace(".", " ").split()} >= set(words)
    repeated = [
        set(first.text.split()) & set(second.text.split())
        for first, second in itertools.pairwise(chunks[1:5])
    ]
    assert [len(shared) for shared in repeated] == [overlap] * 3


def test_chunks_are_slices_of_the_document_that_cover_every_sentence() -> None:
    text = 'One.\n\nTwo two two!  Three three, "three." Four four four four four four.\nFive'
    chunks = chunk_document(Document(id="a", contents=f"T\n{text}"), chunk_size=8, overlap=0)
    assert all(chunk.text in text for chunk in chunks)
    sentences = [text[start:end] for start, end in sentence_spans(text)]
    assert all(any(sentence in chunk.text for chunk in chunks) for sentence in sentences)


def test_a_document_without_text_gives_one_chunk_with_its_title() -> None:
    for contents in ("Only a title", "Only a title\n \n"):
        (chunk,) = chunk_document(Document(id="a", contents=contents), chunk_size=5, overlap=0)
        assert (chunk.title, chunk.text, chunk.metadata.doc_chunks) == ("Only a title", "", 1)


def test_every_corpus_of_a_folder_is_chunked_and_passages_stay_whole(tmp_path: Path) -> None:
    long = "T\n" + " ".join(SENTENCES)
    write_corpus(tmp_path / "in", row("a", long), row("b", "U\nShort."))
    write_corpus(tmp_path / "in", row("p", long), name="wiki")
    config = CONFIG.model_copy(update={"passages": ("wiki",)})
    assert chunk_corpora(tmp_path / "in", tmp_path / "out", config) == {"news": 10, "wiki": 1}
    (passage,) = read_jsonl(tmp_path / "out" / "wiki.jsonl", Chunk)
    assert passage.contents == long
    chunks = list(read_jsonl(tmp_path / "out" / "news.jsonl", Chunk))
    assert [chunk.metadata.doc_id for chunk in chunks] == ["a"] * 9 + ["b"]


@pytest.mark.parametrize(
    ("lines", "error", "message"),
    [
        ((), ArtifactError, "empty corpus"),
        ((row("a", "T\nx"), '{"id": "b"}'), RecordError, r"news\.jsonl, line 2: field 'contents'"),
        ((row("a", "T\nx"), '{"id": "b", "cont'), RecordError, r"news\.jsonl, line 2: .*JSON"),
        ((row("a", "T\nx"), row("a", "U\ny")), RecordError, "line 2: field 'id': 'a' is the id of line 1"),
        ((row("a", "T\nx"), "", row("a", "U\ny")), RecordError, "line 3: field 'id': 'a' is the id of line 1"),
    ],
)  # fmt: skip
def test_a_bad_corpus_is_named_and_leaves_nothing_behind(
    tmp_path: Path, lines: tuple[str, ...], error: type[Exception], message: str
) -> None:
    write_corpus(tmp_path / "in", *lines)
    with pytest.raises(error, match=message):
        chunk_corpora(tmp_path / "in", tmp_path / "out", CONFIG)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_without_a_corpus_and_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="has no corpus"):
        chunk_corpora(tmp_path, tmp_path / "out", CONFIG)
    with pytest.raises(UnknownNameError, match="Did you mean 'words'"):
        chunk_corpora(tmp_path, tmp_path / "out", CONFIG.model_copy(update={"tokenizer": "wrods"}))
    write_corpus(tmp_path / "in", row("a", "T\nx"))
    with pytest.raises(UnknownNameError, match="Did you mean 'news'"):
        chunk_corpora(
            tmp_path / "in", tmp_path / "out", CONFIG.model_copy(update={"passages": ("new",)})
        )


@pytest.mark.parametrize(("chunk_size", "overlap"), [(0, 0), (-5, 0), (10, 10), (10, -1)])
def test_sizes_that_cannot_work_are_refused(chunk_size: int, overlap: int) -> None:
    with pytest.raises(ValidationError):
        ChunkConfig(
            chunker="sentences",
            chunk_size=chunk_size,
            overlap=overlap,
            tokenizer="words",
            passages=(),
            variants={},
        )


@pytest.mark.slow
@pytest.mark.realdata
def test_gold_facts_of_multihoprag_stay_inside_one_chunk_of_200_tokens(real_data: Path) -> None:
    folder = real_data / "multihoprag"
    with gzip.open(folder / "corpus.jsonl.gz") as lines:
        articles = [json.loads(line) for line in lines]
    passages = {}
    for article in articles:
        document = Document(id=article["doc_id"], contents=f"{article['title']}\n{article['body']}")
        chunks = chunk_document(document, chunk_size=200, overlap=0)
        passages[document.id] = ["".join(chunk.text.split()) for chunk in chunks]
    with gzip.open(folder / "queries.jsonl.gz") as lines:
        facts = [fact for line in lines for fact in json.loads(line)["evidence_list"] or ()]
    whole = [
        any("".join(fact["fact"].split()) in text for text in passages[fact["doc_id"]])
        for fact in facts
    ]
    assert len(whole) > 900
    assert sum(whole) >= 0.99 * len(whole)


def variants(**by_name: dict[str, Any]) -> ChunkConfig:
    return ChunkConfig.model_validate(CONFIG.model_dump() | {"variants": by_name})


def test_a_variant_is_a_corpus_of_its_own_cut_another_way(tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "in" / "news.jsonl",
        [Document(id="a", contents=f"T\n{'One two three four. ' * 9}")],
    )
    config = variants(
        news_5={"corpus": "news", "chunker": "sentences", "chunk_size": 5, "overlap": 0}
    )
    counts = chunk_corpora(tmp_path / "in", tmp_path / "out", config)
    assert counts == {"news": 5, "news_5": 9}
    chunks = {name: list(read_jsonl(tmp_path / "out" / f"{name}.jsonl", Chunk)) for name in counts}
    assert {chunk.metadata.doc_id for chunk in chunks["news_5"]} == {"a"}
    assert chunk_corpora(tmp_path / "in", tmp_path / "again", CONFIG) == {"news": 5}
    assert list(read_jsonl(tmp_path / "again" / "news.jsonl", Chunk)) == chunks["news"]


def test_a_variant_of_nothing_or_with_the_name_of_a_corpus_is_refused(tmp_path: Path) -> None:
    for name in ("news", "wiki"):
        write_jsonl(tmp_path / f"{name}.jsonl", [Document(id="a", contents="T\nOne.")])
    cut = {"chunker": "sentences", "chunk_size": 5, "overlap": 0}
    with pytest.raises(UnknownNameError, match=r"chunk\.variants\.short.* Did you mean 'news'"):
        chunk_corpora(tmp_path, tmp_path / "out", variants(short=cut | {"corpus": "new"}))
    with pytest.raises(ConfigError, match="there is a corpus 'wiki'"):
        chunk_corpora(tmp_path, tmp_path / "out", variants(wiki=cut | {"corpus": "news"}))
    passages = variants(short=cut | {"corpus": "wiki"}).model_copy(update={"passages": ("wiki",)})
    with pytest.raises(ConfigError, match="'wiki' is passages already"):
        chunk_corpora(tmp_path, tmp_path / "out", passages)
    with pytest.raises(ValidationError, match="overlap 5 must be below chunk_size 5"):
        variants(short=cut | {"corpus": "news", "overlap": 5})
    assert not (tmp_path / "out").exists()


def test_a_slice_of_a_long_sentence_never_begins_with_a_combining_mark() -> None:
    letters = Tokenizer(WordLevel({"e": 0, "\u0301": 1, "\u0302": 2, "?": 3}, "?"))
    letters.pre_tokenizer = Split("", "isolated")
    document = Document(id="a", contents="Title\n" + "ee\u0301\u0302" * 20)
    cutting = Cutting(chunker="sentences", chunk_size=7, overlap=0)
    texts = [chunk.text for chunk in cut_documents([document], HfCounter(letters), cutting)]
    assert "".join(texts) == document.text
    assert {text[0] for text in texts} == {"e"}
    assert max(map(len, texts)) <= 7
