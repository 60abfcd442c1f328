"""One model evaluated over the real retrieval server; the model is an endpoint that follows a rule."""

import re
import shutil
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from deepsearch_rl.chat import prompts as prompts_module
from deepsearch_rl.chat.prompts import load_prompt, served_with
from deepsearch_rl.core.errors import ArtifactError, EndpointError, RecordError, UnknownNameError
from deepsearch_rl.core.files import read_jsonl, write_json, write_jsonl
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.records import Question, QuestionMetadata, Trajectory
from deepsearch_rl.data.chunking import ChunkConfig, ChunkVariant
from deepsearch_rl.evaluate.evaluate_model import checkpoint_name, evaluate_model
from deepsearch_rl.evaluate.evaluation_plan import (
    EvaluateConfig,
    Evaluation,
    SetPlan,
    VariantPlan,
    plan_runs,
    settings_of,
)
from deepsearch_rl.evaluate.set_evaluation import ServedModel, SetEvaluation
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.manifest import read_manifest, write_manifest
from deepsearch_rl.search.quality import DatasetConfig
from deepsearch_rl.search.ranking import FusionWeights, RankingName
from deepsearch_rl.serve.launch import CpuConfig, ServingConfig
from deepsearch_rl.server.launch import RetrievalConfig
from deepsearch_rl.server.rerank import RerankerConfig
from stages import evaluate as evaluate_stage
from tests.chunks import make_chunk
from tests.evaluate.chat import KEY, says, searches, serve_chat
from tests.model_servers import serve_models_here
from tests.policies import policy_folder
from tests.search_servers import serve_index_here
from tests.settings import AGENT, INDEX, RETRIEVAL, new_scratch

__all__ = ["policy_folder"]

PROMPTS = prompts_module._FOLDER
TOWNS = {"Ada Holt": "Stoke", "Ben Ide": "Burslem", "Cy Jones": "Hanley", "Dee Kerr": "Longton"}


def fact(person: str) -> str:
    return f"{person} was born in {TOWNS[person]}."


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four passages with an index over them, and two question sets of one question per passage."""
    root = tmp_path_factory.mktemp("data")
    chunks = [
        make_chunk(f"{person}\n{fact(person)}", f"d{number}-0", f"d{number}")
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


def setting(
    sets: dict[str, SetPlan],
    variants: dict[str, VariantPlan] | None = None,
    random_passages: bool = False,
) -> Evaluation:
    return Evaluation(
        evaluate=EvaluateConfig(
            split="val",
            temperature=0.7,
            agent={},
            sets=sets,
            random_passages=random_passages,
            variants=variants or {},
            draws=100,
        ),
        agent=AGENT,
        retrieval=RETRIEVAL,
        serving=ServingConfig(backend="cpu"),
        datasets={
            "multihoprag": DatasetConfig(corpus="world"),
            "musique": DatasetConfig(corpus="world"),
        },
        chunk=ChunkConfig(
            chunker="sentences",
            chunk_size=48,
            overlap=0,
            tokenizer="words",
            passages=(),
            variants={},
        ),
        seed=0,
    )


def model_at(base_url: str, folder: Path) -> Path:
    """A model folder that names an endpoint; its key and its model's name are in the environment."""
    described = {
        "base_url": base_url,
        "model": "$MODEL_OF_THE_TEST",
        "api_key_variable": "MODEL_KEY_OF_THE_TEST",
    }
    write_json(folder / "endpoint.json", described)
    return folder


@pytest.fixture
def search_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The retrieval server runs in this process, for tests of anything but the process."""
    monkeypatch.setattr("deepsearch_rl.evaluate.evaluate_model.serve_index", serve_index_here)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY_OF_THE_TEST", KEY)
    monkeypatch.setenv("MODEL_OF_THE_TEST", "scripted")


def reads(body: dict[str, Any]) -> dict[str, Any]:
    """Search once, then answer with the town of the best passage; without a tool, guess."""
    messages = body["messages"]
    if messages[-1]["role"] == "tool":
        return says(
            f"<answer> {re.findall('born in (.*?)[.]', messages[-1]['content'])[0]}</answer>"
        )
    return (
        searches(messages[-1]["content"][10:-6])
        if "tools" in body
        else says("<answer> Stoke</answer>")
    )


SETS = {
    "multihoprag": SetPlan(questions=None, samples=2, greedy=3, controls=4),
    "musique": SetPlan(questions=2, samples=1, greedy=0, controls=0),
}


def test_fields_of_the_agent_have_other_values_in_evaluation(root: Path) -> None:
    profile = load_profile(root / "params.yaml")
    own, changed = (
        Evaluation.of(profile.with_overrides({"evaluate.agent": agent}))
        for agent in ({}, {"max_turns": 9})
    )
    assert changed.agent == own.agent.model_copy(update={"max_turns": 9})
    assert changed.rollout_fingerprint("musique", True) != own.rollout_fingerprint("musique", True)
    with pytest.raises(UnknownNameError, match="max_turn'"):
        Evaluation.of(profile.with_overrides({"evaluate.agent": {"max_turn": 9}}))


def test_a_retriever_of_a_set_that_does_not_exist_is_refused() -> None:
    retrieval = RETRIEVAL.model_copy(update={"dataset_retrievers": {"musik": "dense"}})
    with pytest.raises(UnknownNameError, match=r"'musik'\. Did you mean 'musique'"):
        retrieval.for_dataset("multihoprag", ("multihoprag", "musique"))


@pytest.mark.parametrize(
    ("learned", "unlearned", "label"),
    [
        ("learned", "bm25", "hybrid_learned"),
        ("bm25", "reciprocal_ranks", "bm25"),
        ("dense", "reciprocal_ranks", "dense"),
        (None, "reciprocal_ranks", "hybrid_rrf"),
        (None, "bm25", "bm25"),
        (None, "dense", "dense"),
    ],
)
def test_a_hybrid_is_called_after_what_ranks(
    data: Path,
    tmp_path: Path,
    learned: RankingName | None,
    unlearned: Literal["bm25", "dense", "reciprocal_ranks"],
    label: str,
) -> None:
    built = read_manifest(data / "index" / "world")
    weights = learned and FusionWeights(ranking=learned, weights={}, questions=9, held_out={})
    fusion = built.config.fusion.model_copy(update={"unlearned": unlearned})
    config = built.config.model_copy(update={"fusion": fusion})
    manifest = built.model_copy(update={"config": config, "fusion_weights": weights})
    (tmp_path / "index" / "world").mkdir(parents=True)
    write_manifest(tmp_path / "index" / "world", manifest)

    hybrid = RETRIEVAL.model_copy(update={"retriever": "hybrid"})
    model = ServedModel("api", tmp_path, "api", "api", ())
    plan = replace(setting(SETS), retrieval=hybrid)
    evaluation = SetEvaluation(model, plan, "musique", (), tmp_path, tmp_path, tmp_path)
    assert evaluation.retriever == label


@pytest.mark.slow
@pytest.mark.usefixtures("named")
def test_every_set_is_searched_with_its_own_retriever_and_a_variant_shares_its_server(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retrievers: list[tuple[str, int]] = []

    def recorded(index: Path, chunks: Path, config: RetrievalConfig) -> AbstractContextManager[str]:
        retrievers.append((config.retriever, config.top_k))
        return serve_index_here(index, chunks, config)

    monkeypatch.setattr("deepsearch_rl.evaluate.evaluate_model.serve_index", recorded)
    retrieval = RETRIEVAL.model_copy(update={"dataset_retrievers": {"musique": "hybrid"}})
    common = {"dataset": "musique", "corpus": None, "samples": 1}
    variants = {
        name: VariantPlan.model_validate(common | values) for name, values in VARIANTS.items()
    }
    with serve_chat(reads) as chat:
        model, plan = (
            model_at(chat.endpoint.base_url, tmp_path / "model"),
            replace(setting(SETS, variants), retrieval=retrieval),
        )
        evaluation = evaluate_model("api", model, plan, data, tmp_path / "out", tmp_path / "work")
    # The variant "short" is answered over the second server; "top1" needs fewer passages
    assert sorted(retrievers) == [("bm25", 2), ("hybrid", 1), ("hybrid", 2)]
    assert {row.variant for row in evaluation.rows} == {"", "short", "top1"}
    assert {row.dataset: row.f1 for row in evaluation.rows if not row.kind} == {
        "multihoprag": 1.0,
        "musique": 1.0,
    }


@pytest.mark.slow
@pytest.mark.usefixtures("named")
def test_every_set_is_answered_over_the_real_retrieval_server(data: Path, tmp_path: Path) -> None:
    out, work = tmp_path / "evaluate" / "sft", tmp_path / "work"
    with serve_chat(reads) as chat:
        model, plan = model_at(chat.endpoint.base_url, tmp_path / "model"), setting(SETS)
        evaluation = evaluate_model("sft", model, plan, data, out, work)
        requests = len(chat.requests)
        repeated = evaluate_model("sft", model, plan, data, tmp_path / "again", work)
        # A repeated run goes on from its log, here: to the end
        assert len(chat.requests) == requests
    assert repeated == evaluation

    main, greedy, musique = evaluation.rows
    assert [
        (row.dataset, row.temperature, row.n, row.samples, row.f1) for row in evaluation.rows
    ] == [
        ("multihoprag", 0.7, 4, 2, 1.0),
        ("multihoprag", 0.0, 3, 1, 1.0),
        ("musique", 0.7, 2, 1, 1.0),
    ]
    assert (main.generated, musique.generated) == (True, False)
    assert (main.mean_rounds, main.mean_tool_calls, main.failures, main.chunk_size) == (
        2.0,
        1.0,
        {},
        48,
    )
    assert {name: (control.n, control.f1) for name, control in main.controls.items()} == {
        "no_search": (4, 0.25),
        "gold_passage": (4, 1.0),
    }
    assert (greedy.controls, main.constant.f1) == ({}, 0.25)

    temperatures = Counter(body["temperature"] for body in chat.requests)
    assert temperatures == {0.7: 4 * 2 * 2 + 4 + 4 + 2 * 2, 0.0: 3 * 2}
    drawn = {
        body["seed"]
        for body in chat.requests
        if body["messages"][1]["content"] == "Where was Ada Holt born?"
    }
    # Two samples of one set and one of the other; greedy and controls repeat the first
    assert len(drawn) == 3
    searched = list(read_jsonl(out / "multihoprag.search.t0.7.jsonl", Trajectory))
    assert [rollout.id for rollout in searched] == [
        f"multihoprag-{q}#{sample}" for q in range(4) for sample in (0, 1)
    ]
    assert all(
        rollout.retrievals[0].chunk_ids[0] == f"d{rollout.question_id[-1]}-0"
        for rollout in searched
    )
    assert not any(KEY in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


VARIANTS = {
    "top1": {"models": None, "prompt": "multihoprag_nothink", "top_k": 1, "questions": 2},
    "short": {"models": ["api"], "prompt": None, "top_k": None, "questions": None},
    "of_others": {"models": ["sft"], "prompt": None, "top_k": 1, "questions": None},
}


@pytest.mark.slow
@pytest.mark.usefixtures("named", "search_here")
def test_variants_are_rows_of_their_own_and_another_model_name_takes_nothing_over(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = {"dataset": "musique", "corpus": None, "samples": 1}
    variants = {
        name: VariantPlan.model_validate(common | values) for name, values in VARIANTS.items()
    }
    sets, work = {"musique": SETS["musique"]}, tmp_path / "work"
    with serve_chat(reads) as chat:
        model = model_at(chat.endpoint.base_url, tmp_path / "model")
        trained_with = served_with(model, AGENT.prompt_digests())
        write_json(model / "manifest.json", {"trained_with": trained_with.model_dump()})
        evaluate_model("api", model, setting(sets), data, tmp_path / "out", work)
        alone = len(chat.requests)
        evaluation = evaluate_model(
            "api", model, setting(sets, variants), data, tmp_path / "out", work
        )
        requests = len(chat.requests)
        monkeypatch.setenv("MODEL_OF_THE_TEST", "another")
        another = evaluate_model("api", model, setting(sets), data, tmp_path / "out2", work)
    rows = {row.variant: (row.n, row.prompt, row.top_k, row.f1) for row in evaluation.rows}
    assert list(rows.items()) == [
        ("", (2, "tiny", 2, 1.0)),
        ("short", (4, "tiny", 2, 1.0)),
        ("top1", (2, "multihoprag_nothink", 1, 1.0)),
    ]
    trained_with_other = {row.variant: row.trained_with_other for row in evaluation.rows}
    assert trained_with_other == {"": (), "short": (), "top1": ("prompt",)}
    assert requests == alone + 2 * (4 + 2)  # the main row came from its log
    files = {path.name for path in (tmp_path / "out").glob("*.jsonl")}
    assert files == {row.rollouts_file for row in evaluation.rows}
    prompts = {body["messages"][0]["content"] for body in chat.requests[alone:requests]}
    assert prompts == {load_prompt("tiny"), load_prompt("multihoprag_nothink")}
    top1 = list(read_jsonl(tmp_path / "out" / "musique.search.t0.7.top1.jsonl", Trajectory))
    assert all(len(rollout.retrievals[0].chunk_ids) == 1 for rollout in top1)

    assert len(chat.requests) == requests + alone  # other answers are another model's
    address = chat.endpoint.base_url
    assert [evaluation.rows[0].checkpoint, another.rows[0].checkpoint] == [
        f"{n} at {address}" for n in ("scripted", "another")
    ]
    assert {body["model"] for body in chat.requests[requests:]} == {"another"}
    assert {rollout.model for rollout in top1} == {"scripted"}


@pytest.mark.slow
@pytest.mark.usefixtures("named", "search_here")
def test_another_index_over_the_same_chunks_or_an_edited_prompt_asks_everything_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = setting({"musique": SETS["musique"]})
    copy, prompts = shutil.copytree(data, tmp_path / "data"), tmp_path / "prompts"
    shutil.copytree(PROMPTS, prompts)
    monkeypatch.setattr("deepsearch_rl.chat.prompts._FOLDER", prompts)
    with serve_chat(reads) as chat:
        model = model_at(chat.endpoint.base_url, tmp_path / "model")

        def asked() -> int:
            before = len(chat.requests)
            evaluate_model("api", model, plan, copy, tmp_path / "out", tmp_path / "work")
            return len(chat.requests) - before

        assert (asked(), asked()) == (4, 0)
        bm25 = INDEX.bm25.model_copy(update={"k1": 1.5})
        chunks = copy / "chunks" / "world.jsonl"
        build_index(
            chunks, copy / "index" / "world", INDEX.model_copy(update={"bm25": bm25}), seed=0
        )
        assert (asked(), asked()) == (4, 0)
        (prompts / "tiny.txt").write_text("Answer in one word.")
        assert (asked(), asked()) == (4, 0)
        plan = setting({name: SETS["musique"] for name in SETS})
        assert (asked(), asked()) == (4, 0)  # a set more asks its own questions alone
    assert chat.requests[-1]["messages"][0]["content"] == "Answer in one word."


def test_what_changes_no_answer_keeps_the_log_and_what_may_change_one_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = setting(SETS)
    slower = {
        "startup_timeout_s": 1,
        "window_ms": 5,
        "max_batch": 1,
        "cache_entries": 0,
    }
    variant = ChunkVariant(corpus="world", chunker="sentences", chunk_size=8, overlap=0)
    same = replace(
        own,
        agent=own.agent.model_copy(update={"concurrency": 1}),
        retrieval=own.retrieval.model_copy(update=slower),
        chunk=own.chunk.model_copy(update={"variants": {"world_8": variant}}),
        serving=ServingConfig(
            backend="cpu",
            cpu=CpuConfig(
                slots=8, context_tokens=9, dtype="float32", servers=1, threads=1, start_timeout_s=1
            ),
        ),
    )
    fingerprint = own.rollout_fingerprint("multihoprag", served_here=False)
    assert same.rollout_fingerprint("multihoprag", served_here=False) == fingerprint
    assert same.rollout_fingerprint("multihoprag", served_here=True) != own.rollout_fingerprint(
        "multihoprag", served_here=True
    )

    (tmp_path / "web.py").write_text("def search(client, query, top_k): return []")
    online = f"{tmp_path / 'web.py'}:search"
    reranker = {"model": tmp_path / "reranker", "depth": 9, "max_tokens": 99, "batch_tokens": 99}
    reranked = RerankerConfig.model_validate(reranker | {"device": "cpu", "dtype": "float32"})
    (tmp_path / "reranker").mkdir()
    other = [
        replace(own, retrieval=own.retrieval.model_copy(update=change))
        for change in ({"top_k": 3}, {"online": online}, {"reranker": reranked})
    ]
    assert same.rollout_fingerprint("musique", served_here=False) == fingerprint
    mixed = replace(
        own, retrieval=own.retrieval.model_copy(update={"dataset_retrievers": {"musique": "dense"}})
    )
    assert mixed.rollout_fingerprint("multihoprag", served_here=False) == fingerprint
    assert mixed.rollout_fingerprint("musique", served_here=False) != fingerprint
    fingerprints = [
        fingerprint,
        *(changed.rollout_fingerprint("multihoprag", served_here=False) for changed in other),
    ]
    (tmp_path / "web.py").write_text("def search(client, query, top_k): return [1]")
    (tmp_path / "reranker" / "config.json").write_text("{}")
    fingerprints += [
        changed.rollout_fingerprint("multihoprag", served_here=False) for changed in other[1:]
    ]
    monkeypatch.setattr("deepsearch_rl.agent.config.RETRIEVE_TOOL", {"type": "function"})
    fingerprints.append(own.rollout_fingerprint("multihoprag", served_here=False))
    assert len(set(fingerprints)) == 7


@pytest.mark.slow
@pytest.mark.usefixtures("search_here")
def test_two_model_servers_give_the_rollouts_of_one(
    data: Path, tmp_path: Path, policy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "deepsearch_rl.evaluate.evaluate_model"
    monkeypatch.setattr(f"{module}.serve_models", serve_models_here)
    patient = {"context_tokens": 512, "timeout_s": 120, "call_timeout_s": 120}
    own = setting(SETS)
    for servers in (1, 2):
        cpu = CpuConfig(
            slots=8,
            context_tokens=512,
            dtype="float32",
            servers=servers,
            threads=1,
            start_timeout_s=1,
        )
        plan = replace(
            own,
            agent=own.agent.model_copy(update=patient),
            # Of two retrieval servers
            retrieval=RETRIEVAL.model_copy(update={"dataset_retrievers": {"musique": "hybrid"}}),
            serving=ServingConfig(backend="cpu", cpu=cpu),
        )
        out = tmp_path / f"out{servers}"
        evaluate_model("m", policy_folder, plan, data, out, tmp_path / f"work{servers}")

    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("out1", "out2")
    )
    assert one == two
    assert {"musique.search.t0.7.jsonl", "multihoprag.search.t0.7.jsonl", "rows.json"} <= one.keys()


def test_settings_are_the_same_with_more_model_servers() -> None:
    own = setting(SETS)
    digests = [
        replace(
            own,
            serving=ServingConfig(
                backend="cpu",
                cpu=CpuConfig(
                    slots=slots,
                    context_tokens=9,
                    dtype="float32",
                    servers=servers,
                    threads=1,
                    start_timeout_s=1,
                ),
            ),
        ).digest()
        for slots, servers in ((8, 1), (8, 2), (9, 1))
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.nightly
@pytest.mark.usefixtures("search_here")
def test_the_same_weights_under_another_name_are_asked_again(
    data: Path, tmp_path: Path, policy_folder: Path
) -> None:
    plan = replace(
        setting({"musique": SETS["musique"]}),
        serving=ServingConfig(
            backend="cpu",
            cpu=CpuConfig(
                slots=8,
                context_tokens=512,
                dtype="float32",
                servers=1,
                threads=1,
                start_timeout_s=120,
            ),
        ),
    )
    # A model on a busy machine needs its time
    patient = {"context_tokens": 512, "timeout_s": 120, "call_timeout_s": 120}
    agent = plan.agent.model_copy(update=patient)
    for name in ("first", "second"):
        evaluate_model(
            name,
            policy_folder,
            replace(plan, agent=agent),
            data,
            tmp_path / name,
            tmp_path / "work",
        )
        rollouts = read_jsonl(tmp_path / name / "musique.search.t0.7.jsonl", Trajectory)
        assert {rollout.model for rollout in rollouts} == {name}


def test_a_variant_cannot_take_the_name_of_the_greedy_row() -> None:
    plan = {"models": None, "dataset": "musique", "prompt": None, "top_k": 1, "corpus": None} | {
        "questions": 1,
        "samples": 1,
    }
    config = setting(SETS).evaluate.model_dump()
    with pytest.raises(
        ValidationError, match="'greedy' is what the row at temperature 0 is called"
    ):
        EvaluateConfig.model_validate(config | {"variants": {"greedy": plan}})


def test_a_variant_with_a_prompt_or_a_set_that_does_not_exist_names_the_nearest() -> None:
    plan = VariantPlan(
        models=None, dataset="musiqe", prompt=None, top_k=1, corpus=None, questions=1, samples=1
    )
    with pytest.raises(UnknownNameError, match="Did you mean 'musique'"):
        list(settings_of(setting(SETS, {"a": plan}), "sft"))
    plan = plan.model_copy(update={"dataset": "musique", "prompt": "multihoprag_nothnk"})
    with pytest.raises(UnknownNameError, match="Did you mean 'multihoprag_nothink'"):
        list(settings_of(setting(SETS, {"a": plan}), "sft"))
    assert [
        each.variant
        for each in settings_of(
            setting(SETS, {"a": plan.model_copy(update={"models": ("rl",)})}), "sft"
        )
    ] == [""]


def test_a_variant_of_a_model_that_is_is_not_evaluated_is_refused(
    root: Path, tmp_path: Path
) -> None:
    smoke = load_profile(root / "profiles/smoke/params.yaml")
    profile = smoke.with_overrides({"evaluate.variants.top2_short.models": ["stf"]})
    with pytest.raises(
        UnknownNameError, match=r"model in evaluate\.variants 'stf'. Did you mean 'sft'"
    ):
        evaluate_stage.main(profile, "sft", new_scratch(tmp_path))


def test_the_chunk_size_of_a_row_is_that_of_its_corpus() -> None:
    cut = {"chunker": "sentences", "corpus": "world", "chunk_size": 24, "overlap": 0}
    chunk = ChunkConfig.model_validate(
        {
            "chunker": "sentences",
            "chunk_size": 48,
            "overlap": 0,
            "tokenizer": "words",
            "passages": ("wiki",),
            "variants": {"world_24": cut},
        }
    )
    assert [chunk.size_of(name) for name in ("world", "world_24", "wiki")] == [48, 24, 0]


@pytest.mark.slow
@pytest.mark.usefixtures("named", "search_here")
def test_an_endpoint_that_is_gone_stops_the_evaluation_and_leaves_nothing(
    data: Path, tmp_path: Path
) -> None:
    with serve_chat(lambda _: 503) as chat:
        model, plan = (
            model_at(chat.endpoint.base_url, tmp_path / "model"),
            setting({"musique": SETS["musique"]}),
        )
        with pytest.raises(EndpointError, match="in a row"):
            evaluate_model("sft", model, plan, data, tmp_path / "out", tmp_path / "work")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("named")
def test_an_unknown_set_names_the_nearest_and_an_empty_one_is_refused(
    data: Path, tmp_path: Path
) -> None:
    model = model_at("http://127.0.0.1:9/v1", tmp_path / "model")
    plan = setting({"musiqe": SETS["musique"]})
    with pytest.raises(UnknownNameError, match="Did you mean 'musique'"):
        evaluate_model("sft", model, plan, data, tmp_path / "out", tmp_path / "work")
    (tmp_path / "questions" / "musique").mkdir(parents=True)
    (tmp_path / "questions" / "musique" / "val.jsonl").touch()
    plan = setting({"musique": SETS["musique"]})
    with pytest.raises(ArtifactError, match="holds no question"):
        evaluate_model("sft", model, plan, tmp_path, tmp_path / "out", tmp_path / "work")


@pytest.mark.usefixtures("named")
def test_two_questions_of_one_id_are_refused_before_anything_is_asked(
    data: Path, tmp_path: Path
) -> None:
    [question, *_] = read_jsonl(data / "questions" / "musique" / "val.jsonl", Question)
    write_jsonl(tmp_path / "questions" / "musique" / "val.jsonl", [question, question])
    model = model_at("http://127.0.0.1:9/v1", tmp_path / "model")
    with pytest.raises(RecordError, match=r"val\.jsonl, line 2: field 'id'"):
        evaluate_model(
            "sft",
            model,
            setting({"musique": SETS["musique"]}),
            tmp_path,
            tmp_path / "out",
            tmp_path,
        )


@pytest.mark.parametrize(
    ("metadata", "is_planned"),
    [
        ({}, False),
        ({"supporting_titles": ["Ada Holt"]}, False),
        ({"supporting_doc_ids": []}, False),
        ({"supporting_doc_ids": ["d0"]}, True),
        ({"evidence_list": []}, True),
        ({"evidence_list": [{"doc_id": "d0", "fact": "A fact."}]}, True),
    ],
)
def test_the_gold_passage_control_needs_facts_or_documents_and_says_so(
    metadata: dict[str, Any], is_planned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    known = QuestionMetadata.model_validate(metadata)
    questions = [Question(id="q", question="Where?", golden_answers=("Stoke",), metadata=known)]
    plan = SetPlan(questions=None, samples=3, greedy=0, controls=1)
    evaluate = setting({"musique": plan}).evaluate
    conditions = [run.condition for run in plan_runs("musique", questions, evaluate, "")]
    assert conditions == ["search", "no_search", *(["gold_passage"] if is_planned else [])]
    assert ("musique: there is no control with gold passages" in caplog.text) != is_planned

    caplog.clear()
    uncontrolled = plan.model_copy(update={"controls": 0})
    evaluate = setting({"musique": uncontrolled}).evaluate
    assert [run.condition for run in plan_runs("musique", questions, evaluate, "")] == ["search"]
    assert not caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("named", "search_here")
def test_random_passages_are_a_control_where_params_ask_for_it_and_change_no_other_figure(
    data: Path, tmp_path: Path
) -> None:
    sets = {"musique": SetPlan(questions=None, samples=1, greedy=0, controls=4)}
    with serve_chat(reads) as chat:
        model = model_at(chat.endpoint.base_url, tmp_path / "model")
        usual = evaluate_model(
            "sft", model, setting(sets), data, tmp_path / "usual", tmp_path / "work"
        )
        asked = len(chat.requests)
        plan = setting(sets, random_passages=True)
        evaluation = evaluate_model("sft", model, plan, data, tmp_path / "out", tmp_path / "work")

    [row] = evaluation.rows
    [usual_row] = usual.rows
    assert list(row.controls) == ["no_search", "random_passage", "gold_passage"]
    control = row.controls["random_passage"]
    assert (control.n, control.f1, control.searched_f1) == (4, 0.0, 1.0)
    others = {name: row.controls[name] for name in usual_row.controls}
    assert row.model_copy(update={"controls": others}) == usual_row
    assert usual.settings_sha256 != evaluation.settings_sha256
    assert len(chat.requests) == asked + 4

    path = tmp_path / "out" / "musique.random_passage.t0.7.jsonl"
    for rollout in read_jsonl(path, Trajectory):
        [retrieval] = rollout.retrievals
        gold = f"d{rollout.question_id[-1]}-0"
        assert len(retrieval.chunk_ids) == plan.retrieval.top_k
        assert gold not in retrieval.chunk_ids


def test_a_checkpoint_is_named_by_its_folder_and_the_step_that_was_kept(tmp_path: Path) -> None:
    assert checkpoint_name(tmp_path) == str(tmp_path)
    write_json(tmp_path / "manifest.json", {"best_step": 30})
    assert checkpoint_name(tmp_path) == f"{tmp_path}, step 30"


def test_at_temperature_0_every_set_is_answered_once_and_not_again_greedily() -> None:
    questions = [
        Question(id=f"q{number}", question="Where?", golden_answers=("Here",))
        for number in range(4)
    ]
    sets = {"multihoprag": SetPlan(questions=3, samples=8, greedy=2, controls=1)}
    plan = setting(sets).evaluate.model_copy(update={"temperature": 0.0})
    runs = list(plan_runs("multihoprag", questions, plan, ""))
    assert [(run.condition, run.temperature, run.samples, len(run.questions)) for run in runs] == [
        ("search", 0.0, 1, 3),
        ("no_search", 0.0, 1, 1),
    ]
