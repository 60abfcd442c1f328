"""The F1 table: the rows of all models on every question set, and the paired differences between models.

It is canonical (rows sorted, no time of day), so that equal results have equal digests.
"""

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, RootModel

from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.files import read_jsonl, read_record
from deepsearch_rl.core.records import NonEmpty, Record, Trajectory
from deepsearch_rl.evaluate.comparisons import (
    TYPE_DRAWS,
    Comparison,
    corrected,
    difference_fields,
    is_nothing,
    type_differences,
)
from deepsearch_rl.evaluate.f1_row import (
    Control,
    F1TableRow,
    ModelEvaluation,
    counts_text,
)
from deepsearch_rl.evaluate.published import PublishedRow
from deepsearch_rl.evaluate.score import score_questions

DATASET_ORDER = ("multihoprag", "musique", "2wikimultihopqa", "hotpotqa")
DATASET_ORDER += ("nq", "triviaqa", "popqa", "bamboogle")
MODEL_ORDER = ("base", "sft", "rl", "sft_rl")
CONTROL_TITLES: dict[Control, str] = {
    "no_search": "no search",
    "random_passage": "random passages",
    "gold_passage": "gold passages",
}


def control_titles(controls: Container[str]) -> dict[str, str]:
    """Return the titles of those controls that some rows have, in the order of all."""
    titles: dict[str, str] = {}
    for name, title in CONTROL_TITLES.items():
        if name in controls:
            titles[name] = title

    return titles


class F1Table(Record):
    """``f1_table.json``."""

    schema_version: Literal[1] = 1
    profile: NonEmpty
    generated: bool = Field(description="some question set is generated, not a published one")
    rows: tuple[F1TableRow, ...]
    comparisons: tuple[Comparison, ...]
    published: tuple[PublishedRow, ...] = Field(
        default=(), description="figures of others for the same tasks"
    )

    @property
    def datasets(self) -> list[str]:
        """Question sets in reading order, the in-domain one first."""
        return in_order({row.dataset for row in self.rows}, DATASET_ORDER)

    @property
    def models(self) -> list[str]:
        """Models in training order."""
        return in_order({row.model for row in self.rows}, MODEL_ORDER)

    @property
    def reading_order(self) -> list[F1TableRow]:
        """All rows, by question set in reading order and model in training order."""
        return list(itertools.chain.from_iterable(map(self.rows_of, self.datasets)))

    @property
    def own_setting(self) -> F1TableRow:
        """The first main figure in reading order; it names the profile's own setting."""
        for row in self.reading_order:
            if not row.kind:
                return row
        return self.rows[0]

    def rows_of(self, dataset: str) -> list[F1TableRow]:
        """Return the rows of a question set, models in training order."""
        models = self.models
        rows = [row for row in self.rows if row.dataset == dataset]
        return sorted(rows, key=lambda row: models.index(row.model))

    def main_rows(self, dataset: str) -> list[F1TableRow]:
        """Return the main figures of a question set, models in training order."""
        return [row for row in self.rows_of(dataset) if not row.kind]

    def greedy_rows(self, dataset: str) -> dict[str, F1TableRow]:
        """Return the rows of greedy answers to a question set, by model."""
        return {row.model: row for row in self.rows_of(dataset) if row.kind == "greedy"}

    @property
    def training_notes(self) -> dict[str, str]:
        """What models were trained with in another form than they answered with, by model and kind of row."""
        notes: dict[str, str] = {}
        for row in self.reading_order:
            if row.training_note:
                name = f"{row.model}, {row.kind}" if row.kind else row.model
                notes[name] = row.training_note

        return notes

    @property
    def failure_notes(self) -> dict[str, str]:
        """How many rollouts of a row, then of its controls, ended without an answer, by model and question set.

        Each text counts by kind, as :func:`counts_text` does. A row whose rollouts all ended in an
        answer, and those of its controls as well, is left out.
        """
        notes: dict[str, str] = {}
        for row in self.reading_order:
            of_controls: list[str] = []
            for control, title in CONTROL_TITLES.items():
                score = row.controls.get(control)
                if score is not None and score.failures:
                    of_controls.append(f"{title}: {counts_text(score.failures)}")

            if row.failures or of_controls:
                texts = [counts_text(row.failures), *of_controls]
                notes[f"{row.model}, {row.run_name}"] = "; ".join(texts)

        return notes

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
    def setting_notes(self) -> dict[str, str]:
        """How the setting of main figures differs from that of the first one on their set, by model and set."""
        notes: dict[str, str] = {}
        for dataset in self.datasets:
            rows = self.main_rows(dataset)
            for row in rows[1:]:
                changes = row.setting_from(rows[0])
                if changes:
                    notes[f"{row.model}, {row.run_name}"] = changes

        return notes

    @property
    def setting_text(self) -> str:
        """Prompt and passages of the main figures, set by set where they differ, as the first one of each says."""
        sets: dict[str, list[str]] = {}
        for dataset in self.datasets:
            for row in self.main_rows(dataset)[:1]:
                sets.setdefault(row.setting_text, []).append(dataset)

        if len(sets) < 2:
            return self.own_setting.setting_text
        return "; ".join(f"{', '.join(names)}: {text}" for text, names in sets.items())

    @property
    def temperature_text(self) -> str:
        """The temperatures of the main figures as they were sent, with the models where they differ."""
        # Dictionaries as sets that keep their order: a model has a row on every question set
        models: dict[str, dict[str, None]] = {}
        for row in self.reading_order:
            if row.kind:
                continue
            text = row.temperature_text
            if row.sent_temperature is None:
                text = "the provider's own"
            models.setdefault(text, {})[row.model] = None

        if len(models) < 2:
            return next(iter(models), self.own_setting.temperature_text)
        return "; ".join(f"{text} ({', '.join(names)})" for text, names in models.items())

    @property
    def own_temperatures(self) -> list[str]:
        """The models that answered at their provider's own temperature."""
        models: dict[str, None] = {}
        for row in self.reading_order:
            if not row.temperature_sent:
                models[row.model] = None

        return list(models)

    @property
    def kept_start(self) -> dict[str, str]:
        """The models that answer every question as well as another one, by name, and that other model.

        No question has another score or another number of searches: RL kept the weights that it
        began with.
        """
        by_pair: dict[tuple[str, str], list[Comparison]] = {}
        for comparison in self.comparisons:
            pair = (comparison.model, comparison.other)
            by_pair.setdefault(pair, []).append(comparison)

        result: dict[str, str] = {}
        for (model, other), comparisons in by_pair.items():
            # Of models that are equal to each other in a circle, one has to stay.
            last = other
            while last in result:
                last = result[last]

            if last != model and all(map(is_nothing, comparisons)):
                result[model] = other

        return result

    @property
    def kept_start_notes(self) -> list[str]:
        """A sentence for every model that :attr:`for_readers` leaves out."""
        notes: list[str] = []
        for model, other in self.kept_start.items():
            equal = f"it answers every question exactly as well as `{other}`"
            notes.append(f"`{model}` kept its start: {equal}. It is left out here.")

        return notes

    @property
    def for_readers(self) -> "F1Table":
        """The table for readers: without the rows and comparisons of models that kept their start."""
        equal_models = self.kept_start.keys()
        rows = [row for row in self.rows if row.model not in equal_models]

        comparisons: list[Comparison] = []
        for comparison in self.comparisons:
            if equal_models.isdisjoint((comparison.model, comparison.other)):
                comparisons.append(comparison)

        return self.model_copy(update={"rows": tuple(rows), "comparisons": tuple(comparisons)})

    @property
    def tests(self) -> int:
        """How many p-values the comparisons have, those of searches included."""
        return 2 * len(self.comparisons)

    def comparisons_on(self, dataset: str) -> list[Comparison]:
        """Return the comparisons on a question set, the greedy answers of a pair of models after the sampled ones."""
        return [entry for entry in self.comparisons if entry.dataset == dataset]


class Figures(RootModel[dict[str, dict[str, dict[str, float]]]]):
    """Figures by three names: in ``metrics.json`` what they measure, the dataset (IFEval: the accuracy), the model."""


def build_table(
    profile: str,
    folders: Mapping[str, Path],
    pairs: Sequence[tuple[str, str]],
    seed: int,
    draws: int,
) -> F1Table:
    """Collect every model's rows and compare ``pairs`` of models wherever both answered the same set.

    Variants appear as rows only: what was answered under the profile's own setting is compared.
    ``folders`` holds every model's evaluation; ``draws`` is the number of resamples, and of sign
    patterns, of each comparison. Raise UnknownNameError where a pair names a model that was not
    evaluated, and as :func:`paired_differences`.
    """
    for name in itertools.chain.from_iterable(pairs):
        look_up("model in report.comparisons", name, folders)

    rows: dict[str, tuple[F1TableRow, ...]] = {}
    for name, folder in folders.items():
        rows[name] = read_record(folder / "rows.json", ModelEvaluation).rows

    comparisons: list[Comparison] = []

    for model, other in pairs:
        # Equal counts: a model may have answered fewer questions of a set. Their samples may differ
        rows_of_other = {(row.dataset, row.kind, row.n): row for row in rows[other]}

        for row in rows[model]:
            row_of_other = rows_of_other.get((row.dataset, row.kind, row.n))
            if row.variant or row_of_other is None:
                continue

            first_rollouts = read_jsonl(folders[model] / row.rollouts_file, Trajectory)
            second_rollouts = read_jsonl(folders[other] / row_of_other.rollouts_file, Trajectory)
            first = score_questions(first_rollouts, row.samples)
            second = score_questions(second_rollouts, row_of_other.samples)
            # Refuses runs over different questions
            whole = difference_fields(first, second, seed, draws)

            comparison = Comparison(
                dataset=row.dataset,
                temperature=row.temperature,
                greedy_only=row.greedy_only,
                model=model,
                other=other,
                types=type_differences(first, second, seed, draws // TYPE_DRAWS),
                **whole,
            )
            comparisons.append(comparison)

    # The sort is stable: pairs keep their order
    comparisons.sort(key=lambda entry: entry.dataset)
    all_rows = sorted(itertools.chain.from_iterable(rows.values()), key=lambda row: row.sort_key)

    return F1Table(
        profile=profile,
        generated=any(row.generated for row in all_rows),
        rows=tuple(all_rows),
        comparisons=tuple(corrected(comparisons)),
    )


def in_order(names: Iterable[str], order: Sequence[str]) -> list[str]:
    """Return known names in their usual order, then the others in alphabetical order."""

    def place(name: str) -> tuple[int, str]:
        return (order.index(name) if name in order else len(order), name)

    return sorted(set(names), key=place)
