"""The learnt hybrid on MultiHop-RAG's articles and questions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import Document, Question
from deepsearch_rl.data.chunking import ChunkConfig, chunk_corpora
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.manifest import IndexConfig
from deepsearch_rl.search.ranking import LearningConfig
from tests.data.real_news import read_rows

LEARNING = LearningConfig(split="train", questions=1000, ridge=0.001, folds=5)
QUESTIONS = 150


def documents(folder: Path) -> Iterator[Document]:
    for row in read_rows(folder / "corpus.jsonl.gz"):
        metadata = {"source": row["source"], "published_at": row["published_at"]}
        yield Document(
            id=row["doc_id"], contents=f"{row['title']}\n{row['body']}", metadata=metadata
        )


@pytest.mark.nightly
@pytest.mark.realdata
def test_on_questions_held_out_the_hybrid_ranks_better_than_fielded_bm25(
    real_data: Path, tmp_path: Path, index_config: IndexConfig
) -> None:
    folder = real_data / "multihoprag"
    known = [row for row in read_rows(folder / "queries.jsonl.gz") if row["evidence_list"]][
        :QUESTIONS
    ]
    questions = [
        Question.model_validate(
            {
                "id": row["id"],
                "question": row["query"],
                "golden_answers": [row["answer"]],
                "metadata": {"evidence_list": row["evidence_list"]},
            }
        )
        for row in known
    ]
    values = index_config.model_dump()
    values["bm25"]["fields"] = {"title": 1.0, "source": 1.0, "date": 1.0, "body": 1.0}
    values["encoder"]["dimension"] = 64
    values["fusion"] |= {"depth": 100, "source_depth": 30}
    write_jsonl(tmp_path / "corpora" / "news.jsonl", documents(folder))
    chunked = ChunkConfig(
        chunker="sentences", chunk_size=256, overlap=0, tokenizer="words", passages=(), variants={}
    )
    chunk_corpora(tmp_path / "corpora", tmp_path / "chunks", chunked)
    values["fusion"]["learning"] = LEARNING.model_dump()
    chunks = tmp_path / "chunks" / "news.jsonl"
    config = IndexConfig.model_validate(values)
    learnt = build_index(chunks, tmp_path / "index", config, seed=0, questions=questions)
    assert learnt.fusion_weights is not None
    assert learnt.fusion_weights.ranking == "learned"
    held_out = learnt.fusion_weights.held_out
    for metric in ("mrr@10", "map@10"):
        assert held_out["learned"][metric] > held_out["bm25"][metric] + 0.05
