"""A small report as the stages before `track` leave it, and an MLflow store of its own."""

import functools
import json
import tempfile
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from deepsearch_rl.core.files import write_json, write_jsonl
from deepsearch_rl.core.records import (
    Message,
    Question,
    Retrieval,
    StopReason,
    TokenUsage,
    ToolCall,
    Trajectory,
)
from deepsearch_rl.evaluate.explain.explain import explain_evaluations
from deepsearch_rl.evaluate.f1_row import IfevalScore, ModelEvaluation, RowKey
from deepsearch_rl.evaluate.score import build_row
from deepsearch_rl.evaluate.table_files import write_table
from deepsearch_rl.evaluate.tables import build_table
from deepsearch_rl.track.contents import Results, TrackConfig

MODELS = ("base", "rl", "sft")
QUESTIONS = 12
SEED = 0
CONFIG = TrackConfig(experiment="tests", predictions=5, traces=0.25, timeout_s=5)
PASSAGES = "[1] Port Vale\nA harbour.\n\n[2] Cape Ann\nA cape."


def rollout(
    model: str, question: int, answer: str = "Port Vale", temperature: float = 0.7
) -> Trajectory:
    """One search, one answer; every sixth question ends without an answer tag."""
    failed = question % 6 == 5
    call = ToolCall(
        id="call_1", name="retrieve", arguments=json.dumps({"query": f"port {question}"})
    )
    return Trajectory(
        id=f"q{question:02}#0",
        question_id=f"q{question:02}",
        sample=0,
        question=f"Which port, {question}?",
        golden_answers=("Port Vale", "Vale"),
        question_type="1_hop",
        model=model,
        prompt="tiny",
        temperature=temperature,
        messages=(
            Message(role="system", content="Answer."),
            Message(role="user", content=f"Which port, {question}?"),
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", content=PASSAGES, tool_call_id="call_1"),
            Message(role="assistant", content="" if failed else f"<answer> {answer}</answer>"),
        ),
        retrievals=(Retrieval(query=f"port {question}", chunk_ids=("d1-0", "d2-0")),),
        answer="" if failed else answer,
        stop_reason=StopReason.NO_ANSWER_TAG if failed else StopReason.ANSWERED,
        usage=(
            TokenUsage(prompt_tokens=40, completion_tokens=9),
            TokenUsage(prompt_tokens=70, completion_tokens=6),
        ),
    )


def _evaluate(model: str, right: int, folder: Path) -> None:
    rows = []
    for temperature in (0.7, 0.0):
        key = RowKey(
            model=model,
            checkpoint=f"models/tiny/{model}",
            dataset="multihoprag",
            corpus="world",
            prompt="tiny",
            top_k=3,
            chunk_size=48,
            temperature=temperature,
            samples=1,
            seed=SEED,
        )
        answers = ["Port Vale" if number < right else "Cape Ann" for number in range(QUESTIONS)]
        found = [
            rollout(model, number, answer, temperature) for number, answer in enumerate(answers)
        ]
        row = build_row(key, found, True, 100)
        rows.append(row)
        write_jsonl(folder / row.rollouts_file, found)
    inputs = {"model": model * 8, "questions/multihoprag/val": "b" * 64}
    evaluation = ModelEvaluation(
        model=model, seed=SEED, settings_sha256="c" * 64, inputs=inputs, rows=tuple(rows)
    )
    write_json(folder / "rows.json", evaluation.model_dump(mode="json"))


def make_results(root: Path, right: int = 8) -> Results:
    """Three models' answers to twelve questions, of which the model ``sft`` knows ``right``."""
    folders = {model: root / "evaluate" / model for model in MODELS}
    for model, known in zip(MODELS, (3, 6, right), strict=True):
        _evaluate(model, known, folders[model])
    accuracies: dict[str, float] = {
        "prompt_strict": 0.5,
        "prompt_loose": 0.6,
        "inst_strict": 0.5,
        "inst_loose": 0.6,
    }
    ifeval = IfevalScore.model_validate(
        {"model": "sft", "prompts": "generated", "n": 4, "instructions": 5, "instruction_ids": 3}
        | accuracies
    )
    write_table(
        build_table("tiny", folders, [("sft", "base")], SEED, 100), [ifeval], root / "reports"
    )
    (root / "reports" / "index.html").write_text("<h1>Report</h1>\n")
    asked = [
        Question(
            id=f"q{number:02}", question=f"Which port, {number}?", golden_answers=("Port Vale",)
        )
        for number in range(QUESTIONS)
    ]
    write_jsonl(root / "questions.jsonl", asked)
    lost = explain_evaluations(
        folders, {"multihoprag": root / "questions.jsonl"}, None, SEED, 100, 100
    )
    write_json(root / "reports" / "lost_points.json", lost.model_dump(mode="json"))
    log = root / "sft_adapter" / "train_log.jsonl"
    log.parent.mkdir()
    log.write_text(
        "".join(
            json.dumps({"step": step, "loss": 2.0 / step, "kl": None}) + "\n" for step in (1, 2)
        )
    )
    params = {"seed": 0, "rl": {"learning_rate": 0.5, "api_key": "sk-hidden"}}
    weights = {model: f"models/tiny/{model}" for model in MODELS}
    return Results("tiny", root / "reports", folders, {"sft": log}, weights, params)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return make_results(tmp_path)


@functools.cache
def store_template() -> bytes:
    """The database of an empty store. MLflow makes its tables in hundreds of small writes: in memory, where that is."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db").search_experiments()
        return Path(folder, "mlflow.db").read_bytes()


def new_store(folder: Path) -> str:
    """The URI of a new empty store in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mlflow.db").write_bytes(store_template())
    return f"sqlite:///{folder.resolve()}/mlflow.db"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The default store in the working directory, which is a new folder."""
    folder = tmp_path / "it's a (né) #1 & folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return new_store(folder)


def traces_experiment(client: MlflowClient) -> str:
    """Id of the experiment that traces are in."""
    experiment = client.get_experiment_by_name(f"{CONFIG.experiment}-traces")
    assert experiment is not None
    return experiment.experiment_id
