"""CPU time of `deepsearch score`, of a loop over the published definitions, and of our resampling beside scipy's.

    .venv/bin/python -m benchmarks.scoring

The loop does what common scorers do: for every metric, row and golden answer it normalises both
texts anew. It reads the file with the standard library, checks nothing and takes the means. Ours is
what the command does between its imports and its output. Bootstrap and sign-flip test are those of
one set of questions and five metrics; the tests get a tenth of the draws, because scipy's takes so
long.
"""

import json
import random
import re
import statistics
import string
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.measure import median_seconds, parse_options, publish
from deepsearch_rl.cli.score import ScoreReport, report_scores
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.evaluate.predictions import Prediction, score_predictions
from deepsearch_rl.evaluate.score import (
    QuestionScores,
    bootstrap_intervals,
    paired_differences,
)

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
        date = (
            f"{rng.randint(1, 28)} {rng.choice(('May', 'June', 'July'))} {rng.randint(1900, 2020)}"
        )
        kinds = [
            [rng.choice(("Yes", "No"))],
            [date],
            [rng.choice(names)],
            rng.sample(names, rng.randint(2, 8)),
        ]
        [golds] = rng.choices(kinds, (15, 15, 50, 20))
        gold = rng.choice(golds)
        name = rng.choice(names)
        answers = (
            gold.lower(),
            f"It is {gold}, the namesake of {name}.",
            name,
            "Insufficient information.",
        )
        return Prediction(
            id=f"q{number}",
            question=f"Who did {name} name after {rng.choice(names)} in {rng.randint(1800, 2020)}?",
            golden_answers=tuple(golds),
            pred=rng.choices(answers, (50, 25, 20, 5))[0],
            question_type=rng.choice(TYPES),
        )

    def make_name() -> str:
        return " ".join(word() for _ in range(rng.randint(1, 3)))

    names = [make_name() for _ in range(rows)]
    return list(map(make_row, range(rows)))


def loop_means(path: Path) -> dict[str, float]:
    """Return the means of the five metrics, each normalising every pair anew."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    metrics: dict[str, Callable[[str, str], float]] = {
        "em": lambda pred, gold: float(_normalise(pred) == _normalise(gold)),
        "f1": lambda pred, gold: _overlap(pred, gold)[0],
        "acc": lambda pred, gold: float(
            bool(_normalise(gold)) and _normalise(gold) in _normalise(pred)
        ),
        "precision": lambda pred, gold: _overlap(pred, gold)[1],
        "recall": lambda pred, gold: _overlap(pred, gold)[2],
    }
    means: dict[str, float] = {}
    for name, metric in metrics.items():
        scores: list[float] = []
        for row in rows:
            scores.append(max(metric(row["pred"], gold) for gold in row["golden_answers"]))
        means[name] = statistics.fmean(scores)

    return means


def _normalise(text: str) -> str:
    letters = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def _overlap(pred: str, gold: str) -> tuple[float, float, float]:
    ours = _normalise(pred)
    theirs = _normalise(gold)
    if (ours in CLOSED or theirs in CLOSED) and ours != theirs:
        return 0.0, 0.0, 0.0
    same = sum((Counter(ours.split()) & Counter(theirs.split())).values())
    if not same:
        return 0.0, 0.0, 0.0
    precision = same / len(ours.split())
    recall = same / len(theirs.split())
    return 2 * precision * recall / (precision + recall), precision, recall


def ours(path: Path, draws: int) -> ScoreReport:
    """Return what the command computes."""
    return report_scores(score_predictions(path), seed=0, draws=draws)


def ways_to_score(path: Path, draws: int) -> dict[str, Callable[[], object]]:
    """Return the ways of scoring a file."""
    return {
        "loop over the definitions, five means": partial(loop_means, path),
        "`deepsearch score --draws 0`": partial(ours, path, 0),
        f"`deepsearch score --draws {draws}`": partial(ours, path, draws),
    }


def ways_to_resample(values_QM: np.ndarray, draws: int) -> list[dict[str, Callable[[], object]]]:
    """Return scipy's bootstrap and ours, then the two sign-flip tests, of five metrics' differences."""
    ids = ("q",) * len(values_QM)
    flips = draws // SLOWER
    run = QuestionScores(ids, ids, dict(zip("abcde", values_QM.T, strict=True)))
    zero = QuestionScores(ids, ids, dict.fromkeys("abcde", np.zeros(len(values_QM))))
    shared: dict[str, Any] = {"data": (values_QM,), "statistic": np.mean, "batch": 10, "rng": 0}
    bootstraps = {
        f"scipy.stats.bootstrap, {draws:,} resamples": partial(
            stats.bootstrap, **shared, n_resamples=draws, method="percentile"
        ),
        f"ours, {draws:,} resamples": partial(bootstrap_intervals, values_QM, 0, draws),
    }
    tests = {
        f"scipy.stats.permutation_test, {flips:,} patterns": partial(
            stats.permutation_test,
            **shared,
            n_resamples=flips,
            permutation_type="samples",
            vectorized=True,
        ),
        f"ours with intervals, {flips:,} patterns": partial(
            paired_differences, run, zero, 0, flips, "abcde"
        ),
    }
    return [bootstraps, tests]


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
        lines = time_ways(ways_to_score(path, options.draws), options.rounds)

    publish(options, "scoring", [f"{options.rows:,} rows", "CPU s", "times as fast"], lines)
    values_QM = np.random.default_rng(0).random((options.rows, 5)) - 0.5
    lines = []
    for ways in ways_to_resample(values_QM, options.draws):
        lines += time_ways(ways, options.rounds)
    publish(
        options,
        "resampling",
        [f"{options.rows:,} questions, five metrics", "CPU s", "times as fast"],
        lines,
    )


if __name__ == "__main__":
    main()
