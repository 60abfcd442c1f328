"""Our sentence chunker beside chonkie's, in speed and in what retrieval finds; and one long document as a stream.

All get the same texts, the same tokenizer, the same chunk size and no overlap, in alternating rounds, in one process.
Speed is CPU seconds from the text to the finished chunk records. Two tokenizers: the regular expression of ``words``,
and a WordPiece tokenizer of BERT's kind trained here on the texts. ``chonkie alone`` is its RecursiveChunker with the
tokenizer handed to it, without our exact offsets and records. Retrieval: BM25 over the chunks of MultiHop-RAG's
articles, official scores of the questions with known evidence. Needs the development dependencies.
"""

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from chonkie import RecursiveChunker
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from benchmarks.data import DATA, chunk_config, gzip_rows, read_documents, read_questions
from benchmarks.measure import alternate, grown_memory, parse_options, publish, timed
from benchmarks.ranking import FIELDED, index_config
from deepsearch_rl.corpora.chonkie_spans import PieceTokenizer
from deepsearch_rl.corpora.chunking import CHUNKERS, chunk_corpora, cut_documents
from deepsearch_rl.corpora.token_counts import HfCounter, TokenCounter, WordCounter
from deepsearch_rl.files import write_jsonl
from deepsearch_rl.records import Document, Question
from deepsearch_rl.retrieval.build import build_index
from deepsearch_rl.retrieval.quality import measure, with_gold
from deepsearch_rl.retrieval.searcher import open_index

CHUNK_SIZES = (256, 128)
"""Tokens; speed is measured with the first."""
STREAMS_MB = (5, 25, 50)
CUTOFFS = (4, 10)


def _read_novels(folder: Path, count: int | None) -> list[Document]:
    rows = list(gzip_rows(folder / "graphrag_bench" / "corpus_novel.jsonl.gz"))[:count]
    texts = [max(map(str, row.values()), key=len) for row in rows]
    return [Document(id=str(number), contents=f"Novel {number}\n{text}") for number, text in enumerate(texts)]


def train_tokenizer(documents: Sequence[Document]) -> Tokenizer:
    """Return a WordPiece tokenizer with 30,000 entries, normalised and split as BERT's are."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=30_000, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator((document.text for document in documents), trainer)
    return tokenizer


def speed_row(
    name: str, documents: Sequence[Document], tokenizer: Tokenizer | None, size: int, rounds: int
) -> list[str]:
    """Return the million tokens per CPU second of every chunker, medians over rounds with nothing remembered."""

    def new_counter() -> TokenCounter:
        return WordCounter() if tokenizer is None else HfCounter(tokenizer)

    def chunk(chunker: str) -> Callable[[], object]:
        return lambda: sum(1 for _ in cut_documents(documents, new_counter(), chunk_config(chunker, size)))

    def chonkie_alone() -> None:
        chunker = RecursiveChunker(tokenizer=tokenizer or PieceTokenizer(WordCounter()), chunk_size=size)
        for document in documents:
            chunker.chunk(document.text)

    chunk(CHUNKERS[0])()  # tables are made once per process
    seconds = alternate({**{name: chunk(name) for name in CHUNKERS}, "chonkie alone": chonkie_alone}, rounds)
    million = sum(sum(1 for _ in new_counter().spans(document.text)) for document in documents) / 1e6
    rates = [f"{million / statistics.median(values):.2f}" for values in seconds.values()]
    return [name, "words" if tokenizer is None else "WordPiece", f"{million:.2f}", *rates]


def quality_row(chunker: str, documents: Sequence[Document], questions: Sequence[Question], size: int) -> list[object]:
    """Return the number of chunks, their mean length without title, and BM25's official scores over them."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_jsonl(root / "corpora" / "news.jsonl", documents)
        [count] = chunk_corpora(root / "corpora", root / "chunks", chunk_config(chunker, size)).values()
        build_index(root / "chunks" / "news.jsonl", root / "index", index_config(FIELDED), seed=0)
        searcher = open_index(root / "index", root / "chunks" / "news.jsonl", "bm25")
        scores = measure(searcher, with_gold(questions), CUTOFFS)
    words = sum(1 for document in documents for _ in WordCounter().spans(document.text)) / count
    return [chunker, size, count, f"{words:.0f}", *(f"{scores[name]:.3f}" for name in scores if name != "n")]


def stream_row(documents: Sequence[Document], size: int, megabytes: int) -> list[object]:
    """Chunk one document of so many megabytes from file to file; return its chunks, CPU seconds and memory."""
    text = "\n\n".join(document.text for document in documents).encode()
    size_bytes = megabytes * 1_000_000
    body = (text * (size_bytes // len(text) + 1))[:size_bytes].decode(errors="ignore")
    with tempfile.TemporaryDirectory() as folder:
        corpora = Path(folder, "corpora")
        write_jsonl(corpora / "long.jsonl", [Document(id="long", contents=f"A long document\n{body}")])
        del body, text
        with grown_memory() as grown_mb:
            config = chunk_config(CHUNKERS[0], size)
            cpu_s, counts = timed(lambda: chunk_corpora(corpora, Path(folder, "chunks"), config))
        return [megabytes, counts["long"], f"{cpu_s:.2f}", f"{grown_mb[0]:.0f}"]


def main() -> None:
    """Print the three tables."""
    options = parse_options(
        __doc__,
        data=(DATA, "folder of the real data sets"),
        rounds=(5, "of all chunkers in turn; medians are shown"),
        quick=(False, "60 articles, one novel, one round, a document of 5 MB"),
    )
    size, rounds = CHUNK_SIZES[0], 1 if options.quick else options.rounds
    folder = options.data / "multihoprag"
    articles = list(read_documents(folder))[: 60 if options.quick else None]
    novels = _read_novels(options.data, 1 if options.quick else None)
    texts = {f"MultiHop-RAG, {len(articles)} articles": articles, f"GraphRAG-Bench, {len(novels)} novels": novels}
    tokenizers = (None, train_tokenizer([*articles, *novels]))
    speeds = [speed_row(name, texts[name], tokenizer, size, rounds) for tokenizer in tokenizers for name in texts]
    header = ("text", "tokenizer", "million tokens", *(f"`{name}`, M/s" for name in CHUNKERS), "chonkie alone, M/s")
    publish(options, "chunking speed", header, speeds)
    questions = list(read_questions(folder, ["queries"], articles))
    qualities = [quality_row(name, articles, questions, size) for size in CHUNK_SIZES for name in CHUNKERS]
    metrics = ("hits@4", "evidence recall@4", "hits@10", "evidence recall@10", "MRR@10", "MAP@10")
    publish(options, "chunking quality", ("chunker", "size", "chunks", "mean tokens", *metrics), qualities)
    sizes_mb = [5] if options.quick else STREAMS_MB
    streams = [stream_row([*articles, *novels], size, megabytes) for megabytes in sizes_mb]
    publish(options, "chunking stream", ("MB", "chunks", "CPU s", "RssAnon growth, MB"), streams)


if __name__ == "__main__":
    main()
