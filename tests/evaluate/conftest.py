"""Results of a whole profile, drawn with known success rates, as the stages before the report leave them."""

import json
import random
import shutil
from pathlib import Path

import pytest

from deepsearch_rl.core.files import write_json, write_jsonl
from deepsearch_rl.core.records import (
    Evidence,
    Message,
    Question,
    QuestionMetadata,
    StopReason,
    ToolCall,
    Trajectory,
)
from deepsearch_rl.evaluate.f1_row import IfevalScore, ModelEvaluation, RowKey, run_file
from deepsearch_rl.evaluate.report.write_report import Sources
from deepsearch_rl.evaluate.score import build_control, build_row

SUCCESS = {"base": 0.2, "sft": 0.62, "rl": 0.35, "sft_rl": 0.75}
CORPORA = {
    "multihoprag": "world",
    "musique": "outworld",
    "2wikimultihopqa": "outworld",
    "hotpotqa": "outworld",
}
TYPES = ("1_hop", "2_hop", "3_hop", "null")
NAMES = ("Arla", "Bodin", "Caro", "Dunn", "Emer", "Falk", "Gorm")
DRAWS = 200
PASSAGES = Message(
    role="tool", content="[1] T\nThe port is Port Vale. <b>Old</b>.", tool_call_id="call_1"
)


def make_rollout(
    question: int,
    sample: int = 0,
    answer: str = "",
    gold: str = "Port Vale",
    stop: StopReason = StopReason.ANSWERED,
    kind: str = "",
    temperature: float = 0.7,
    model: str = "sft",
    searches: int = 1,
) -> Trajectory:
    calls = (
        ToolCall(id=f"call_{number + 1}", name="retrieve", arguments="{}")
        for number in range(searches)
    )
    call = Message(role="assistant", tool_calls=tuple(calls))
    answer_turn = Message(
        role="assistant",
        content=f"<answer> {answer}</answer>" if stop is StopReason.ANSWERED else "",
    )
    return Trajectory(
        id=f"q{question}#{sample}",
        question_id=f"q{question}",
        sample=sample,
        question=f"Question {question}?",
        golden_answers=(gold,),
        question_type=kind,
        model=model,
        prompt="tiny",
        temperature=temperature,
        messages=(
            Message(role="user", content=f"Question {question}?"),
            call,
            PASSAGES,
            answer_turn,
        ),
        answer=answer if stop is StopReason.ANSWERED else "",
        stop_reason=stop,
    )


def make_question(number: int) -> Question:
    """The question that :func:`make_rollout` answers; its gold fact stands in every rollout's passage."""
    evidence = (Evidence(fact="The port   is\nPort Vale.", title="T"),)
    metadata = QuestionMetadata(evidence_list=evidence)
    return Question(
        id=f"q{number}",
        question=f"Question {number}?",
        golden_answers=("Port Vale",),
        metadata=metadata,
    )


def _run(
    model: str, dataset: str, condition: str, n: int, samples: int, temperature: float
) -> list[Trajectory]:
    rng = random.Random(f"{model} {dataset} {condition} {temperature}")
    rate = (
        SUCCESS[model]
        * (1 if dataset == "multihoprag" else 0.5)
        * (0.2 if condition == "no_search" else 1)
    )
    rollouts = []
    for question in range(n):
        kind, gold = TYPES[question % 4], f"{NAMES[question % 7]} {NAMES[question % 5]}"
        for sample in range(samples):
            failed = rng.random() < 0.05
            rollouts.append(
                make_rollout(
                    question,
                    sample,
                    gold if rng.random() < rate else "somebody else",
                    gold,
                    StopReason.NO_ANSWER_TAG if failed else StopReason.ANSWERED,
                    kind,
                    temperature,
                    model,
                    1 + question % 4 if model == "sft_rl" else 1,
                )
            )
    return rollouts


def row_key(model: str, dataset: str, corpus: str, samples: int) -> RowKey:
    """The key of a row under the tiny profile's own setting."""
    return RowKey(
        model=model,
        checkpoint=f"models/tiny/{model}",
        dataset=dataset,
        corpus=corpus,
        prompt="tiny",
        top_k=3,
        chunk_size=48,
        retriever="bm25",
        temperature=0.7,
        samples=samples,
        seed=0,
    )


def _evaluation(model: str, folder: Path) -> ModelEvaluation:
    rows = []
    for dataset, corpus in CORPORA.items():
        n, samples = (40, 3) if dataset == "multihoprag" else (20, 1)
        key = row_key(model, dataset, corpus, samples)
        sampled = _run(model, dataset, "search", n, samples, 0.7)
        write_jsonl(folder / run_file(dataset, "search", 0.7), sampled)
        controls = {
            name: build_control(_run(model, dataset, name, 10, 1, 0.7), sampled, 1, key, DRAWS)
            for name in ("no_search", "gold_passage")
        }
        rows.append(build_row(key, sampled, True, DRAWS).model_copy(update={"controls": controls}))
        if dataset == "multihoprag":
            greedy = _run(model, dataset, "search", n, 1, 0.0)
            write_jsonl(folder / run_file(dataset, "search", 0.0), greedy)
            rows.append(
                build_row(
                    key.model_copy(update={"temperature": 0.0, "samples": 1}), greedy, True, DRAWS
                )
            )
    rows.sort(key=lambda row: row.sort_key)
    inputs = {"model": "a" * 64, "questions/multihoprag/val": "b" * 64}
    return ModelEvaluation(
        model=model, seed=0, settings_sha256="c" * 64, inputs=inputs, rows=tuple(rows)
    )


def _rl_run(folder: Path, start: str) -> None:
    rng = random.Random(start)
    lines = [{"step": 0, "dev_f1": 0.4, "dev_f1_se": 0.04}]
    for step in range(1, 21):
        line = {
            "step": step,
            "reward": 1 + 0.02 * step + rng.random() / 5,
            "reward_se": 0.1,
            "f1": 0.5 + 0.01 * step,
        }
        dev = {"dev_f1": 0.4 + 0.01 * step, "dev_f1_se": 0.04} if step % 5 == 0 else {}
        lines.append({**line, "tool_calls": 1.8, **dev})
    folder.mkdir(parents=True)
    (folder / "train_log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    below = start == "base"
    manifest = {
        "start": start,
        "steps": 20,
        "best_step": 20,
        "best_dev_f1": 0.6,
        "gate": {"pass_1": 0.2 if below else 0.6, "pass_k": 0.7, "samples": 8},
        "gate_warning": "the start is weak" if below else "",
        "alarms": [{"name": "no_signal", "step": 7, "reason": "9 of 10 groups have equal rewards"}]
        if below
        else [],
        "seed": 0,
    }
    write_json(folder / "manifest.json", manifest)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished profile: four models, four generated sets, IFEval, two RL runs, retrieval and filter reports."""
    root = tmp_path_factory.mktemp("finished")
    sources = sources_in(root)
    for model in SUCCESS:
        folder = sources.evaluate[model]
        write_json(folder / "rows.json", _evaluation(model, folder).model_dump(mode="json"))
        accuracies = {
            "prompt_strict": 0.1,
            "prompt_loose": 0.2,
            "inst_strict": 0.3,
            "inst_loose": 0.4,
        }
        score = IfevalScore(
            model=model,
            prompts="generated",
            n=40,
            instructions=57,
            instruction_ids=23,
            **accuracies,
        )
        write_json(sources.ifeval[model] / "scores.json", score.model_dump(mode="json"))
    for start, folder in sources.rl.items():
        _rl_run(folder, start)
    for path in sources.questions.values():
        write_jsonl(path, (make_question(number) for number in range(40)))
    scores = {"n": 40, "hits@1": 0.5, "hits@3": 0.8, "evidence_recall@3": 0.7, "mrr@10": 0.6}
    write_json(sources.retrieval, {name: {"bm25": scores, "dense": scores} for name in CORPORA})
    counts = {
        "trajectories": 900,
        "rows": 640,
        "dropped": {"success": 230, "too_long": 30},
        "rows_by_type": {"1_hop": 640},
    }
    write_json(
        sources.filter,
        {**counts, "f1": 0.72, "searches": 1.8, "tokens": {"mean": 300.5, "max": 900}},
    )
    return root


@pytest.fixture
def results(finished: Path, tmp_path: Path) -> Sources:
    """A copy of the finished profile that a test may break."""
    return sources_in(shutil.copytree(finished, tmp_path / "results"))


def sources_in(root: Path) -> Sources:
    return Sources(
        evaluate={model: root / "evaluate" / model for model in SUCCESS},
        ifeval={model: root / "ifeval" / model for model in SUCCESS},
        rl={start: root / "rl" / start for start in ("sft", "base")},
        retrieval=root / "retrieval.json",
        filter=root / "filter.json",
        questions={dataset: root / "questions" / f"{dataset}.jsonl" for dataset in CORPORA},
    )
