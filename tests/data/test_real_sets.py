"""The real question sets from their folder: which rows a teacher can plan, and their corpora without a preparation."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.records import Document, Question
from deepsearch_rl.data.download import (
    DownloadConfig,
    FolderConfig,
    download,
    open_corpora,
    read_question_sets,
)
from deepsearch_rl.search.gold import without_space

pytestmark = pytest.mark.realdata


def read(
    real_data: Path, out: Path, set_: str, *sources: dict[str, Any]
) -> tuple[dict[str, Document], dict[str, list[Question]]]:
    """The documents and the questions by split that the stage download writes."""
    sources = tuple(
        source | {"path": f"{set_}/{source['path']}.jsonl.gz", "format": set_, "shuffle_seed": 1}
        for source in sources
    )
    folder = {
        "root": real_data,
        "questions": {set_: sources},
        "corpora": {set_: {"format": "flashrag", "path": f"{set_}/corpus.jsonl.gz"}},
    }
    config = DownloadConfig.model_validate({"source": "folder", "folder": folder})
    counts = download(config, 0, out, out)
    documents = {document.id: document for document in read_jsonl(out / f"{set_}.jsonl", Document)}
    splits = {
        name.partition("/")[2]: list(read_jsonl(out / f"{name}.jsonl", Question))
        for name in counts
        if "/" in name
    }
    return documents, splits


def test_hotpotqas_bridge_questions_with_their_gold_come_from_two_files(
    real_data: Path, tmp_path: Path
) -> None:
    bridge = {"question_type": "bridge", "gold_in_corpus": "all"}
    documents, splits = read(
        real_data,
        tmp_path,
        "hotpotqa",
        {"path": "dev", "where": bridge, "splits": {"val": 200, "dev": 60, "train": None}},
        {"path": "train100", "where": {"question_type": "bridge"}, "splits": {"train": None}},
    )
    assert {name: len(questions) for name, questions in splits.items()} == {
        "val": 200, "dev": 60, "train": 1368 - 260 + 78,
    }  # fmt: skip
    assert len(documents) == 19_379
    for question in [one for questions in splits.values() for one in questions]:
        metadata = question.metadata
        titles = [documents[name].title for name in metadata.supporting_doc_ids or ()]
        assert sorted(titles) == sorted(metadata.supporting_titles or ())
        assert len(titles) == 2


def test_decompositions_of_musique_and_triples_of_2wiki_are_read(
    real_data: Path, tmp_path: Path
) -> None:
    whole = {"path": "dev", "where": {"gold_in_corpus": "all"}, "splits": {"val": None}}
    documents, splits = read(real_data, tmp_path, "musique", whole)
    steps = [question.metadata.gold_steps or () for question in splits["val"]]
    assert Counter(map(len, steps)) == {2: 235, 3: 28, 4: 17}
    assert len(documents) == 7862
    _, splits = read(real_data, tmp_path, "2wikimultihopqa", whole)
    found = Counter(one.metadata.question_type for one in splits["val"] if one.metadata.gold_steps)
    assert found == {
        "compositional": 44, "comparison": 41, "bridge_comparison": 29, "inference": 5,
    }  # fmt: skip
    assert len(splits["val"]) == 269


def test_multihoprag_with_its_own_ids_and_the_questions_whose_evidence_is_known(
    real_data: Path,
) -> None:
    known = {"format": "multihoprag", "path": "multihoprag", "shuffle_seed": None,
             "where": {"evidence_known": True}, "splits": {"val": None}}  # fmt: skip
    corpus = {"format": "multihoprag", "path": "multihoprag"}
    config = FolderConfig.model_validate(
        {"root": real_data, "questions": {"m": [known]}, "corpora": {"m": corpus}}
    )
    documents = {document.id: document for document in open_corpora(config)["m"]}
    questions = read_question_sets(config)["m"]["val"]
    assert (len(documents), len(questions)) == (609, 619)
    facts = [fact for one in questions for fact in one.metadata.evidence_list or ()]
    assert all(
        without_space(fact.fact) in without_space(documents[fact.doc_id or ""].text)
        for fact in facts
    )
    assert documents["mhr_0000"].title.startswith("200+ of the best deals")
    assert questions[0].id == "mhr_q0001"
