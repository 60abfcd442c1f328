"""The F1 table: rows and paired differences of all models, as JSON, Markdown, CSV and metrics.

The JSON is canonical (rows sorted, no time of day), so that equal results have equal digests. Nested records are
pydantic models. What is flat, and what plots and spreadsheets read, is CSV, which is checked column by column with
pandera before it is written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import pandas as pd
import pandera.pandas as pa
from pydantic import Field, RootModel

from deepsearch_rl.errors import look_up
from deepsearch_rl.evaluation.report.published import PublishedRow
from deepsearch_rl.evaluation.scoring.f1_row import Control, F1Score, F1TableRow, IfevalScore, ModelEvaluation, Rounded
from deepsearch_rl.evaluation.scoring.score import paired_differences, score_questions
from deepsearch_rl.files import atomic_file, read_jsonl, read_record, write_json
from deepsearch_rl.frames import check_frame
from deepsearch_rl.records import NonEmpty, Record, Trajectory

DATASET_ORDER = ("multihoprag", "musique", "2wikimultihopqa", "hotpotqa")
MODEL_ORDER = ("base", "sft", "rl", "sft_rl")
CONTROL_TITLES: dict[Control, str] = {"no_search": "no search", "gold_passage": "gold passages"}
CSV_COLUMNS = tuple(name for name in F1TableRow.model_fields if name not in {"constant", "types", "controls"})
"""The key and figures of a row as docs/contracts.md lists them; baselines follow under names of their own."""
BASELINE_COLUMNS = ("constant_f1", "no_search_f1", "gold_passage_f1")
CellT = TypeVar("CellT")
_SHARE = pa.Check.in_range(0, 1)
_COUNT = pa.Check.ge(0)
_SCORES = ("em", "f1", "f1_low", "f1_high", "acc", "precision", "recall", "constant_f1")
F1_TABLE = pa.DataFrameSchema(
    {
        **{name: pa.Column(str) for name in ("model", "checkpoint", "dataset", "corpus", "prompt", "variant")},
        **{name: pa.Column(int, pa.Check.ge(1)) for name in ("top_k", "samples", "n")},
        "chunk_size": pa.Column(int, _COUNT),
        **{name: pa.Column(float, _SHARE, coerce=True) for name in _SCORES},
        **{name: pa.Column(float, _COUNT, coerce=True) for name in ("temperature", "mean_rounds", "mean_tool_calls")},
    },
    checks=pa.Check(lambda frame: (frame.f1_low <= frame.f1) & (frame.f1 <= frame.f1_high), name="f1 in its interval"),
    unique=["model", "checkpoint", "dataset", "corpus", "prompt", "top_k", "chunk_size", "temperature", "variant"],
)
"""One line per row of the F1 table; baselines and failures may stand beside these columns."""


class Comparison(Record):
    """``model`` minus ``other`` in F1, over the same questions."""

    dataset: NonEmpty
    temperature: float
    model: NonEmpty
    other: NonEmpty
    n: int = Field(ge=1, description="questions")
    difference: Rounded
    low: Rounded = Field(description="lower end of the paired 95 % bootstrap interval")
    high: Rounded
    p_value: Rounded = Field(description="two-sided paired permutation test")


class F1Table(Record):
    """``f1_table.json``."""

    schema_version: Literal[1] = 1
    profile: NonEmpty
    generated: bool = Field(description="some question set is generated, not a published one")
    rows: tuple[F1TableRow, ...]
    comparisons: tuple[Comparison, ...]
    published: tuple[PublishedRow, ...] = Field(default=(), description="figures of others for the same tasks")

    @property
    def own_rows(self) -> tuple[F1TableRow, ...]:
        """The rows under the profile's own setting, without variants."""
        return tuple(row for row in self.rows if not row.variant)

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


class Metrics(RootModel[dict[str, dict[str, dict[str, float]]]]):
    """``metrics.json``: figures by name, dataset (IFEval: accuracy) and model."""


class Grid(NamedTuple, Generic[CellT]):
    """A table with a column per run, each named by one of its rows, and lines of cells; None where there is none."""

    columns: list[F1TableRow]
    lines: dict[str, list[CellT | None]]


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
            difference = paired_differences(first, second, seed, draws, ("f1",))["f1"]
            comparison = Comparison(
                dataset=row.dataset,
                temperature=row.temperature,
                model=model,
                other=other,
                n=len(first.question_ids),
                difference=difference.mean,
                **difference.model_dump(exclude={"mean"}),
            )
            comparisons.append(comparison)
    comparisons.sort(key=lambda entry: (entry.dataset, -entry.temperature))  # stable: pairs keep their order
    all_rows = tuple(sorted((row for of_model in rows.values() for row in of_model), key=lambda row: row.sort_key))
    generated = any(row.generated for row in all_rows)
    return F1Table(profile=profile, generated=generated, rows=all_rows, comparisons=tuple(comparisons))


def published_grid(table: F1Table) -> dict[str, dict[str, PublishedRow]]:
    """Return published F1 and exact match under the profile's own setting, by model and the name of the run."""
    runs = {row.run_name for row in table.own_rows}
    lines: dict[str, dict[str, PublishedRow]] = {}
    for row in table.published:
        if row.run in runs:
            lines.setdefault(row.model, {})[row.run] = row
    return lines


def f1_grid(table: F1Table) -> Grid[F1TableRow]:
    """Return F1 under the profile's own setting: a line per model, a column per set and, where there is one, greedy."""
    rows = {(row.model, row.dataset, row.kind): row for row in table.own_rows}
    keys = [(dataset, kind) for dataset in table.datasets for kind in ("", "greedy")]
    columns = {key: row for key in keys for model in reversed(table.models) if (row := rows.get((model, *key)))}
    return Grid(list(columns.values()), {model: [rows.get((model, *key)) for key in columns] for model in table.models})


def write_table(table: F1Table, ifeval: Sequence[IfevalScore], folder: Path) -> None:
    """Write ``f1_table.json``, ``.md``, ``.csv`` and ``metrics.json``; raises as :func:`check_frame`."""
    write_json(folder / "f1_table.json", table.model_dump(mode="json"))
    write_json(folder / "metrics.json", metrics(table, ifeval))
    columns = (*CSV_COLUMNS, *BASELINE_COLUMNS)
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
    """Return key and figures of rows by :data:`CSV_COLUMNS`, failures as ``kind=count`` with semicolons between."""
    return [
        {name: getattr(row, name) for name in CSV_COLUMNS}
        | {"failures": ";".join(f"{kind}={count}" for kind, count in sorted(row.failures.items()))}
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
        for name, value in (("f1", row.f1), ("em", row.em), ("tool_calls", row.mean_tool_calls)):
            result.setdefault(name + suffix, {}).setdefault(row.dataset, {})[row.model] = round(value, 4)
    for score in ifeval:
        result.setdefault("ifeval", {}).setdefault("prompt_strict", {})[score.model] = round(score.prompt_strict, 4)
    return result


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


def markdown(table: F1Table) -> str:
    """Return the table as Markdown: F1 by model and set, baselines, variants and paired differences."""
    label, own = " (generated data)" if table.generated else "", table.own_setting
    settings = (
        f"Mean over questions with its 95 % bootstrap interval; temperature {own.temperature:g}, prompt "
        f"`{own.prompt}`, top-{own.top_k} passages {own.passage_length}; a failed rollout "
        "scores 0. *Constant*: the best single answer given to every question. *No search*, *gold passages*: the last "
        "model of the table without its tool, and with the gold passages in place of found ones, on the first "
        "questions of each set."
    )
    parts = [f"### F1, profile {table.profile}{label}", _markdown_rows(_f1_lines(table)), settings]
    if sources := dict.fromkeys(row.source for row in table.published):
        parts.append(f"*Published*: not measured here. {'; '.join(sources)}.")
    if len(table.own_rows) < len(table.rows):
        parts += ["### The same under other settings", _markdown_rows(_variant_lines(table))]
    if table.comparisons:
        parts += ["### Differences in F1, paired by question", _markdown_rows(_difference_lines(table))]
    return "\n\n".join(parts) + "\n"


def _f1_lines(table: F1Table) -> Iterator[list[str]]:
    grid = f1_grid(table)
    yield ["model", *(f"{row.run_name} ({row.n} x {row.samples})" for row in grid.columns)]
    for model, rows in grid.lines.items():
        yield [model, *(interval_text(row) if row else "" for row in rows)]
    for model, published in published_grid(table).items():
        cells = (published.get(row.run_name) for row in grid.columns)
        yield [f"*{model}, published*", *(published_text(row) if row else "" for row in cells)]
    yield ["*constant answer*", *(score_text(row.constant.f1) for row in grid.columns)]
    for control, title in CONTROL_TITLES.items():
        scores = [row.controls.get(control) if row else None for row in grid.lines[table.models[-1]]]
        yield [f"*{title}*", *(score_text(score.f1) if score else "" for score in scores)]


def _variant_lines(table: F1Table) -> Iterator[list[str]]:
    """Yield a line per variant of a model and set, beside the model's score under the profile's own setting."""
    own_scores = {(row.model, row.dataset): score_text(row.f1) for row in table.own_rows if row.main}
    yield ["variant", "model", "set", "F1", "own setting", "prompt", "top-k", "corpus", "chunk size", "questions"]
    for row in (row for row in table.rows if row.variant):
        own_score = own_scores.get((row.model, row.dataset), "")
        setting = [f"`{row.prompt}`", str(row.top_k), row.corpus, str(row.chunk_size or "uncut")]
        questions = f"{row.n} x {row.samples}"
        yield [row.variant, row.model, row.dataset, interval_text(row), own_score, *setting, questions]
    variants = {row.run_name: row for row in table.rows if row.variant}
    for published in (row for row in table.published if row.run in variants):
        like = variants[published.run]
        setting = [f"`{like.prompt}`", str(like.top_k), like.corpus, ""]
        score = published_text(published)
        yield [like.variant, f"*{published.model}, published*", like.dataset, score, "", *setting, str(published.n)]


def _difference_lines(table: F1Table) -> Iterator[list[str]]:
    yield ["set", "models", "questions", "difference", "p"]
    order = table.datasets
    for entry in sorted(table.comparisons, key=lambda entry: (order.index(entry.dataset), -entry.temperature)):
        run = f"{entry.dataset}{'' if entry.temperature > 0 else ', greedy'}"
        difference = f"{signed(entry.difference)} [{signed(entry.low)}, {signed(entry.high)}]"
        yield [run, f"{entry.model} - {entry.other}", str(entry.n), difference, p_text(entry.p_value)]


def _markdown_rows(lines: Iterable[Sequence[str]]) -> str:
    """Return lines of cells as a Markdown table that can be read as plain text."""
    head, *body = lines
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    padded = [map(str.ljust, line, widths) for line in (head, ["-" * width for width in widths], *body)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)
