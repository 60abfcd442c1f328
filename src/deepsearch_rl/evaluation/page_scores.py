"""The page's sections about scores: F1, differences, question types, controls, and how rollouts went."""

from collections.abc import Sequence

from deepsearch_rl.evaluation.markup import Cell, Markup, Row, figures, join, paragraph, side_by_side, small, table, tag
from deepsearch_rl.evaluation.plots import f1_figure, inline_svg
from deepsearch_rl.evaluation.rows import Control, F1TableRow
from deepsearch_rl.evaluation.tables import Comparison, F1Table, datasets_of, models_of, p_text, score_text, signed

CONTROL_TITLES: dict[Control, str] = {"no_search": "no search", "gold_passage": "gold passages"}


def named_set(row: F1TableRow) -> Cell:
    """The set's name, with "greedy" where that is how it was answered, labelled where it is generated."""
    label = [tag("generated")] if row.generated else []
    return join(row.dataset + ("" if row.main else ", greedy"), *label)


def _scored(value: float, low: float, high: float) -> Cell:
    return join(score_text(value), small(f"{score_text(low)} to {score_text(high)}"), between="")


def f1_section(found: F1Table) -> list[Markup]:
    """F1 of every model on every set, beside the best constant answer, and the same as a figure."""
    columns = [(name, main) for name in datasets_of(found) for main in (True, False)]
    rows = {(row.model, row.dataset, row.main): row for row in found.rows}
    columns = [key for key in columns if any((model, *key) in rows for model in models_of(found))]
    first = [next(rows[model, *key] for model in models_of(found) if (model, *key) in rows) for key in columns]
    head = ["model", *(named_set(row) for row in first)]
    body = [Row([model, *(_f1_cell(rows.get((model, *key))) for key in columns)]) for model in models_of(found)]
    constant = [join(score_text(row.constant.f1), small(f"“{row.constant.answer}”"), between="") for row in first]
    body.append(Row(["constant answer", *constant], aside=True))
    sampled = next((row for row in found.rows if row.main), found.rows[0])
    note = (
        "Scores are averaged per question first; intervals are 95 % bootstrap intervals over questions. Prompt "
        f"“{sampled.prompt}”, top {sampled.top_k} passages of at most {sampled.chunk_size} tokens. A rollout that "
        "fails scores zero and stays in the denominator. The constant answer is the one that scores best when given "
        "to every question of the set."
    )
    plots = [
        inline_svg(f1_figure(found, [name], columns=1), f"plot-{name}", f"F1 with 95 % intervals by model on {name}")
        for name in datasets_of(found)
    ]
    caption = "Filled: sampled. Hollow: greedy. Dashed: best constant answer."
    return [table("F1 and 95 % interval", head, body), paragraph(note, "note"), figures(plots, caption)]


def _f1_cell(row: F1TableRow | None) -> Cell:
    return _scored(row.f1, row.f1_low, row.f1_high) if row else ""


def differences_section(found: F1Table) -> list[Markup]:
    """Pairs of models compared question by question."""
    if not found.comparisons:
        return [paragraph("No two models answered the same questions.")]
    runs = list(dict.fromkeys((entry.dataset, entry.temperature) for entry in found.comparisons))
    runs.sort(key=lambda run: (datasets_of(found).index(run[0]), -run[1]))
    entries = {(entry.model, entry.other, entry.dataset, entry.temperature): entry for entry in found.comparisons}
    pairs = list(dict.fromkeys((entry.model, entry.other) for entry in found.comparisons))
    rows = {(row.dataset, row.temperature): row for row in found.rows}
    head = ["models", *(named_set(rows[run]) for run in runs)]
    body = [
        Row([f"{model} - {other}", *(_difference_cell(entries.get((model, other, *run))) for run in runs)])
        for model, other in pairs
    ]
    note = (
        "F1 of one model minus F1 of the other on the same questions, with a paired 95 % bootstrap interval and the "
        "p-value of a two-sided paired permutation test. A difference whose interval leaves out zero is set in bold."
    )
    return [paragraph(note, "note"), table("Paired differences in F1", head, body)]


def _difference_cell(entry: Comparison | None) -> Cell:
    if entry is None:
        return ""
    text = signed(entry.difference)
    shown = Markup(f"<strong>{text}</strong>") if entry.low > 0 or entry.high < 0 else text
    interval, p_value = f"{signed(entry.low)} to {signed(entry.high)}", f"p {p_text(entry.p_value)}"
    return join(shown, small(interval), small(p_value), between="")


def types_section(found: F1Table) -> list[Markup]:
    """Sampled F1 by question type, a table per set."""
    tables = [_types_table(rows) for rows in _by_set(found) if rows[0].types]
    return tables or [paragraph("The question sets name no types.")]


def _types_table(rows: Sequence[F1TableRow]) -> Markup:
    body = []
    for kind in sorted(rows[0].types):
        scores = [row.types[kind] for row in rows]
        cells = [_scored(score.f1, score.f1_low, score.f1_high) for score in scores]
        constant = join(score_text(scores[0].constant.f1), small(f"“{scores[0].constant.answer}”"), between="")
        body.append(Row([kind, str(scores[0].n), *cells, constant]))
    return table(named_set(rows[0]), ["type", "questions", *(row.model for row in rows), "best constant"], body)


def _by_set(found: F1Table) -> list[list[F1TableRow]]:
    """Sampled rows of each set, models in training order."""
    models = models_of(found)
    sets = [[row for row in found.rows if row.dataset == name and row.main] for name in datasets_of(found)]
    return [sorted(rows, key=lambda row: models.index(row.model)) for rows in sets if rows]


def controls_section(found: F1Table) -> list[Markup]:
    """What models score without search, and with the gold passages found for them."""
    note = (
        "The same models on the first questions of each set. No search: the tool is not offered. Gold passages: every "
        "search returns the passages that hold the gold facts. “With search” is the main run on the same questions."
    )
    sets = [[row for row in rows if row.controls] for rows in _by_set(found)]
    return [paragraph(note, "note"), side_by_side([_controls_table(rows) for rows in sets if rows])]


def _controls_table(rows: Sequence[F1TableRow]) -> Markup:
    names: list[Control] = [name for name in CONTROL_TITLES if name in rows[0].controls]
    body = []
    for row in rows:
        scores = [row.controls[name] for name in names]
        cells = [_scored(score.f1, score.f1_low, score.f1_high) for score in scores]
        body.append(Row([row.model, score_text(scores[0].searched_f1), *cells]))
    caption = join(named_set(rows[0]), f"{rows[0].controls[names[0]].n} questions")
    return table(caption, ["model", "with search", *(CONTROL_TITLES[name] for name in names)], body)


def behaviour_section(found: F1Table) -> list[Markup]:
    """Turns, searches and failures by kind."""
    note = (
        "Sampled runs. Turns and searches are means per rollout; the other columns count the rollouts that ended "
        "without an answer, by kind."
    )
    return [paragraph(note, "note"), side_by_side([_behaviour_table(rows) for rows in _by_set(found)])]


def _behaviour_table(rows: Sequence[F1TableRow]) -> Markup:
    kinds = sorted({kind for row in rows for kind in row.failures})
    body = [
        Row(
            [
                row.model,
                f"{row.mean_rounds:.2f}",
                f"{row.mean_tool_calls:.2f}",
                *(str(row.failures.get(kind, 0)) for kind in kinds),
            ]
        )
        for row in rows
    ]
    caption = join(named_set(rows[0]), f"{rows[0].n * rows[0].samples} rollouts")
    return table(caption, ["model", "turns", "searches", *(kind.replace("_", " ") for kind in kinds)], body)
