"""The F1 table: rows and paired differences of all models, as JSON, Markdown, CSV and metrics.

The JSON is canonical (rows sorted, no time of day), so that equal results have equal digests. Nested records are
pydantic models. What is flat, and what plots and spreadsheets read, is CSV, which is checked column by column with
pandera before it is written.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pandera.pandas as pa
from jinja2 import Environment, StrictUndefined
from pydantic import Field, RootModel

from deepsearch_rl.answers import SUCCESS_F1
from deepsearch_rl.errors import look_up
from deepsearch_rl.evaluation.report.published import PublishedRow
from deepsearch_rl.evaluation.scoring.f1_row import Control, F1Score, F1TableRow, IfevalScore, ModelEvaluation, Rounded
from deepsearch_rl.evaluation.scoring.score import TOOL_CALLS, QuestionScores, paired_differences, score_questions
from deepsearch_rl.files import atomic_file, read_jsonl, read_record, write_json
from deepsearch_rl.frames import check_frame
from deepsearch_rl.records import NonEmpty, Record, Trajectory

TYPE_DRAWS = 10  # a tenth of the draws of a whole set, since there are many types
MARKDOWN = Path(__file__).with_name("f1_table.md")
DATASET_ORDER = ("multihoprag", "musique", "2wikimultihopqa", "hotpotqa")
MODEL_ORDER = ("base", "sft", "rl", "sft_rl")
CONTROL_TITLES: dict[Control, str] = {"no_search": "no search", "gold_passage": "gold passages"}
_NO_COLUMNS = {"temperature_sent", "asked_again", "pass_at", "constant", "types", "controls"}
CSV_COLUMNS = tuple(name for name in F1TableRow.model_fields if name not in _NO_COLUMNS)
"""The key and figures of a row as docs/contracts.md lists them; pass@k and baselines follow under their own names."""
BASELINE_COLUMNS = ("constant_f1", "no_search_f1", "gold_passage_f1")
_SHARE = pa.Check.in_range(0, 1)
_COUNT = pa.Check.ge(0)
_SCORES = ("em", "f1", "f1_low", "f1_high", "acc", "precision", "recall", "constant_f1")
F1_TABLE = pa.DataFrameSchema(
    {
        **{
            name: pa.Column(str)
            for name in ("model", "checkpoint", "dataset", "corpus", "prompt", "retriever", "variant")
        },
        **{name: pa.Column(int, pa.Check.ge(1)) for name in ("top_k", "samples", "n")},
        "chunk_size": pa.Column(int, _COUNT),
        "trained_with_other": pa.Column(str),
        **{name: pa.Column(float, _SHARE, coerce=True) for name in _SCORES},
        **{name: pa.Column(float, _COUNT, coerce=True) for name in ("temperature", "mean_rounds", "mean_tool_calls")},
    },
    checks=pa.Check(lambda frame: (frame.f1_low <= frame.f1) & (frame.f1 <= frame.f1_high), name="f1 in its interval"),
    unique=[
        *("model", "checkpoint", "dataset", "corpus", "prompt", "top_k", "chunk_size", "retriever", "temperature"),
        "variant",
    ],
)
"""One line per row of the F1 table; baselines and failures may stand beside these columns."""


class Change(Record):
    """One model minus another in the mean of a figure, over the same questions."""

    difference: Rounded
    low: Rounded = Field(description="lower end of the paired 95 % bootstrap interval")
    high: Rounded
    p_value: Rounded = Field(description="two-sided paired permutation test")


class Difference(Change):
    """One model minus another in F1."""

    n: int = Field(ge=1, description="questions")
    tool_calls: Change = Field(description="the same in searches asked for per rollout")


class TypeDifference(Difference):
    """The difference over the questions of one type, and the ids of those that turned.

    A question is right where the mean F1 of its answers is :data:`SUCCESS_F1` or more.
    """

    gained: tuple[str, ...] = Field(description="questions that only the model has right, not the other")
    lost: tuple[str, ...] = Field(description="questions that only the other has right")


class Comparison(Difference):
    """``model`` minus ``other`` on one question set."""

    dataset: NonEmpty
    temperature: float
    model: NonEmpty
    other: NonEmpty
    types: dict[str, TypeDifference] = Field(default={}, description="by type of question, where they have one")

    @property
    def run_name(self) -> str:
        """The question set, and whether the answers were greedy, as in a row's ``run_name``."""
        return self.dataset if self.temperature > 0 else f"{self.dataset}, greedy"


class F1Table(Record):
    """``f1_table.json``."""

    schema_version: Literal[1] = 1
    profile: NonEmpty
    generated: bool = Field(description="some question set is generated, not a published one")
    rows: tuple[F1TableRow, ...]
    comparisons: tuple[Comparison, ...]
    published: tuple[PublishedRow, ...] = Field(default=(), description="figures of others for the same tasks")

    @property
    def datasets(self) -> list[str]:
        """Question sets in reading order, the in-domain one first."""
        return in_order((row.dataset for row in self.rows), DATASET_ORDER)

    @property
    def models(self) -> list[str]:
        """Models in training order."""
        return in_order((row.model for row in self.rows), MODEL_ORDER)

    @property
    def reading_order(self) -> list[F1TableRow]:
        """All rows, by question set in reading order and model in training order."""
        return [row for dataset in self.datasets for row in self.rows_of(dataset)]

    @property
    def own_setting(self) -> F1TableRow:
        """The first main figure in reading order; it names the profile's own setting."""
        return next((row for row in self.reading_order if not row.kind), self.rows[0])

    def rows_of(self, dataset: str) -> list[F1TableRow]:
        """Return the rows of a question set, models in training order."""
        models = self.models
        return sorted((row for row in self.rows if row.dataset == dataset), key=lambda row: models.index(row.model))

    def main_rows(self, dataset: str) -> list[F1TableRow]:
        """Return the main figures of a question set, models in training order."""
        return [row for row in self.rows_of(dataset) if not row.kind]

    def greedy_rows(self, dataset: str) -> dict[str, F1TableRow]:
        """Return the rows of greedy answers to a question set, by model."""
        return {row.model: row for row in self.rows_of(dataset) if row.kind == "greedy"}

    @property
    def training_notes(self) -> dict[str, str]:
        """What models were trained with in another form than they answered with, by model and kind of row."""
        rows = [row for row in self.reading_order if row.training_note]
        return {f"{row.model}, {row.kind}" if row.kind else row.model: row.training_note for row in rows}

    @property
    def again_notes(self) -> dict[str, int]:
        """How many rollouts of a row stand in place of one that a server had failed, by model and question set."""
        notes: dict[str, int] = {}
        for row in self.reading_order:
            name = f"{row.model}, {row.run_name}"
            if row.asked_again:
                notes[name] = row.asked_again
            for control, score in row.controls.items():
                if score.asked_again:
                    notes[f"{name}, {CONTROL_TITLES[control]}"] = score.asked_again
        return notes

    @property
    def own_temperatures(self) -> list[str]:
        """The models that answered at their provider's own temperature."""
        return list(dict.fromkeys(row.model for row in self.reading_order if not row.temperature_sent))

    def comparisons_on(self, dataset: str) -> list[Comparison]:
        """Return the comparisons on a question set, the greedy answers of a pair of models after the sampled ones."""
        return [entry for entry in self.comparisons if entry.dataset == dataset]


class Figures(RootModel[dict[str, dict[str, dict[str, float]]]]):
    """Figures by three names: in ``metrics.json`` what they measure, the dataset (IFEval: the accuracy), the model."""


def build_table(
    profile: str, folders: Mapping[str, Path], pairs: Sequence[tuple[str, str]], seed: int, draws: int
) -> F1Table:
    """Collect every model's rows and compare ``pairs`` of models wherever both answered the same set.

    Variants appear as rows only: what was answered under the profile's own setting is compared. ``folders`` holds every
    model's evaluation; ``draws`` is the number of resamples, and of sign patterns, of each comparison. Raise
    UnknownNameError where a pair names a model that was not evaluated, and as :func:`paired_differences`.
    """
    for name in (name for pair in pairs for name in pair):
        look_up("model in report.comparisons", name, folders)
    rows = {name: read_record(folder / "rows.json", ModelEvaluation).rows for name, folder in folders.items()}
    comparisons: list[Comparison] = []
    for model, other in pairs:
        runs_of_other = {(row.dataset, row.kind, row.n) for row in rows[other]}
        for row in rows[model]:
            if row.variant or (row.dataset, row.kind, row.n) not in runs_of_other:
                continue
            first, second = (
                score_questions(read_jsonl(folders[name] / row.rollouts_file, Trajectory), row.samples)
                for name in (model, other)
            )
            whole = _difference(first, second, seed, draws)  # refuses runs over different questions
            comparison = Comparison(
                dataset=row.dataset,
                temperature=row.temperature,
                model=model,
                other=other,
                types={
                    kind: _type_difference(first.of_type(kind), second.of_type(kind), seed, draws // TYPE_DRAWS)
                    for kind in first.type_names
                },
                **whole,
            )
            comparisons.append(comparison)
    comparisons.sort(key=lambda entry: entry.dataset)  # stable: pairs keep their order
    all_rows = tuple(sorted((row for of_model in rows.values() for row in of_model), key=lambda row: row.sort_key))
    generated = any(row.generated for row in all_rows)
    return F1Table(profile=profile, generated=generated, rows=all_rows, comparisons=tuple(comparisons))


def _difference(first: QuestionScores, second: QuestionScores, seed: int, draws: int) -> dict[str, Any]:
    """Return the fields of a :class:`Difference`."""
    changes = {
        name: {"difference": paired.mean, **paired.model_dump(exclude={"mean"})}
        for name, paired in paired_differences(first, second, seed, draws, ("f1", TOOL_CALLS)).items()
    }
    return {"n": len(first.question_ids), TOOL_CALLS: changes[TOOL_CALLS], **changes["f1"]}


def _type_difference(first: QuestionScores, second: QuestionScores, seed: int, draws: int) -> TypeDifference:
    first_Q, second_Q = (scores.metrics["f1"] >= SUCCESS_F1 for scores in (first, second))
    turns = (first_Q & ~second_Q, second_Q & ~first_Q)
    gained, lost = (tuple(itertools.compress(first.question_ids, turned_Q)) for turned_Q in turns)
    return TypeDifference(**_difference(first, second, seed, draws), gained=gained, lost=lost)


def write_table(table: F1Table, ifeval: Sequence[IfevalScore], folder: Path) -> None:
    """Write ``f1_table.json``, ``.md``, ``.csv`` and ``metrics.json``; raises as :func:`check_frame`."""
    write_json(folder / "f1_table.json", table.model_dump(mode="json"))
    write_json(folder / "metrics.json", metrics(table, ifeval))
    columns = (*CSV_COLUMNS, *(f"pass_at_{k}" for k in passes(table.rows)), *BASELINE_COLUMNS)
    lines = [
        flat | {"constant_f1": row.constant.f1} | {f"{name}_f1": score.f1 for name, score in row.controls.items()}
        for row, flat in zip(table.rows, flat_rows(table.rows), strict=True)
    ]
    frame = pd.DataFrame(lines, columns=list(columns), dtype=object)
    check_frame(frame.infer_objects(), F1_TABLE, "f1_table.csv")
    with atomic_file(folder / "f1_table.csv") as partial:
        frame.to_csv(partial, index=False, lineterminator="\n")
    with atomic_file(folder / "f1_table.md") as partial:
        partial.write_text(markdown(table), encoding="utf-8")


def flat_rows(rows: Iterable[F1TableRow]) -> list[dict[str, Any]]:
    """Return rows by :data:`CSV_COLUMNS` and ``pass_at_<k>``.

    Failures and rollouts that were asked for again are ``kind=count``, what a model was trained with in another form is
    ``prompt;tool``.
    """
    return [
        {name: getattr(row, name) for name in CSV_COLUMNS}
        | row.pass_scores
        | {"failures": ";".join(f"{kind}={count}" for kind, count in sorted(row.counts.items()))}
        | {"trained_with_other": row.flat_trained_with_other}
        for row in rows
    ]


def published_lines(table: F1Table) -> list[dict[str, Any]]:
    """Return the published scores as rows beside those of :func:`flat_rows`, with ``source`` and ``published``."""
    return [
        {"model": row.model, "dataset": row.run, "n": row.n, row.metric: row.score, "source": row.source}
        | {"published": True}
        for row in table.published
    ]


def metrics(table: F1Table, ifeval: Sequence[IfevalScore]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the main figures by dataset and model, nested for ``dvc metrics show`` and ``dvc metrics diff``."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for row in table.rows:
        suffix = f"_{row.kind}" if row.kind else ""
        figures = {"f1": row.f1, "em": row.em, "tool_calls": row.mean_tool_calls, **row.pass_scores}
        for name, value in figures.items():
            result.setdefault(name + suffix, {}).setdefault(row.dataset, {})[row.model] = round(value, 4)
    for score in ifeval:
        result.setdefault("ifeval", {}).setdefault("prompt_strict", {})[score.model] = round(score.prompt_strict, 4)
    return result


def passes(rows: Iterable[F1TableRow]) -> list[int]:
    """Return the k of every pass@k that rows have, ascending."""
    return sorted({k for row in rows for k in row.pass_at})


def in_order(names: Iterable[str], order: Sequence[str]) -> list[str]:
    """Return known names in their usual order, then the others in alphabetical order."""
    return sorted(set(names), key=lambda name: (order.index(name) if name in order else len(order), name))


def score_text(value: float) -> str:
    """Return a score or difference with three decimals and no leading zero: ``.712``, ``-.030``, ``1.000``."""
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"


def signed(value: float) -> str:
    """Return a difference with its sign: ``+.062``."""
    return ("+" if value >= 0 else "-") + score_text(abs(value))


def p_text(p_value: float) -> str:
    """Return a p-value with three decimals, or the bound that the number of draws can show."""
    return "< .001" if p_value < 0.001 else score_text(p_value)


def published_text(row: PublishedRow) -> str:
    """Return a published score as a cell: ``.521``, ``EM .433``."""
    return f"{'EM ' if row.metric == 'em' else ''}{score_text(row.score)}"


def interval_text(score: F1Score) -> str:
    """Return F1 with its interval: ``.712 [.680, .741]``."""
    return f"{score_text(score.f1)} [{score_text(score.f1_low)}, {score_text(score.f1_high)}]"


FILTERS = {
    "interval": interval_text,
    "p": p_text,
    "pass_at": "pass@{}".format,
    "published": published_text,
    "score": score_text,
    "signed": signed,
}
"""Texts of figures, by their names in templates."""


def markdown(table: F1Table) -> str:
    """Return the table as Markdown: main figures by set and model, baselines, variants and paired differences."""
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= FILTERS | {"aligned": _aligned}
    main = [row for row in table.reading_order if not row.kind]
    return environment.from_string(MARKDOWN.read_text(encoding="utf-8")).render(
        table=table,
        passes=passes(main),
        controls={name: title for name, title in CONTROL_TITLES.items() if any(name in row.controls for row in main)},
        main={(row.model, row.dataset): row for row in main},
        variants=[row for row in table.rows if row.variant],
    )


def _aligned(text: str) -> str:
    """Return lines of cells with bars between as a Markdown table that can be read as plain text."""
    head, *body = ([cell.strip() for cell in line.split("|")] for line in text.strip().splitlines())
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    padded = [map(str.ljust, line, widths) for line in (head, ["-" * width for width in widths], *body)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)
