"""One model evaluated over the real retrieval server; the model is an endpoint that follows a rule."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.agent.rollout import AgentConfig
from deepsearch_rl.errors import ArtifactError, EndpointError, UnknownNameError
from deepsearch_rl.evaluation.plan import EvaluateConfig, Evaluation, SetPlan, plan_runs
from deepsearch_rl.evaluation.run import checkpoint_name, evaluate_model
from deepsearch_rl.files import read_jsonl, write_json, write_jsonl
from deepsearch_rl.records import Chunk, ChunkMetadata, Question, QuestionMetadata, Trajectory
from deepsearch_rl.retrieval.build import build_index
from deepsearch_rl.retrieval.manifest import IndexConfig
from deepsearch_rl.retrieval.quality import DatasetConfig
from deepsearch_rl.retrieval.server.launch import RetrievalConfig
from deepsearch_rl.serving.launch import ServingConfig
from tests.evaluation.chat import KEY, says, searches, serve_chat

TOWNS = {"Ada Holt": "Stoke", "Ben Ide": "Burslem", "Cy Jones": "Hanley", "Dee Kerr": "Longton"}
INDEX = IndexConfig.model_validate(
    {
        "bm25": {"engine": "builtin", "k1": 0.9, "b": 0.4, "fields": {"contents": 1.0}},
        "encoder": {"name": "tfidf_svd", "dimension": 4, "fit_rows": 1000, "max_terms": 1000},
        "encoding": {"engine": "local", "dtype": "float32", "block_rows": 4096, "ray": None},
        "vectors": {"kind": "flat"},
        "fusion": {
            "depth": 10,
            "source_depth": 5,
            "unlearned": "reciprocal_ranks",
            "rrf_k": 60,
            "bm25_weight": 1.0,
            "dense_weight": 0.5,
            "learning": None,
        },
    }
)


def fact(person: str) -> str:
    return f"{person} was born in {TOWNS[person]}."


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four passages with an index over them, and two question sets of one question per passage."""
    root = tmp_path_factory.mktemp("data")
    chunks = [
        Chunk(
            id=f"d{number}-0",
            contents=f"{person}\n{fact(person)}",
            metadata=ChunkMetadata(doc_id=f"d{number}", doc_chunks=1, doc_chunk_id=0),
        )
        for number, person in enumerate(TOWNS)
    ]
    write_jsonl(root / "chunks" / "world.jsonl", chunks)
    build_index(root / "chunks" / "world.jsonl", root / "index" / "world", INDEX, seed=0)
    for name in ("multihoprag", "musique"):
        questions = [
            Question(
                id=f"{name}-{number}",
                question=f"Where was {person} born?",
                golden_answers=(town,),
                metadata=QuestionMetadata.model_validate(
                    {
                        "question_type": "1_hop",
                        "generated": name == "multihoprag",
                        "evidence_list": [{"doc_id": f"d{number}", "fact": fact(person)}],
                    }
                ),
            )
            for number, (person, town) in enumerate(TOWNS.items())
        ]
        write_jsonl(root / "questions" / name / "val.jsonl", questions)
    return root


def setting(base_url: str, sets: dict[str, SetPlan]) -> Evaluation:
    return Evaluation(
        evaluate=EvaluateConfig(split="val", temperature=0.7, sets=sets, draws=100),
        agent=AgentConfig(
            protocol="function_calling",
            prompt="tiny",
            max_searches=2,
            max_turns=3,
            max_tokens=20,
            context_tokens=2000,
            timeout_s=20,
            concurrency=4,
        ),
        retrieval=RetrievalConfig(
            retriever="bm25",
            top_k=2,
            window_ms=0,
            max_batch=32,
            max_pending=64,
            cache_entries=100,
            pages=None,
            reranker=None,
            online=None,
            startup_timeout_s=60,
        ),
        serving=ServingConfig.model_validate(
            {
                "backend": "remote",
                "remote": {"base_url": base_url, "model": "scripted", "api_key_variable": "MODEL_KEY_OF_THE_TEST"},
            }
        ),
        datasets={"multihoprag": DatasetConfig(corpus="world"), "musique": DatasetConfig(corpus="world")},
        chunk_size=48,
        seed=0,
    )


def reads(body: dict[str, Any]) -> dict[str, Any]:
    """Search once, then answer with the town of the best passage; without a tool, guess."""
    messages = body["messages"]
    if messages[-1]["role"] == "tool":
        return says(f"<answer> {re.findall('born in (.*?)[.]', messages[-1]['content'])[0]}</answer>")
    return searches(messages[-1]["content"][10:-6]) if "tools" in body else says("<answer> Stoke</answer>")


SETS = {
    "multihoprag": SetPlan(questions=None, samples=2, greedy=3, controls=4),
    "musique": SetPlan(questions=2, samples=1, greedy=0, controls=0),
}


@pytest.mark.slow
def test_every_set_is_answered_over_the_real_retrieval_server(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY_OF_THE_TEST", KEY)
    out, work = tmp_path / "evaluate" / "sft", tmp_path / "work"
    with serve_chat(reads) as chat:
        plan = setting(chat.endpoint.base_url, SETS)
        found = evaluate_model("sft", tmp_path / "model", plan, data, out, work)
        asked = len(chat.requests)
        again = evaluate_model("sft", tmp_path / "model", plan, data, tmp_path / "again", work)
        assert len(chat.requests) == asked  # a repeated run goes on from its log, here: to the end
    assert again == found

    main, greedy, musique = found.rows
    assert [(row.dataset, row.temperature, row.n, row.samples, row.f1) for row in found.rows] == [
        ("multihoprag", 0.7, 4, 2, 1.0),
        ("multihoprag", 0.0, 3, 1, 1.0),
        ("musique", 0.7, 2, 1, 1.0),
    ]
    assert (main.generated, musique.generated) == (True, False)
    assert (main.mean_rounds, main.mean_tool_calls, main.failures, main.chunk_size) == (2.0, 1.0, {}, 48)
    assert {name: (control.n, control.f1) for name, control in main.controls.items()} == {
        "no_search": (4, 0.25),
        "gold_passage": (4, 1.0),
    }
    assert (greedy.controls, main.constant.f1) == ({}, 0.25)

    temperatures = Counter(body["temperature"] for body in chat.requests)
    assert temperatures == {0.7: 4 * 2 * 2 + 4 + 4 + 2 * 2, 0.0: 3 * 2}
    drawn = {body["seed"] for body in chat.requests if body["messages"][1]["content"] == "Where was Ada Holt born?"}
    assert len(drawn) == 3  # two samples of one set and one of the other; greedy and controls repeat the first
    searched = list(read_jsonl(out / "multihoprag.search.t0.7.jsonl", Trajectory))
    assert [rollout.id for rollout in searched] == [f"multihoprag-{q}#{sample}" for q in range(4) for sample in (0, 1)]
    assert all(rollout.retrievals[0].chunk_ids[0] == f"d{rollout.question_id[-1]}-0" for rollout in searched)
    assert not any(KEY in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.slow
def test_an_endpoint_that_is_gone_stops_the_evaluation_and_leaves_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY_OF_THE_TEST", KEY)
    with serve_chat(lambda _: 503) as chat:
        plan = setting(chat.endpoint.base_url, {"musique": SETS["musique"]})
        with pytest.raises(EndpointError, match="in a row"):
            evaluate_model("sft", tmp_path, plan, data, tmp_path / "out", tmp_path / "work")
    assert not (tmp_path / "out").exists()


def test_an_unknown_set_names_the_nearest_and_an_empty_one_is_refused(data: Path, tmp_path: Path) -> None:
    plan = setting("http://127.0.0.1:9/v1", {"musiqe": SETS["musique"]})
    with pytest.raises(UnknownNameError, match="Did you mean 'musique'"):
        evaluate_model("sft", tmp_path, plan, data, tmp_path / "out", tmp_path / "work")
    (tmp_path / "questions" / "musique").mkdir(parents=True)
    (tmp_path / "questions" / "musique" / "val.jsonl").touch()
    with pytest.raises(ArtifactError, match="holds no question"):
        evaluate_model(
            "sft",
            tmp_path,
            setting("http://127.0.0.1:9/v1", {"musique": SETS["musique"]}),
            tmp_path,
            tmp_path / "out",
            tmp_path / "work",
        )


def test_the_gold_passage_control_needs_known_evidence() -> None:
    unknown = [Question(id="q", question="Where?", golden_answers=("Stoke",))]
    plan = SetPlan(questions=None, samples=3, greedy=0, controls=1)
    assert [run.condition for run in plan_runs("musique", unknown, plan, 0.7)] == ["search", "no_search"]


def test_a_checkpoint_is_named_by_its_folder_and_the_step_that_was_kept(tmp_path: Path) -> None:
    assert checkpoint_name(tmp_path) == str(tmp_path)
    write_json(tmp_path / "manifest.json", {"best_step": 30})
    assert checkpoint_name(tmp_path) == f"{tmp_path}, step 30"
