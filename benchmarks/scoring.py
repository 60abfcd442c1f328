"""CPU time of `deepsearch score`, of a loop over the published definitions, and of our resampling beside scipy's.

The loop does what common scorers do: for every metric, row and golden answer it normalises both texts anew. Ours is
what the command does between its imports and its output: reading and checking the file, five metrics, the table by
question type, the best constant answer of all questions and of each type, and bootstrap intervals where asked for. The
loop reads the file with the standard library, checks nothing and takes the means. Bootstrap and sign-flip test are
those of one set of questions and five metrics; the tests get a tenth of the draws, because scipy's takes so long.

    .venv/bin/python -m benchmarks.scoring
    .venv/bin/python -m benchmarks.scoring --docs docs/evaluation.md          # and the table into the document
"""

import json
import random
import re
import statistics
import string
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.measure import median_seconds, parse_options, publish
from deepsearch_rl.commands.score import ScoreReport, report_scores
from deepsearch_rl.evaluation.scoring.predictions import Prediction, score_predictions
from deepsearch_rl.evaluation.scoring.score import QuestionScores, bootstrap_intervals, paired_differences
from deepsearch_rl.files import write_jsonl

TYPES = ("bridge", "comparison", "inference", "null")
CLOSED = ("yes", "no", "noanswer")
SLOWER = 10
"""scipy's test gets this fraction of the draws."""
SYLLABLES = ("ka", "lo", "mi", "ren", "tas", "vel", "dor", "qui", "zé", "øst", "bur", "ny")


def make_rows(rows: int, seed: int) -> list[Prediction]:
    """Answers to questions of four types, some with aliases: half right, some wordy, some beside the point."""
    rng = random.Random(seed)

    def word() -> str:
        return "".join(rng.choices(SYLLABLES, k=rng.randint(2, 3))).title()

    def make_row(number: int) -> Prediction:
        date = f"{rng.randint(1, 28)} {rng.choice(('May', 'June', 'July'))} {rng.randint(1900, 2020)}"
        kinds = [[rng.choice(("Yes", "No"))], [date], [rng.choice(names)], rng.sample(names, rng.randint(2, 8))]
        [golds] = rng.choices(kinds, (15, 15, 50, 20))
        gold, name = rng.choice(golds), rng.choice(names)
        answers = (gold.lower(), f"It is {gold}, the namesake of {name}.", name, "Insufficient information.")
        return Prediction(
            id=f"q{number}",
            question=f"Who did {name} name after {rng.choice(names)} in {rng.randint(1800, 2020)}?",
            golden_answers=tuple(golds),
            pred=rng.choices(answers, (50, 25, 20, 5))[0],
            question_type=rng.choice(TYPES),
        )

    names = [" ".join(word() for _ in range(rng.randint(1, 3))) for _ in range(rows)]
    return list(map(make_row, range(rows)))


def loop_means(path: Path) -> dict[str, float]:
    """Return the means of the five metrics, each normalising every pair anew."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    metrics: dict[str, Callable[[str, str], float]] = {
        "em": lambda pred, gold: float(_normalise(pred) == _normalise(gold)),
        "f1": lambda pred, gold: _overlap(pred, gold)[0],
        "acc": lambda pred, gold: float(bool(_normalise(gold)) and _normalise(gold) in _normalise(pred)),
        "precision": lambda pred, gold: _overlap(pred, gold)[1],
        "recall": lambda pred, gold: _overlap(pred, gold)[2],
    }
    return {
        name: statistics.fmean(max(metric(row["pred"], gold) for gold in row["golden_answers"]) for row in rows)
        for name, metric in metrics.items()
    }


def _normalise(text: str) -> str:
    letters = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def _overlap(pred: str, gold: str) -> tuple[float, float, float]:
    ours, theirs = _normalise(pred), _normalise(gold)
    if (ours in CLOSED or theirs in CLOSED) and ours != theirs:
        return 0.0, 0.0, 0.0
    same = sum((Counter(ours.split()) & Counter(theirs.split())).values())
    if not same:
        return 0.0, 0.0, 0.0
    precision, recall = same / len(ours.split()), same / len(theirs.split())
    return 2 * precision * recall / (precision + recall), precision, recall


def ours(path: Path, draws: int) -> ScoreReport:
    """Return what the command computes."""
    return report_scores(score_predictions(path), seed=0, draws=draws)


def compare(path: Path, draws: int) -> dict[str, Callable[[], object]]:
    """Return the ways of scoring a file, which agree."""
    loop, report = loop_means(path), ours(path, 0)
    if (worst := max(abs(loop[name] - value) for name, value in report.metrics.items())) > 1e-12:
        sys.exit(f"the two disagree by {worst}")
    return {
        "loop over the definitions, five means": partial(loop_means, path),
        "`deepsearch score --draws 0`": partial(ours, path, 0),
        f"`deepsearch score --draws {draws}`": partial(ours, path, draws),
    }


def compare_bootstraps(values_QM: np.ndarray, draws: int) -> dict[str, Callable[[], object]]:
    """Return scipy's bootstrap and ours of the metrics of questions, which agree."""

    def scipys() -> stats._common.ConfidenceInterval:
        rng = np.random.default_rng(0)
        options = {"n_resamples": draws, "batch": 10, "method": "percentile", "rng": rng}
        return stats.bootstrap((values_QM,), np.mean, axis=0, **options).confidence_interval

    intervals = bootstrap_intervals(values_QM, 0, draws)
    if not np.allclose([interval.low for interval in intervals], scipys().low, rtol=0, atol=1e-12):
        sys.exit("our bootstrap and scipy's disagree")
    return {
        f"scipy.stats.bootstrap, {draws:,} resamples": scipys,
        f"ours, {draws:,} resamples": partial(bootstrap_intervals, values_QM, 0, draws),
    }


def compare_tests(values_QM: np.ndarray, draws: int) -> dict[str, Callable[[], object]]:
    """Return scipy's sign-flip test and ours of differences of five metrics."""
    ids = ("q",) * len(values_QM)
    run, zero = (
        QuestionScores(ids, ids, dict(zip("abcde", scores.T, strict=True)))
        for scores in (values_QM, np.zeros_like(values_QM))
    )

    def scipys() -> object:
        options = {"n_resamples": draws, "batch": 10, "vectorized": True, "rng": np.random.default_rng(0)}
        return stats.permutation_test((values_QM,), np.mean, permutation_type="samples", **options)

    return {
        f"scipy.stats.permutation_test, {draws:,} patterns": scipys,
        f"ours with intervals, {draws:,} patterns": partial(paired_differences, run, zero, 0, draws, "abcde"),
    }


def time_ways(ways: Mapping[str, Callable[[], object]], rounds: int) -> list[list[str]]:
    """Return name, median CPU seconds, and how many times as fast as the first way, for each way."""
    seconds = median_seconds(ways, rounds)
    first = next(iter(seconds.values()))
    return [[name, f"{own:.3f}", f"{first / own:.1f}"] for name, own in seconds.items()]


def main() -> None:
    """Print the tables."""
    options = parse_options(
        __doc__,
        rows=(20_000, "answers"),
        draws=(1000, "bootstrap resamples"),
        rounds=(5, "of all ways in turn; medians are shown"),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "predictions.jsonl")
        write_jsonl(path, make_rows(options.rows, seed=0))
        lines = time_ways(compare(path, options.draws), options.rounds)
    publish(options, "scoring", [f"{options.rows:,} rows", "CPU s", "times as fast"], lines)
    values_QM = np.random.default_rng(0).random((options.rows, 5))
    pairs = compare_bootstraps(values_QM, options.draws), compare_tests(values_QM - 0.5, options.draws // SLOWER)
    lines = [line for ways in pairs for line in time_ways(ways, options.rounds)]
    publish(options, "resampling", [f"{options.rows:,} questions, five metrics", "CPU s", "times as fast"], lines)


if __name__ == "__main__":
    main()
