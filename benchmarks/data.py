"""What benchmarks work on: real documents, questions and passages; indexes, queries and rollouts made from them."""

import gzip
import json
import random
import string
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import (
    Chunk,
    ChunkMetadata,
    Document,
    Message,
    Question,
    Retrieval,
    StopReason,
    TokenUsage,
    ToolCall,
    Trajectory,
)
from deepsearch_rl.data.chunking import ChunkConfig, chunk_corpora
from deepsearch_rl.evaluate.f1_row import RowKey
from deepsearch_rl.search.build import IndexSection, build_index
from deepsearch_rl.search.manifest import IndexConfig, read_manifest

DATA = Path("../shared/data")
WORK = Path("work/benchmarks")
METADATA = ("source", "published_at", "category", "author", "url")

# The shape of all-MiniLM-L6
MINILM = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}

# How a model of :func:`write_random_model` encodes
RANDOM_ENCODER = {
    "name": "sentence_transformers", "revision": None, "pooling": "mean", "query_prefix": "", "passage_prefix": "",
    "max_tokens": 512, "batch_tokens": 4096, "threads": 1, "device": "cpu", "dtype": "float32",
}  # fmt: skip

# Agents search with a few key words, people ask in nine.
QUERY_WORDS = (4, 12)


# --- real data
# ------------------------------------------------------------------------------------------------------


def gzip_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a gzipped JSON Lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def read_documents(folder: Path) -> Iterator[Document]:
    """Yield the documents of a question set's corpus."""
    for row in gzip_rows(folder / "corpus.jsonl.gz"):
        title = " ".join(row["title"].split())
        metadata = {name: row[name] for name in METADATA if row.get(name)}
        text = row["body"] if "body" in row else row["text"]
        yield Document(
            id=row.get("doc_id") or row["id"], contents=f"{title}\n{text}", metadata=metadata
        )


def read_questions(
    folder: Path, files: Sequence[str], documents: Iterable[Document]
) -> Iterator[Question]:
    """Yield the questions whose gold evidence is known and wholly in the documents."""
    ids = {document.id for document in documents}
    for row in _question_rows(folder, files):
        metadata: dict[str, Any] = {
            "question_type": row.get("question_type") or row.get("type") or ""
        }
        facts = row.get("evidence_list") or ()
        gold = set(row.get("supporting_doc_ids") or ())
        gold |= {fact["doc_id"] for fact in facts}

        if not gold or not gold <= ids or row.get("gold_in_corpus", "all") != "all":
            continue
        if facts:
            metadata["evidence_list"] = facts
        else:
            metadata["supporting_doc_ids"] = row["supporting_doc_ids"]

        question = {
            "id": row["id"],
            "question": row.get("question") or row["query"],
            "golden_answers": row.get("golden_answers") or [row["answer"]],
            "metadata": metadata,
        }
        yield Question.model_validate(question)


def _question_rows(folder: Path, files: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name in files:
        yield from gzip_rows(folder / f"{name}.jsonl.gz")


def read_steps(folder: Path, files: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Return the steps of MuSiQue's questions, by question: what is asked for, and the document that answers it.

    The answer of step N stands where a later step says #N. Questions of ``train`` have no steps
    here: their documents are not in the order of the steps.
    """
    steps: dict[str, list[tuple[str, str]]] = {}
    for row in _question_rows(folder, [name for name in files if name != "train"]):
        texts: list[str] = []
        answers: list[str] = []
        for step in row.get("question_decomposition") or ():
            text = step["question"].replace(" >> ", " ")
            for number, answer in enumerate(answers, 1):
                text = text.replace(f"#{number}", answer)
            texts.append(text)
            answers.append(step["answer"])

        doc_ids = row.get("supporting_doc_ids") or []
        if texts and len(texts) == len(doc_ids):
            steps[row["id"]] = list(zip(texts, doc_ids, strict=True))

    return steps


def wiki18_passages(least: int = 1) -> list[str]:
    """Return the real wiki-18 passages, and invented ones if they are fewer than ``least``."""
    texts: list[str] = []
    for path in sorted((DATA / "wiki18").glob("*.jsonl.gz")):
        for row in gzip_rows(path):
            texts.append(row["contents"])

    if len(texts) < least:
        texts += _invented_passages(least - len(texts))
    return texts


def _invented_passages(count: int) -> list[str]:
    """Return passages of a title of 2 words and a text of 100, with Zipf's frequencies."""
    rng = random.Random(0)
    words: list[str] = []
    for _ in range(50_000):
        words.append("".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 11))))

    frequencies = [1 / rank for rank in range(1, len(words) + 1)]
    text = rng.choices(words, frequencies, k=102 * count)
    passages: list[str] = []
    for start in range(0, len(text), 102):
        title = " ".join(text[start : start + 2]).title()
        passages.append(f"{title}\n{' '.join(text[start + 2 : start + 102])}")

    return passages


# --- chunks, indexes, queries
# ---------------------------------------------------------------------------------------


def chunk_config(chunker: str, size: int) -> ChunkConfig:
    """Return a chunk section with tokens counted by words and no overlap."""
    return ChunkConfig(
        chunker=chunker, chunk_size=size, overlap=0, tokenizer="words", passages=(), variants={}
    )


def chunk_documents(documents: Iterable[Document], folder: Path, chunker: str, size: int) -> Path:
    """Cut documents into chunks; return their file, ``chunks/documents.jsonl`` of the folder."""
    write_jsonl(folder / "corpora" / "documents.jsonl", documents)
    chunk_corpora(folder / "corpora", folder / "chunks", chunk_config(chunker, size))
    return folder / "chunks" / "documents.jsonl"


def make_chunk(row: int, contents: str) -> Chunk:
    """Return a chunk that is a document of its own."""
    metadata = ChunkMetadata(doc_id=f"p{row}", doc_chunks=1, doc_chunk_id=0)
    return Chunk.model_construct(id=f"p{row}-0", contents=contents, metadata=metadata)


def draw_queries(texts: list[str], seed: int, count: int) -> list[str]:
    """Return random queries, each a run of 4 to 12 words of a passage."""
    rng = random.Random(seed)
    queries: list[str] = []
    for _ in range(count):
        words = rng.choice(texts).split()
        length = rng.randint(*QUERY_WORDS)
        start = rng.randrange(max(1, len(words) - length))
        queries.append(" ".join(words[start : start + length]))

    return queries


def params_section(name: str) -> dict[str, Any]:
    """Return a section of the tiny profile."""
    return yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))[name]


def index_config(**changes: object) -> IndexConfig:
    """Return the tiny profile's index with other values of some fields."""
    return IndexSection.model_validate(params_section("index") | changes).of("passages")


def prepare_index(texts: list[str], folder: Path, config: IndexConfig) -> tuple[Path, Path]:
    """Return index folder and chunk file under ``folder``, built unless an earlier run left the same."""
    chunks_path = folder / "chunks.jsonl"
    index_dir = folder / "index"
    if not index_dir.is_dir() or read_manifest(index_dir).config != config:
        write_jsonl(chunks_path, [make_chunk(row, text) for row, text in enumerate(texts)])
        build_index(chunks_path, index_dir, config, seed=0)
    return index_dir, chunks_path


def write_pages(path: Path, url: str) -> Path:
    """Write the one page that ``/access`` finds, and return its path."""
    path.write_text(json.dumps({"url": url, "contents": "A city."}) + "\n", encoding="utf-8")
    return path


def write_random_model(folder: Path, texts: Iterable[str], shape: dict[str, int]) -> None:
    """Write a BERT with random weights and a tokenizer of 30,522 word pieces learnt from the texts.

    The cost of a forward pass depends on shapes and lengths alone.
    """
    import torch  # noqa: PLC0415 - seconds to import
    from tokenizers import BertWordPieceTokenizer  # noqa: PLC0415
    from transformers import BertConfig, BertModel, BertTokenizerFast  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    pieces = BertWordPieceTokenizer()
    pieces.train_from_iterator(texts, vocab_size=30_522, show_progress=False)
    pieces.save_model(str(folder))
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    BertModel(BertConfig(**shape)).save_pretrained(folder)


# --- rollouts
# -------------------------------------------------------------------------------------------------------


def row_key(model: str, dataset: str, temperature: float, samples: int) -> RowKey:
    """Return the key of a row in the F1 table."""
    return RowKey.model_validate(
        {
            "checkpoint": f"models/tiny/{model}",
            "corpus": "world",
            "prompt": "tiny",
            "top_k": 3,
            "chunk_size": 28,
        }
        | {
            "model": model,
            "dataset": dataset,
            "temperature": temperature,
            "samples": samples,
            "seed": 0,
        }
    )


def make_trajectory(
    question: Question, sample: int, key: RowKey, searches: Sequence[tuple[str, str]], answer: str
) -> Trajectory:
    """Return an answered trajectory of a row. ``searches`` are queries and the texts that they return."""
    messages = [
        Message(role="system", content="Search, then answer."),
        Message(role="user", content=question.question),
    ]
    for number, (query, result) in enumerate(searches):
        call = ToolCall(
            id=f"call_{number}", name="retrieve", arguments=json.dumps({"query": query})
        )
        messages.append(Message(role="assistant", tool_calls=(call,)))
        messages.append(Message(role="tool", content=result, tool_call_id=call.id))

    retrievals: list[Retrieval] = []
    for query, _ in searches:
        chunk_ids = (f"{query}-0", f"{query}-1", f"{query}-2")
        retrievals.append(Retrieval(query=query, chunk_ids=chunk_ids))

    return Trajectory(
        id=f"{question.id}#{sample}",
        question_id=question.id,
        sample=sample,
        question=question.question,
        golden_answers=question.golden_answers,
        model=key.model,
        prompt=key.prompt,
        temperature=key.temperature,
        messages=(*messages, Message(role="assistant", content=f"<answer>{answer}</answer>")),
        retrievals=tuple(retrievals),
        answer=answer,
        stop_reason=StopReason.ANSWERED,
        usage=(TokenUsage(prompt_tokens=900, completion_tokens=40),) * (len(searches) + 1),
    )
