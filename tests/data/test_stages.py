"""The two stages from the outside: every profile's sections, and determinism of the files."""

from collections import Counter
from pathlib import Path

import pytest

from deepsearch_rl.core.files import read_jsonl, sha256_file
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.records import Chunk, Question
from deepsearch_rl.data.chunking import ChunkConfig
from deepsearch_rl.data.download import DownloadConfig
from deepsearch_rl.data.sentences import word_spans
from deepsearch_rl.toy.world_questions import WorldConfig, generate
from stages import chunk, download

ROOT = Path(__file__).resolve().parents[2]
PROFILES = [ROOT / "params.yaml", *sorted(ROOT.glob("profiles/*/params.yaml"))]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): sha256_file(path) for path in sorted(folder.rglob("*.jsonl"))
    }


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.parent.name)
def test_every_profile_has_sections_that_fit(path: Path) -> None:
    params = load_profile(path)
    config = params.section("download", DownloadConfig)
    assert params.section("chunk", ChunkConfig).chunk_size >= 1
    assert (config.world if config.source == "world" else config.folder) is not None


@pytest.mark.slow
def test_the_stages_write_the_same_bytes_again_and_chunks_that_fit_a_small_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = load_profile(ROOT / "profiles/smoke/params.yaml")
    for run in ("first", "second"):
        (tmp_path / run).mkdir()
        monkeypatch.chdir(tmp_path / run)
        download.main(params)
        chunk.main(params)
    first = digests(tmp_path / "first")
    assert first == digests(tmp_path / "second")
    assert {name.split("/", 2)[2] for name in first} == {
        "corpora/world.jsonl", "corpora/outworld.jsonl", "chunks/world.jsonl", "chunks/outworld.jsonl",
        "chunks/world_14.jsonl",
        "questions/multihoprag/train.jsonl", "questions/multihoprag/dev.jsonl", "questions/multihoprag/val.jsonl",
        "questions/musique/val.jsonl", "questions/2wikimultihopqa/val.jsonl", "questions/hotpotqa/val.jsonl",
    }  # fmt: skip
    chunks = list(read_jsonl(tmp_path / "first/data/smoke/chunks/world.jsonl", Chunk))
    assert max(sum(1 for _ in word_spans(chunk.contents)) for chunk in chunks) <= 60
    assert len({chunk.id for chunk in chunks}) == len(chunks)
    questions = list(
        read_jsonl(tmp_path / "first/data/smoke/questions/multihoprag/val.jsonl", Question)
    )
    facts = [fact for question in questions for fact in question.metadata.evidence_list or ()]
    assert facts
    assert all(
        any(fact.fact in chunk.text for chunk in chunks if chunk.metadata.doc_id == fact.doc_id)
        for fact in facts
    )


@pytest.mark.slow
def test_the_tiny_world_is_large_enough_to_measure_on_and_has_few_comparisons() -> None:
    params = load_profile(ROOT / "params.yaml")
    world = WorldConfig.model_validate(params.value("download.world"))
    made = generate(world, params.value("seed")).questions
    assert len(made["multihoprag"]["train"]) >= 900
    assert len(made["multihoprag"]["val"]) >= 400
    assert [
        len(made[dataset]["val"]) for dataset in ("musique", "2wikimultihopqa", "hotpotqa")
    ] == [200] * 3
    types = Counter(question.metadata.question_type for question in made["multihoprag"]["val"])
    assert types["comparison"] <= 0.05 * types.total()
    assert 0.1 * types.total() <= types["null"] <= 0.15 * types.total()
