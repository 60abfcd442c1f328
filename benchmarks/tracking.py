"""What predictions and traces add to the sending of a report to a local MLflow store: CPU time and disk space.

The report is as large as the tiny profile's: four models, of each 1,200 sampled and 400 greedy answers to one question
set and 100 to each of three others, a rollout with two searches of three passages. Each line packs and sends it with
other values of `track.predictions` and `track.traces`, in turns, each time into the same store, which exists already.

    .venv/bin/python -m benchmarks.tracking
    .venv/bin/python -m benchmarks.tracking --docs docs/evaluation.md          # and the table into the document
"""

import random
import statistics
import tempfile
from pathlib import Path

from benchmarks.measure import option_parser, publish, size_mb, timed
from benchmarks.trajectories import make_trajectory, row_key
from deepsearch_rl.evaluation.report.tables import build_table, write_table
from deepsearch_rl.evaluation.scoring.aggregate import build_row
from deepsearch_rl.evaluation.scoring.f1_row import F1TableRow, ModelEvaluation, RowKey
from deepsearch_rl.files import write_json, write_jsonl
from deepsearch_rl.records import Question, Trajectory
from deepsearch_rl.tracking.bundle import Provenance, Results, TrackConfig, build_bundle
from deepsearch_rl.tracking.store import connected, local_store
from deepsearch_rl.tracking.upload import upload

MODELS = ("base", "rl", "sft", "sft_rl")
RUNS = (("multihoprag", 400, 3, 0.7), ("multihoprag", 400, 1, 0.0), *((name, 100, 1, 0.7) for name in ("a", "b", "c")))
"""Question set, questions, answers to each, temperature."""
WORDS = [
    "the",
    "film",
    "was",
    "made",
    "in",
    "a",
    "town",
    "by",
    "an",
    "artist",
    "who",
    "left",
    "her",
    "city",
    "and",
    "met",
]
TIMEOUT_S = 60.0
CHOICES: tuple[tuple[str, int | None, float], ...] = (
    ("scores and tables alone", 0, 0.0),
    ("200 predictions of every run", 200, 0.0),
    ("all predictions", None, 0.0),
    ("2 % of the rollouts as traces", 0, 0.02),
    ("10 % of the rollouts as traces", 0, 0.1),
    ("200 predictions and 2 % (the tiny profile)", 200, 0.02),
)


def make_rollout(rng: random.Random, key: RowKey, number: int, sample: int) -> Trajectory:
    """Return a rollout of two searches."""
    question = Question(id=f"q{number}", question=_text(rng, 15), golden_answers=("town",))
    results = ["\n\n".join(f"[{rank}] A Title\n{_text(rng, 28)}" for rank in (1, 2, 3)) for _ in range(2)]
    searches = [(_text(rng, 5), result) for result in results]
    return make_trajectory(question, sample, key, searches, rng.choice(("town", "city")))


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def make_results(folder: Path, seed: int) -> Results:
    """Write a finished report into ``folder``."""
    rng = random.Random(seed)
    evaluations = {model: folder / "evaluate" / model for model in MODELS}
    for model, out in evaluations.items():
        rows = tuple(_run(rng, model, out, *run) for run in RUNS)
        inputs = {"model": "a" * 64} | {f"questions/{name}/val": "b" * 64 for name, *_ in RUNS}
        evaluation = ModelEvaluation(model=model, seed=seed, settings_sha256="c" * 64, inputs=inputs, rows=rows)
        write_json(out / "rows.json", evaluation.model_dump(mode="json"))
    write_table(build_table("tiny", evaluations, [], seed, 100), [], folder / "reports")
    return Results(folder / "reports", evaluations, {}, folder / "questions")


def _run(
    rng: random.Random, model: str, out: Path, dataset: str, questions: int, samples: int, temperature: float
) -> F1TableRow:
    key = row_key(model, dataset, temperature, samples)
    rollouts = [make_rollout(rng, key, number, sample) for number in range(questions) for sample in range(samples)]
    row = build_row(key, rollouts, True, 100)
    write_jsonl(out / row.rollouts_file, rollouts)
    return row


def measure(results: Results, store: Path, predictions: int | None, traces: float) -> tuple[float, float, int, int]:
    """Send a report once; return CPU seconds, MB, and the numbers of predictions and traces."""
    config = TrackConfig(experiment="benchmark", predictions=predictions, traces=traces, timeout_s=TIMEOUT_S)
    provenance = Provenance(tags={}, model_tags={}, params={"seed": 0}, datasets={})
    before_mb = size_mb(store)
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder, "bundle")
        build_s, report = timed(lambda: build_bundle(results, provenance, config, 0, bundle))
        upload_s, _ = timed(lambda: upload(bundle, local_store(store), TIMEOUT_S))
    return build_s + upload_s, size_mb(store) - before_mb, report.predictions, report.traces


def compare(folder: Path, rounds: int) -> list[list[str]]:
    """Return a line per choice: medians over rounds, each round in a store of its own."""
    results = make_results(folder / "results", 0)
    measured = []
    for number in range(rounds):
        store = folder / f"store{number}"
        with connected(local_store(store), TIMEOUT_S) as client:
            client.create_experiment("benchmark", (store / "artifacts").as_uri())
        measure(make_results(folder / f"first{number}", 1), store, 1, 0.0)  # the first sending loads libraries
        measured.append([measure(results, store, predictions, traces) for _, predictions, traces in CHOICES])
    lines = []
    for (name, *_), columns in zip(CHOICES, zip(*measured, strict=True), strict=True):
        cpu, size = (statistics.median(column[place] for column in columns) for place in (0, 1))
        lines.append([name, f"{columns[0][2]:,}", f"{columns[0][3]:,}", f"{cpu:.1f}", f"{size:.1f}"])
    return lines


def main() -> None:
    """Print the table."""
    parser = option_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of all lines in turn; medians are shown (default 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = compare(Path(folder), options.rounds)
    header = ("sent of four models' 7,600 rollouts", "predictions", "traces", "CPU s", "MB")
    publish("tracking", header, lines, docs=options.docs)


if __name__ == "__main__":
    main()
