"""``deepsearch trajectories``: statistics of rollouts, and files for other trainers."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deepsearch_rl.cli.shared import PROMPT_HELP, is_given, print_table
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_jsonl, require_another_file
from deepsearch_rl.core.records import Trajectory
from deepsearch_rl.data.flashrag import read_questions
from deepsearch_rl.evaluate.predictions import first_line
from deepsearch_rl.evaluate.trajectory_statistics import (
    Spread,
    TrajectoryStatistics,
    read_statistics,
)

# Formats whose rows are the conversations of trajectories
TO_CONVERSATIONS = ("ms-swift", "ms-swift-turns", "trl")
# Options of `convert` that some formats alone read
READ_BY: Mapping[str, tuple[str, ...]] = {
    "dataset": ("search-r1", "verl"),
    "split": ("search-r1", "verl"),
    "prompt": ("search-r1", "verl", "rlinf"),
    "model": ("trajectories",),
}
# Title, header, rows
Table = tuple[str, list[str], list[list[str]]]
# The figure that every rollout has whose gold evidence is known
EVIDENCE = "evidence_shown"
app = typer.Typer(
    no_args_is_help=True, help="What became of rollouts, and files for other trainers."
)


@app.command("convert")
def convert_command(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(help="Trajectories, questions, or another system's results.")
    ],
    out: Annotated[Path, typer.Argument(help="File to write.", dir_okay=False, writable=True)],
    to: Annotated[
        str,
        Option(
            help="From trajectories: ms-swift | ms-swift-turns | trl; from questions: search-r1 | verl | rlinf; "
            "from results: trajectories."
        ),
    ],
    dataset: Annotated[
        str | None,
        Option(
            help="search-r1, verl (required): data source by which the trainer picks its reward, e.g. nq. All are "
            "scored by exact match."
        ),
    ] = None,
    split: Annotated[str, Option(help="search-r1, verl: split of the questions.")] = "train",
    prompt: Annotated[
        str | None,
        Option(
            help=f"search-r1, verl, rlinf: {PROMPT_HELP[0].lower()}{PROMPT_HELP[1:]}",
            show_default="verl: multihoprag_nothink; else search_tags",
        ),
    ] = None,
    model: Annotated[
        str, Option(help="trajectories: the model that made the results.")
    ] = "imported",
) -> None:
    """Write rows for another trainer, or read FlashRAG's and DeepSearch-RL's results back as trajectories.

    Questions are read in any layout, including Search-R1's training rows. Failed rollouts are left
    out of training rows. ms-swift and trl have one row per trajectory, with the reasoning of all
    turns; ms-swift-turns has one row per turn, for models whose history carries no reasoning.

        deepsearch trajectories convert data/tiny/trajectories/teacher.jsonl rows.jsonl --to trl
    """
    from deepsearch_rl.environment.exchange import FORMATS, export_rows  # noqa: PLC0415 - pandera
    from deepsearch_rl.evaluate.published import import_results  # noqa: PLC0415

    require_another_file(out, [source])
    # An unknown format has an error of its own
    if to in FORMATS:
        _require_used_options(context, to)
    if to in TO_CONVERSATIONS:
        _require_trajectories(source)
    if to == "trajectories":
        count = import_results(source, out, model)
    else:
        count = export_rows(source, out, to, dataset=dataset, split=split, prompt=prompt)

    typer.echo(f"{count} rows in {out}")


@app.command("stats")
def stats_command(
    trajectories: Annotated[Path, typer.Argument(help="JSON Lines of trajectories.")],
    questions: Annotated[
        Path | None, Option(help="Their questions, for the figures on gold evidence.")
    ] = None,
    as_markdown: Annotated[bool, Option("--markdown", help="Print Markdown tables.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show rounds, tool calls, tokens, evidence and outcomes of all rollouts, of the successes, and of the failures.

    A success has an F1 of at least 0.8. Cells are mean ± standard deviation over the rollouts that
    have the figure. `last_..._tokens` count the last model call, other tokens all calls of a
    rollout; `answered_without_evidence` is the share of rollouts that answered before all gold
    evidence was shown. Figures that another system's results do not hold are left out.

        deepsearch trajectories stats data/tiny/trajectories/teacher.jsonl
    """
    _require_trajectories(trajectories)
    statistics = read_statistics(trajectories, questions)
    if questions is not None:
        _require_questions_of(trajectories, questions, statistics)
    if as_json:
        typer.echo(statistics.model_dump_json(indent=2))
        return

    for title, header, rows in _tables(statistics):
        if as_markdown:
            table = [header, ["---"] * len(header), *rows]
            lines = [f"| {' | '.join(cells)} |" for cells in table]
            typer.echo("\n".join([f"## {title}", "", *lines, ""]))
        else:
            print_table(title, header, rows)


def _require_used_options(context: typer.Context, to: str) -> None:
    """Raise ConfigError for an option that rows of this format do not read; it would be left out in silence."""
    for option, formats in READ_BY.items():
        if to not in formats and is_given(context, option):
            raise ConfigError(
                f"--{option} is for --to {' or '.join(formats)}, and {to} does not read it; leave it out."
            )


def _require_trajectories(path: Path) -> None:
    """Raise ConfigError where a path is a folder, or a file whose first row is a prediction or a result."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file in it.")
    if not path.is_file():
        return
    try:
        row = json.loads(first_line(path))
    except ValueError:
        return

    # What else does not fit is named by its field
    names = row.keys() if isinstance(row, dict) else ()
    if "pred" in names:
        raise ConfigError(
            f"{path} holds predictions, which have no turns and searches; `deepsearch score {path}` reads them."
        )
    if "output" in names:
        raise ConfigError(
            f"{path} holds another system's results; `deepsearch trajectories convert {path} OUT --to trajectories` "
            "makes trajectories of them."
        )


def _require_questions_of(
    trajectories: Path, questions: Path, statistics: TrajectoryStatistics
) -> None:
    """Raise ConfigError where no rollout is of these questions: figures on evidence would be left out in silence."""
    if EVIDENCE in statistics.groups["all"].figures:
        return

    ids = {question.id for question in read_questions(questions)}
    rollouts = 0
    for trajectory in read_jsonl(trajectories, Trajectory):
        rollouts += 1
        if trajectory.question_id in ids:
            return
    raise ConfigError(
        f"0 of {rollouts} rollouts of {trajectories} are of questions in {questions}; name the set and split that "
        "they answer, or leave --questions out."
    )


def _tables(statistics: TrajectoryStatistics) -> Iterator[Table]:
    groups = statistics.groups
    total = groups["all"].rollouts
    names = [f"{name} ({group.rollouts})" for name, group in groups.items()]

    rows: list[list[str]] = []
    for figure in groups["all"].figures:
        row = [figure]
        row += [_spread(group.figures.get(figure)) for group in groups.values()]
        rows.append(row)
    yield f"Rollouts of {statistics.questions} questions", ["mean ± std", *names], rows

    for quantity in ("rounds", "tool_calls"):
        counts_of_all = getattr(groups["all"], quantity)
        # Results of other systems do not say
        if not counts_of_all:
            continue

        rows = []
        for value in counts_of_all:
            row = [str(value)]
            for group in groups.values():
                row.append(_share(getattr(group, quantity).get(value, 0), group.rollouts))
            rows.append(row)

        label = quantity.replace("_", " ")
        yield f"Rollouts by {label}", [label, *names], rows

    outcomes = [[name, _share(count, total)] for name, count in statistics.outcomes.items()]
    yield "How rollouts ended", ["outcome", "rollouts"], outcomes


def _spread(spread: Spread | None) -> str:
    return f"{spread.mean:.3f} ± {spread.std:.3f}" if spread else "-"


def _share(count: int, total: int) -> str:
    return f"{count} ({count / total:.1%})" if total else "-"
