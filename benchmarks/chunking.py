"""Our sentence chunker beside chonkie's, in speed and in what retrieval finds.

    .venv/bin/python -m benchmarks.chunking
    .venv/bin/python -m benchmarks.chunking --quick     # 60 articles, one novel, one round

All get the same texts, the same tokenizer, the same chunk size and no overlap, in alternating
rounds, in one process. Speed is CPU seconds from the text to the finished chunk records. Two
tokenizers: the regular expression of ``words``, and a WordPiece tokenizer of BERT's kind trained
here on the texts. Retrieval: BM25 over the chunks of MultiHop-RAG's articles, official scores of
the questions with known evidence. Needs the development dependencies.
"""

import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from benchmarks.data import (
    DATA,
    chunk_config,
    chunk_documents,
    gzip_rows,
    index_config,
    params_section,
    read_documents,
    read_questions,
)
from benchmarks.measure import (
    median_seconds,
    parse_options,
    publish,
)
from deepsearch_rl.core.records import Document, Question
from deepsearch_rl.data.chunking import CHUNKERS, cut_documents
from deepsearch_rl.data.token_counts import HfCounter, TokenCounter, WordCounter
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.quality import measure, with_gold
from deepsearch_rl.search.searcher import open_index

CHUNK_SIZES = (256, 128)
"""Tokens; speed is measured with the first."""
CUTOFFS = (4, 10)
FIELDED = {
    **params_section("index")["bm25"],
    "fields": {"title": 1.0, "source": 1.0, "date": 1.0, "body": 1.0},
}


def _read_novels(folder: Path, count: int | None) -> list[Document]:
    rows = list(gzip_rows(folder / "graphrag_bench" / "corpus_novel.jsonl.gz"))[:count]
    novels: list[Document] = []
    for number, row in enumerate(rows):
        # The columns have different names in copies; the text is by far the longest.
        text = max(map(str, row.values()), key=len)
        novels.append(Document(id=str(number), contents=f"Novel {number}\n{text}"))

    return novels


def train_tokenizer(documents: Sequence[Document]) -> Tokenizer:
    """Return a WordPiece tokenizer with 30,000 entries, normalised and split as BERT's are."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=30_000, special_tokens=["[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator((document.text for document in documents), trainer)
    return tokenizer


def speed_row(
    name: str, documents: Sequence[Document], tokenizer: Tokenizer | None, rounds: int
) -> list[str]:
    """Return the million tokens per CPU second of every chunker, medians over rounds with nothing remembered."""

    def new_counter() -> TokenCounter:
        return WordCounter() if tokenizer is None else HfCounter(tokenizer)

    def chunk(chunker: str) -> Callable[[], object]:
        config = chunk_config(chunker, CHUNK_SIZES[0])
        return lambda: sum(1 for _ in cut_documents(documents, new_counter(), config))

    # Tables are made once per process.
    chunk(CHUNKERS[0])()
    seconds = median_seconds({name: chunk(name) for name in CHUNKERS}, rounds)
    million = _count_tokens(documents, new_counter()) / 1e6
    rates = [f"{million / value:.2f}" for value in seconds.values()]
    return [name, "words" if tokenizer is None else "WordPiece", f"{million:.2f}", *rates]


def _count_tokens(documents: Sequence[Document], counter: TokenCounter) -> int:
    return sum(len(list(counter.spans(document.text))) for document in documents)


def quality_row(
    chunker: str, documents: Sequence[Document], questions: Sequence[Question], size: int
) -> list[object]:
    """Return the number of chunks, their mean length without title, and BM25's official scores over them."""
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder, "index")
        chunks = chunk_documents(documents, Path(folder), chunker, size)
        count = build_index(chunks, index, index_config(bm25=FIELDED), seed=0).rows
        scores = measure(open_index(index, chunks, "bm25"), with_gold(questions), CUTOFFS)

    words = _count_tokens(documents, WordCounter()) / count
    scores.pop("n")
    return [chunker, size, count, f"{words:.0f}", *(f"{score:.3f}" for score in scores.values())]


def main() -> None:
    """Print both tables."""
    options = parse_options(
        __doc__,
        data=(DATA, "folder of the real data sets"),
        rounds=(5, "of all chunkers in turn; medians are shown"),
        quick=(False, "60 articles, one novel, one round"),
    )
    rounds = 1 if options.quick else options.rounds
    folder = options.data / "multihoprag"
    articles = list(read_documents(folder))[: 60 if options.quick else None]
    novels = _read_novels(options.data, 1 if options.quick else None)
    texts = {
        f"MultiHop-RAG, {len(articles)} articles": articles,
        f"GraphRAG-Bench, {len(novels)} novels": novels,
    }
    speeds: list[list[str]] = []
    for tokenizer in (None, train_tokenizer([*articles, *novels])):
        for name, documents in texts.items():
            speeds.append(speed_row(name, documents, tokenizer, rounds))
    header = ("text", "tokenizer", "million tokens", *(f"`{name}`, M/s" for name in CHUNKERS))
    publish(options, "chunking speed", header, speeds)

    questions = list(read_questions(folder, ["queries"], articles))
    qualities: list[list[object]] = []
    for size, name in product(CHUNK_SIZES, CHUNKERS):
        qualities.append(quality_row(name, articles, questions, size))
    metrics = ("hits@4", "evidence recall@4", "hits@10", "evidence recall@10", "MRR@10", "MAP@10")
    publish(
        options,
        "chunking quality",
        ("chunker", "size", "chunks", "mean tokens", *metrics),
        qualities,
    )


if __name__ == "__main__":
    main()
