"""What predictions and traces add to the sending of a report to a local MLflow store: CPU time and disk space.

The report is as large as the tiny profile's: four models, of each 1,200 sampled and 400 greedy
answers to one question set and 100 to each of three others, a rollout with two searches of three
passages. Each line packs and sends it with other values of `track.predictions` and `track.traces`,
in turns, each time into the same store, which exists already.

    .venv/bin/python -m benchmarks.tracking
"""

import itertools
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.data import make_trajectory, row_key
from benchmarks.measure import parse_options, publish, size_mb, timed
from deepsearch_rl.core.files import write_json, write_jsonl
from deepsearch_rl.core.records import Question, Trajectory
from deepsearch_rl.evaluate.explain.explain import explain_evaluations
from deepsearch_rl.evaluate.f1_row import F1TableRow, ModelEvaluation, RowKey
from deepsearch_rl.evaluate.score import build_row
from deepsearch_rl.evaluate.table_files import write_table
from deepsearch_rl.evaluate.tables import build_table
from deepsearch_rl.track.build_bundle import Results, build_bundle
from deepsearch_rl.track.bundle import LOST_POINTS, PAGE, Provenance, TrackConfig
from deepsearch_rl.track.local_store import local_store
from deepsearch_rl.track.store import connected
from deepsearch_rl.track.upload import upload

MODELS = ("base", "rl", "sft", "sft_rl")
# Questions of each set
QUESTIONS = {"multihoprag": 400, "a": 100, "b": 100, "c": 100}
# Question set, answers to each question, temperature
RUNS = (
    ("multihoprag", 3, 0.7),
    ("multihoprag", 1, 0.0),
    ("a", 1, 0.7),
    ("b", 1, 0.7),
    ("c", 1, 0.7),
)
WORDS = "the film was made in a town by an artist who left her city met"
# Resamples of the report's intervals
DRAWS = 100
TIMEOUT_S = 60.0
# What a line of the table sends: its label, `track.predictions` and `track.traces`
CHOICES: tuple[tuple[str, int | None, float], ...] = (
    ("scores and tables alone", 0, 0.0),
    ("200 predictions of every run", 200, 0.0),
    ("all predictions", None, 0.0),
    ("2 % of the rollouts as traces", 0, 0.02),
    ("10 % of the rollouts as traces", 0, 0.1),
    ("200 predictions and 2 % (the tiny profile)", 200, 0.02),
)


def make_results(folder: Path, seed: int) -> Results:
    """Write a finished report into ``folder``."""
    rng = random.Random(seed)
    questions = {name: _make_questions(rng, count) for name, count in QUESTIONS.items()}
    question_files = {name: folder / "questions" / name / "val.jsonl" for name in QUESTIONS}
    for name, file in question_files.items():
        write_jsonl(file, questions[name])

    evaluations = {model: folder / "evaluate" / model for model in MODELS}
    inputs = {"model": "a" * 64} | {f"questions/{name}/val": "b" * 64 for name in QUESTIONS}
    for model, out in evaluations.items():
        rows: list[F1TableRow] = []
        for dataset, samples, temperature in RUNS:
            key = row_key(model, dataset, temperature, samples)
            rows.append(_write_run(rng, key, questions[dataset], out))

        evaluation = ModelEvaluation(
            model=model, seed=seed, settings_sha256="c" * 64, inputs=inputs, rows=tuple(rows)
        )
        write_json(out / "rows.json", evaluation.model_dump(mode="json"))

    reports = folder / "reports"
    write_table(build_table("tiny", evaluations, [], seed, DRAWS), [], reports)
    lost = explain_evaluations(evaluations, question_files, None, seed, DRAWS, DRAWS)
    write_json(reports / LOST_POINTS, lost.model_dump(mode="json"))
    (reports / PAGE).write_text("<h1>Report</h1>\n", encoding="utf-8")
    return Results(
        reports=reports,
        evaluations=evaluations,
        train_logs={},
        questions=folder / "questions",
        prompts=(),
    )


def _make_questions(rng: random.Random, count: int) -> list[Question]:
    questions: list[Question] = []
    for number in range(count):
        text = _text(rng, 15)
        questions.append(Question(id=f"q{number}", question=text, golden_answers=("town",)))

    return questions


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS.split(), k=words))


def _write_run(
    rng: random.Random, key: RowKey, questions: Sequence[Question], out: Path
) -> F1TableRow:
    """Write the rollouts of a row into ``out``, and return the row."""
    rollouts: list[Trajectory] = []
    for question, sample in itertools.product(questions, range(key.samples)):
        rollouts.append(_make_rollout(rng, key, question, sample))
    row = build_row(key, rollouts, True, DRAWS)
    write_jsonl(out / row.rollouts_file, rollouts)
    return row


def _make_rollout(rng: random.Random, key: RowKey, question: Question, sample: int) -> Trajectory:
    searches: list[tuple[str, str]] = []
    for _ in range(2):
        query = _text(rng, 5)
        passages = [f"[{rank}] A Title\n{_text(rng, 28)}" for rank in (1, 2, 3)]
        searches.append((query, "\n\n".join(passages)))
    return make_trajectory(question, sample, key, searches, rng.choice(("town", "city")))


def measure(
    results: Results, store: Path, predictions: int | None, traces: float
) -> tuple[float, float, int, int]:
    """Send a report once; return CPU seconds, MB, and the numbers of predictions and traces."""
    config = TrackConfig(
        experiment="benchmark", predictions=predictions, traces=traces, timeout_s=TIMEOUT_S
    )
    provenance = Provenance(tags={}, model_tags={}, params={"seed": 0}, defaults={}, datasets={})
    before_mb = size_mb(store)

    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder, "bundle")
        build_s, report = timed(lambda: build_bundle(results, provenance, config, 0, bundle))
        upload_s, _ = timed(lambda: upload(bundle, local_store(store), TIMEOUT_S))

    return build_s + upload_s, size_mb(store) - before_mb, report.predictions, report.traces


def main() -> None:
    """Send with every choice in turn, each round into a store of its own, and print the table of medians."""
    options = parse_options(__doc__, rounds=(3, "of all lines in turn; medians are shown"))
    measured: dict[str, list[tuple[float, float, int, int]]] = {label: [] for label, *_ in CHOICES}

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = make_results(folder / "results", 0)

        for number in range(options.rounds):
            store = folder / f"store{number}"
            with connected(local_store(store), TIMEOUT_S) as client:
                client.create_experiment("benchmark", (store / "artifacts").as_uri())

            # The first sending loads libraries
            measure(make_results(folder / f"first{number}", 1), store, 1, 0.0)
            for label, predictions, traces in CHOICES:
                measured[label].append(measure(results, store, predictions, traces))

    lines: list[list[str]] = []
    for label, figures in measured.items():
        cpu_s, size, predictions, traces = map(statistics.median, zip(*figures, strict=True))
        lines.append(
            [label, f"{predictions:,.0f}", f"{traces:,.0f}", f"{cpu_s:.1f}", f"{size:.1f}"]
        )

    publish(
        options,
        "tracking",
        ("sent of four models' 7,600 rollouts", "predictions", "traces", "CPU s", "MB"),
        lines,
    )


if __name__ == "__main__":
    main()
