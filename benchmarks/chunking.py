"""Time chunking beside chonkie's RecursiveChunker at equal settings, and one long document as a stream.

Both get the same texts, the same tokenizer, the same chunk size and no overlap, in turn, in one process; what is
compared is CPU seconds from the text to the finished chunk records. Two tokenizers: the regular expression of
``words``, and a WordPiece tokenizer of BERT's kind trained here on the texts. Needs the development dependencies.
"""

import argparse
import contextlib
import gc
import gzip
import json
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chonkie import RecursiveChunker
from chonkie.tokenizer import Tokenizer as ChonkieTokenizer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from deepsearch_rl.corpora.chunking import ChunkConfig, chunk_corpora, chunk_documents
from deepsearch_rl.corpora.token_counts import HfCounter, TokenCounter, WordCounter
from deepsearch_rl.files import write_jsonl
from deepsearch_rl.records import Document

WORD = re.compile(r"\w+|[^\w\s]")
METADATA = ("source", "published_at", "category", "author", "url")


class WordsForChonkie(ChonkieTokenizer):
    """The tokenizer ``words`` as chonkie wants one."""

    def __repr__(self) -> str:
        return "WordsForChonkie()"

    def tokenize(self, text: str) -> list[str]:
        """The words."""
        return WORD.findall(text)

    encode = tokenize

    def decode(self, tokens: Sequence[str]) -> str:
        """The words with blanks between them."""
        return " ".join(tokens)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; times are CPU seconds."""

    text: str
    tokenizer: str
    tokens: int
    chonkie_s: float
    first_s: float
    again_s: float

    def markdown(self) -> str:
        """The line in Markdown."""
        million = self.tokens / 1e6
        rates = [f"{million / seconds:.2f}" for seconds in (self.chonkie_s, self.first_s, self.again_s)]
        ratios = [f"{self.chonkie_s / seconds:.1f}" for seconds in (self.first_s, self.again_s)]
        return "| " + " | ".join([self.text, self.tokenizer, f"{million:.2f}", *rates, *ratios]) + " |"


def read_documents(folder: Path, quick: bool) -> Iterator[tuple[str, list[Document]]]:
    """Name and documents of each text: MultiHop-RAG's articles and GraphRAG-Bench's novels."""
    with gzip.open(folder / "multihoprag" / "corpus.jsonl.gz") as lines:
        articles = [json.loads(line) for line in lines][: 60 if quick else None]
    yield (
        "MultiHop-RAG, 609 articles" if not quick else "60 articles",
        [
            Document(
                id=article["doc_id"],
                contents=f"{article['title']}\n{article['body']}",
                metadata={name: article[name] for name in METADATA if article.get(name)},
            )
            for article in articles
        ],
    )
    with gzip.open(folder / "graphrag_bench" / "corpus_novel.jsonl.gz") as lines:
        novels = [json.loads(line) for line in lines][: 1 if quick else None]
    yield (
        f"GraphRAG-Bench, {len(novels)} novels",
        [
            Document(id=str(number), contents=f"Novel {number}\n{max(map(str, novel.values()), key=len)}")
            for number, novel in enumerate(novels)
        ],
    )


def train_tokenizer(documents: Sequence[Document]) -> Tokenizer:
    """A WordPiece tokenizer with 30,000 entries, normalised and split as BERT's are."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=30_000, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator((document.text for document in documents), trainer)
    return tokenizer


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    gc.collect()
    started = time.process_time()
    work()
    return time.process_time() - started


def compare(text: str, documents: Sequence[Document], tokenizer: Tokenizer | None, size: int, rounds: int) -> Row:
    """Both chunkers in turn; medians over the rounds, each of which begins with nothing remembered."""

    def counter() -> TokenCounter:
        return WordCounter() if tokenizer is None else HfCounter(tokenizer)

    def ours(counter: TokenCounter) -> None:
        for _ in chunk_documents(documents, counter, size, 0):
            pass

    def theirs(chunker: RecursiveChunker) -> None:
        for body in texts:
            chunker.chunk(body)

    texts = [document.text for document in documents]
    ours(counter())  # tables are made once per process
    times: list[tuple[float, float, float]] = []
    for _ in range(rounds):
        chunker = RecursiveChunker(tokenizer=tokenizer or WordsForChonkie(), chunk_size=size)
        fresh = counter()
        times.append((cpu_s(lambda: theirs(chunker)), cpu_s(lambda: ours(fresh)), cpu_s(lambda: ours(fresh))))  # noqa: B023
    tokens = sum(
        len(WORD.findall(body)) if tokenizer is None else len(tokenizer.encode(body, add_special_tokens=False))
        for body in texts
    )
    name = "words" if tokenizer is None else "WordPiece"
    return Row(text, name, tokens, *(statistics.median(column) for column in zip(*times, strict=True)))


def anonymous_mb() -> float:
    """This process's anonymous memory (RssAnon)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024


@contextlib.contextmanager
def peak_anonymous_mb() -> Iterator[list[float]]:
    """Watch anonymous memory every 5 ms; the list's one entry is its growth at the peak, once the block has ended."""
    before, growth, done = anonymous_mb(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            growth[0] = max(growth[0], anonymous_mb() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield growth
    finally:
        done.set()
        watcher.join()


def stream(documents: Sequence[Document], size: int, megabytes: int) -> str:
    """Chunk one document of so many megabytes from file to file: a line with its chunks, CPU seconds and memory."""
    text = "\n\n".join(document.text for document in documents).encode()
    size_bytes = megabytes * 1_000_000
    body = (text * (size_bytes // len(text) + 1))[:size_bytes].decode(errors="ignore")
    with tempfile.TemporaryDirectory() as folder:
        corpora = Path(folder, "corpora")
        write_jsonl(corpora / "long.jsonl", [Document(id="long", contents=f"A long document\n{body}")])
        del body, text
        gc.collect()
        config = ChunkConfig(chunk_size=size, overlap=0, tokenizer="words", passages=(), variants={})
        started = time.process_time()
        with peak_anonymous_mb() as growth:
            [chunks] = chunk_corpora(corpora, Path(folder, "chunks"), config).values()
        return f"| {megabytes} | {chunks} | {time.process_time() - started:.2f} | {growth[0]:.0f} |"


def show(line: str) -> None:
    """Write a line of a table."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the real data sets")
    parser.add_argument("--chunk-size", type=int, default=256, help="tokens (default 256)")
    parser.add_argument("--rounds", type=int, default=5, help="of both chunkers in turn; medians are shown (default 5)")
    parser.add_argument("--stream-mb", type=int, nargs="*", default=[5, 25, 50], help="sizes of the one long document")
    parser.add_argument("--quick", action="store_true", help="60 articles, one novel, one round, a document of 5 MB")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    texts = list(read_documents(options.data, options.quick))
    everything = [document for _, documents in texts for document in documents]
    show("| text | tokenizer | million tokens | chonkie, M/s | first, M/s | again, M/s | x first | x again |")
    show("|---|---|---:|---:|---:|---:|---:|---:|")
    for tokenizer in (None, train_tokenizer(everything)):
        for name, documents in texts:
            show(compare(name, documents, tokenizer, options.chunk_size, rounds).markdown())
    show("\n| MB of the document | chunks | CPU s | RssAnon growth, MB |")
    show("|---:|---:|---:|---:|")
    for megabytes in [5] if options.quick else options.stream_mb:
        show(stream(everything, options.chunk_size, megabytes))


if __name__ == "__main__":
    main()
