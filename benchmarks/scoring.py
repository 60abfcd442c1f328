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
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.measure import alternate, parse_options, publish
from deepsearch_rl.commands.score import ScoreReport, report_scores
from deepsearch_rl.evaluation.scoring.predictions import score_predictions
from deepsearch_rl.evaluation.scoring.score import QuestionScores, bootstrap_intervals, paired_differences

TYPES = ("bridge", "comparison", "inference", "null")
CLOSED = ("yes", "no", "noanswer")
SLOWER = 10
"""scipy's test gets this fraction of the draws."""
Overlap = tuple[float, float, float]


def make_rows(rows: int, seed: int) -> list[dict[str, object]]:
    """Answers to questions of four types, some with aliases: half right, some wordy, some beside the point."""
    rng = random.Random(seed)
    names = [_name(rng) for _ in range(rows)]
    golds_of = [_golds(rng, names) for _ in range(rows)]
    return [
        {
            "id": f"q{number}",
            "question": f"Who did {rng.choice(names)} name after {rng.choice(names)} in {rng.randint(1800, 2020)}?",
            "golden_answers": golds,
            "pred": _answer(rng, golds, names),
            "question_type": rng.choice(TYPES),
        }
        for number, golds in enumerate(golds_of)
    ]


def _name(rng: random.Random) -> str:
    syllables = ("ka", "lo", "mi", "ren", "tas", "vel", "dor", "qui", "zé", "øst", "bur", "ny")
    words = ["".join(rng.choices(syllables, k=rng.randint(2, 3))).title() for _ in range(rng.randint(1, 3))]
    return " ".join([*(["The"] if rng.random() < 0.1 else []), *words])


def _golds(rng: random.Random, names: Sequence[str]) -> list[str]:
    kind = rng.random()
    if kind < 0.15:
        return [rng.choice(("Yes", "No"))]
    if kind < 0.3:
        return [f"{rng.randint(1, 28)} {rng.choice(('May', 'June', 'July'))} {rng.randint(1900, 2020)}"]
    return rng.sample(names, k=1 if kind < 0.8 else rng.randint(2, 8))


def _answer(rng: random.Random, golds: Sequence[str], names: Sequence[str]) -> str:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(golds).lower()
    if kind < 0.75:
        return f"It is {rng.choice(golds)}, the namesake of {rng.choice(names)}."
    return rng.choice(names) if kind < 0.95 else "Insufficient information."


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


def _overlap(pred: str, gold: str) -> Overlap:
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


def compare(path: Path, rounds: int, draws: int) -> list[list[str]]:
    """Return a line per way of scoring: median CPU seconds over rounds in turn, and how many times as fast."""
    loop, report = loop_means(path), ours(path, 0)
    worst = max(abs(loop[name] - value) for name, value in report.metrics.items())
    if worst > 1e-12:
        raise SystemExit(f"the two disagree by {worst}")
    ways: dict[str, Callable[[], object]] = {
        "loop over the definitions, five means": lambda: loop_means(path),
        "`deepsearch score --draws 0`": lambda: ours(path, 0),
        f"`deepsearch score --draws {draws}`": lambda: ours(path, draws),
    }
    return _lines(ways, rounds)


def compare_resampling(questions: int, rounds: int, draws: int) -> list[list[str]]:
    """Return a line per way of resampling five metrics of ``questions`` questions, in pairs of scipy's and ours."""
    values_QM = np.random.default_rng(0).random((questions, 5))
    patterns = draws // SLOWER
    run, zero = (
        QuestionScores(("q",) * questions, ("q",) * questions, dict(zip("abcde", values.T, strict=True)))
        for values in (values_QM - 0.5, np.zeros_like(values_QM))
    )

    def scipys_bootstrap() -> stats._common.ConfidenceInterval:
        rng = np.random.default_rng(0)
        options = {"n_resamples": draws, "batch": 10, "method": "percentile", "rng": rng}
        return stats.bootstrap((values_QM,), np.mean, axis=0, **options).confidence_interval

    def scipys_test() -> object:
        options = {"n_resamples": patterns, "batch": 10, "vectorized": True, "rng": np.random.default_rng(0)}
        return stats.permutation_test((values_QM - 0.5,), np.mean, permutation_type="samples", **options)

    intervals = bootstrap_intervals(values_QM, 0, draws)
    if not np.allclose([interval.low for interval in intervals], scipys_bootstrap().low, rtol=0, atol=1e-12):
        raise SystemExit("our bootstrap and scipy's disagree")
    bootstraps = {
        f"scipy.stats.bootstrap, {draws:,} resamples": scipys_bootstrap,
        f"ours, {draws:,} resamples": lambda: bootstrap_intervals(values_QM, 0, draws),
    }
    tests = {
        f"scipy.stats.permutation_test, {patterns:,} patterns": scipys_test,
        f"ours with intervals, {patterns:,} patterns": lambda: paired_differences(run, zero, 0, patterns, "abcde"),
    }
    return [*_lines(bootstraps, rounds), *_lines(tests, rounds)]


def _lines(ways: Mapping[str, Callable[[], object]], rounds: int) -> list[list[str]]:
    """Return name, median CPU seconds, and how many times as fast as the first way, for each way."""
    medians = {name: statistics.median(seconds) for name, seconds in alternate(ways, rounds).items()}
    first = next(iter(medians.values()))
    return [[name, f"{own:.3f}", f"{first / own:.1f}"] for name, own in medians.items()]


def main() -> None:
    """Print the table."""
    options = parse_options(
        __doc__,
        rows=(20_000, "answers"),
        draws=(1000, "bootstrap resamples of the last line"),
        rounds=(5, "of all ways in turn; medians are shown"),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "predictions.jsonl")
        rows = make_rows(options.rows, seed=0)
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        lines = compare(path, options.rounds, options.draws)
    header = [f"{options.rows:,} rows", "CPU s", "times as fast"]
    publish(options, "scoring", header, lines)
    lines = compare_resampling(options.rows, options.rounds, options.draws)
    publish(options, "resampling", [f"{options.rows:,} questions, five metrics", *header[1:]], lines)


if __name__ == "__main__":
    main()
