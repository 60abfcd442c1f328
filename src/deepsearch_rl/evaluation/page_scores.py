"""The page's sections about scores: F1, differences, question types, controls, and how rollouts went."""

from collections.abc import Mapping, Sequence

from deepsearch_rl.evaluation.markup import Cell, Markup, Row, figure, join, paragraph, small, table, tag
from deepsearch_rl.evaluation.plots import f1_figure, inline_svg
from deepsearch_rl.evaluation.rows import F1TableRow
from deepsearch_rl.evaluation.tables import F1Table, datasets_of, models_of, p_text, score_text

CONTROL_TITLES = {"no_search": "no search", "gold_passage": "gold passages"}
MINUS = "\N{MINUS SIGN}"


def named_set(row: F1TableRow, detail: str = "") -> Cell:
    """The set's name, labelled where it is generated."""
    label = [tag("generated")] if row.generated else []
    return join(row.dataset + detail, *label)


def _scored(value: float, low: float, high: float) -> Cell:
    return join(score_text(value), small(f"{score_text(low)} to {score_text(high)}"), between="")


def f1_section(found: F1Table) -> list[Markup]:
    """F1 of every model on every set, beside the best constant answer, and the same as a figure."""
    columns = [(name, main) for name in datasets_of(found) for main in (True, False)]
    rows = {(row.model, row.dataset, row.main): row for row in found.rows}
    columns = [key for key in columns if any((model, *key) in rows for model in models_of(found))]
    first = [next(rows[model, *key] for model in models_of(found) if (model, *key) in rows) for key in columns]
    head = ["model", *(named_set(row, "" if row.main else ", greedy") for row in first)]
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
    svg = inline_svg(
        f1_figure(found, columns=1), "plot-f1", "F1 with 95 % intervals by model, one panel per question set"
    )
    caption = "Filled: sampled. Hollow: greedy. Dashed: best constant answer."
    return [table("F1 and 95 % interval", head, body), paragraph(note, "note"), figure(svg, caption)]


def _f1_cell(row: F1TableRow | None) -> Cell:
    return _scored(row.f1, row.f1_low, row.f1_high) if row else ""


def differences_section(found: F1Table) -> list[Markup]:
    """Pairs of models compared question by question."""
    order, generated = datasets_of(found), {row.dataset for row in found.rows if row.generated}
    entries = sorted(found.comparisons, key=lambda entry: (order.index(entry.dataset), -entry.temperature))
    body = [
        Row(
            [
                f"{entry.model} {MINUS} {entry.other}",
                join(
                    entry.dataset + ("" if entry.temperature > 0 else ", greedy"),
                    *([tag("generated")] if entry.dataset in generated else []),
                ),
                str(entry.n),
                _difference_cell(entry.difference, entry.low, entry.high),
                p_text(entry.p_value),
            ]
        )
        for entry in entries
    ]
    note = (
        "F1 of one model minus F1 of the other on the same questions, with a paired 95 % bootstrap interval and a "
        "two-sided paired permutation test. Differences whose interval leaves out zero are set in bold."
    )
    head = ["models", "set", "questions", "difference", "p"]
    return [paragraph(note, "note"), table("Paired differences in F1", head, body)]


def _difference_cell(value: float, low: float, high: float) -> Cell:
    text = signed(value)
    shown = Markup(f"<strong>{text}</strong>") if low > 0 or high < 0 else text
    return join(shown, small(f"{signed(low)} to {signed(high)}"), between="")


def signed(value: float) -> str:
    """A difference with its sign: ``+.062``."""
    return ("+" if value >= 0 else MINUS) + score_text(abs(value))


def types_section(found: F1Table) -> list[Markup]:
    """Sampled F1 by question type, a table per set."""
    parts = []
    for dataset in datasets_of(found):
        rows = {row.model: row for row in found.rows if row.dataset == dataset and row.main}
        models = [model for model in models_of(found) if model in rows]
        kinds = sorted({kind for row in rows.values() for kind in row.types})
        if kinds:
            parts.append(_types_table(rows, models, kinds))
    return parts or [paragraph("The question sets name no types.")]


def _types_table(rows: Mapping[str, F1TableRow], models: Sequence[str], kinds: Sequence[str]) -> Markup:
    body = []
    for kind in kinds:
        scores = [rows[model].types[kind] for model in models]
        cells = [_scored(score.f1, score.f1_low, score.f1_high) for score in scores]
        constant = join(score_text(scores[0].constant.f1), small(f"“{scores[0].constant.answer}”"), between="")
        body.append(Row([kind, str(scores[0].n), *cells, constant]))
    return table(named_set(rows[models[0]]), ["type", "questions", *models, "best constant"], body)


def controls_section(found: F1Table) -> list[Markup]:
    """What models score without search, and with the gold passages found for them."""
    order = datasets_of(found)
    rows = sorted((row for row in found.rows if row.controls), key=lambda row: order.index(row.dataset))
    names = [name for name in CONTROL_TITLES if any(name in row.controls for row in rows)]
    body = []
    for row in rows:
        scores = [row.controls.get(name) for name in names]
        known = next(score for score in scores if score)
        cells = [_scored(score.f1, score.f1_low, score.f1_high) if score else "" for score in scores]
        body.append(Row([join(row.model, "on", named_set(row)), str(known.n), score_text(known.searched_f1), *cells]))
    note = (
        "The same model on the first questions of each set. No search: the tool is not offered. Gold passages: every "
        "search returns the passages that hold the gold facts. “With search” is the main run on the same questions."
    )
    head = ["model and set", "questions", "with search", *(CONTROL_TITLES[name] for name in names)]
    return [paragraph(note, "note"), table("F1 under the controls", head, body)]


def behaviour_section(found: F1Table) -> list[Markup]:
    """Turns, searches and failures by kind."""
    order = datasets_of(found)
    rows = sorted((row for row in found.rows if row.main), key=lambda row: order.index(row.dataset))
    kinds = sorted({kind for row in rows for kind in row.failures})
    body = [
        Row(
            [
                join(row.model, "on", named_set(row)),
                str(row.n * row.samples),
                f"{row.mean_rounds:.2f}",
                f"{row.mean_tool_calls:.2f}",
                *(str(row.failures.get(kind, 0)) for kind in kinds),
            ]
        )
        for row in rows
    ]
    head = ["model and set", "rollouts", "turns", "searches", *(kind.replace("_", " ") for kind in kinds)]
    note = "Turns and searches are means per rollout; the other columns count rollouts that ended without an answer."
    return [paragraph(note, "note"), table("Behaviour and failures by kind, sampled runs", head, body)]
