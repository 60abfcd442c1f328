"""What tests of more than one source share."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def multihoprag_repository(tmp_path: Path) -> Path:
    """A folder laid out as the repository yixuantt/MultiHopRAG: two configurations declared in the card."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: MultiHopRAG\n  data_files: MultiHopRAG.json\n"
        "- config_name: corpus\n  data_files: corpus.json\n---\n"
    )
    about = {"source": "The Verge", "published_at": "2023-09-28T12:00:00+00:00", "author": None}
    articles = [
        about | {"title": f"T{number}", "body": f"Fact {number}.\n\nMore."} for number in range(3)
    ]
    facts = [about | {"title": "T2", "fact": "Fact 2."}]
    queries = [
        {
            "query": f"Q{number}?",
            "answer": "Yes",
            "question_type": "inference_query",
            "evidence_list": facts,
        }
        for number in range(3)
    ]
    null = {
        "query": "Q?",
        "answer": "Insufficient information.",
        "question_type": "null_query",
        "evidence_list": [],
    }
    (folder / "corpus.json").write_text(json.dumps(articles))
    (folder / "MultiHopRAG.json").write_text(json.dumps([*queries, null]))
    return folder
