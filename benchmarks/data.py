"""Documents, questions and passages of the real data sets, and models with random weights over them."""

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.measure import gzip_rows
from deepsearch_rl.corpora.chunking import ChunkConfig
from deepsearch_rl.records import Chunk, ChunkMetadata, Document, Question

DATA = Path("../shared/data")
METADATA = ("source", "published_at", "category", "author", "url")
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
"""The shape of all-MiniLM-L6."""


def read_documents(folder: Path) -> Iterator[Document]:
    """Yield the documents of a question set's corpus."""
    for row in gzip_rows(folder / "corpus.jsonl.gz"):
        title = " ".join(row["title"].split())
        metadata = {name: row[name] for name in METADATA if row.get(name)}
        text = row["body"] if "body" in row else row["text"]
        yield Document(id=row.get("doc_id") or row["id"], contents=f"{title}\n{text}", metadata=metadata)


def read_questions(folder: Path, files: Sequence[str], documents: Iterable[Document]) -> Iterator[Question]:
    """Yield the questions whose gold evidence is known and wholly in the documents."""
    ids = {document.id for document in documents}
    for row in (row for name in files for row in gzip_rows(folder / f"{name}.jsonl.gz")):
        facts, gold = row.get("evidence_list") or (), set(row.get("supporting_doc_ids") or ())
        gold |= {fact["doc_id"] for fact in facts}
        if gold and gold <= ids and row.get("gold_in_corpus", "all") == "all":
            evidence = {"evidence_list": facts} if facts else {"supporting_doc_ids": row["supporting_doc_ids"]}
            yield Question.model_validate(
                {
                    "id": row["id"],
                    "question": row.get("question") or row["query"],
                    "golden_answers": row.get("golden_answers") or [row["answer"]],
                    "metadata": {"question_type": row.get("question_type") or row.get("type") or "", **evidence},
                }
            )


def chunk_config(chunker: str, size: int) -> ChunkConfig:
    """Return a chunk section with tokens counted by words and no overlap."""
    return ChunkConfig(chunker=chunker, chunk_size=size, overlap=0, tokenizer="words", passages=(), variants={})


def make_chunk(row: int, contents: str) -> Chunk:
    """Return a chunk that is a document of its own."""
    metadata = ChunkMetadata(doc_id=f"p{row}", doc_chunks=1, doc_chunk_id=0)
    return Chunk.model_construct(id=f"p{row}-0", contents=contents, metadata=metadata)


def wiki18_passages(data: Path = DATA, least: int = 1) -> list[str]:
    """Return the real wiki-18 passages under ``data``; invented ones too where those are fewer than ``least``."""
    paths = sorted((data / "wiki18").glob("*.jsonl.gz"))
    texts = [row["contents"] for path in paths for row in gzip_rows(path)]
    return texts if len(texts) >= least else [*texts, *_invented(random.Random(0), least - len(texts))]


def _invented(rng: random.Random, count: int) -> list[str]:
    """Return passages of a hundred words with Zipf's frequencies."""
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 11))) for _ in range(50_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    texts = (rng.choices(words, weights, k=100) for _ in range(count))
    return [f"{' '.join(text[:2]).title()}\n{' '.join(text)}" for text in texts]


def write_random_model(folder: Path, texts: Iterable[str], shape: dict[str, int], *, scores: bool = False) -> None:
    """Write a BERT with random weights and a tokenizer of 30,522 word pieces learnt from the texts.

    The cost of a forward pass depends on shapes and lengths alone. ``scores``: a cross-encoder with one output.
    """
    import torch  # noqa: PLC0415 - seconds to import
    from tokenizers import BertWordPieceTokenizer  # noqa: PLC0415
    from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    pieces = BertWordPieceTokenizer()
    pieces.train_from_iterator(texts, vocab_size=30_522, show_progress=False)
    pieces.save_model(str(folder))
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    model = (
        BertForSequenceClassification(BertConfig(**shape, num_labels=1)) if scores else BertModel(BertConfig(**shape))
    )
    model.save_pretrained(folder)
