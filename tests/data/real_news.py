"""MultiHop-RAG's real articles and questions, written as the repository on the hub holds them."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CARD = """---
configs:
- config_name: MultiHopRAG
  data_files: MultiHopRAG.json
- config_name: corpus
  data_files: corpus.json
---
"""
QUERY_FIELDS = ("query", "answer", "question_type", "evidence_list")


def read_rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write_repository(
    folder: Path, articles: Iterable[dict[str, Any]], queries: Iterable[dict[str, Any]]
) -> Path:
    """A folder laid out as yixuantt/MultiHopRAG; ids of the copies at hand are left out, as there are none there."""
    folder.mkdir(parents=True)
    articles = [{key: value for key, value in row.items() if key != "doc_id"} for row in articles]
    queries = [{field: row[field] for field in QUERY_FIELDS} for row in queries]
    for row in queries:
        row["evidence_list"] = row["evidence_list"] and [
            {key: value for key, value in fact.items() if key != "doc_id"}
            for fact in row["evidence_list"]
        ]
    (folder / "README.md").write_text(CARD)
    (folder / "corpus.json").write_text(json.dumps(articles))
    (folder / "MultiHopRAG.json").write_text(json.dumps(queries))
    return folder
