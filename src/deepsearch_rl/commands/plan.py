"""``deepsearch plan``: hours, disk, memory, tokens and cost of a profile, stage by stage, before anything starts."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deepsearch_rl.commands.defaults import named_numbers
from deepsearch_rl.commands.summary import ProfileName
from deepsearch_rl.commands.terminal import print_table
from deepsearch_rl.core.profile import find_profile
from deepsearch_rl.planning.estimate import Plan, StageWork, make_plan, require_hours


def plan_command(
    profile: ProfileName = "tiny",
    slope: Annotated[
        list[str] | None, Option(help="`name=value` in place of an assumption; may be repeated.")
    ] = None,
    check: Annotated[
        bool, Option("--check", help="Only compare the hours with requires.max_hours.")
    ] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a run of a profile takes, stage by stage: time, disk, memory, an API's tokens and their price.

    The figures are sizes in params times slopes: those that preflight measured on this machine, or
    else assumptions, which are listed with their source. Every stage is counted, also one that need
    not run again.

        deepsearch plan gpu
        deepsearch plan gpu --slope rollout_eager_s=0.05 --slope copies=1
    """
    read = find_profile(Path(), profile)
    plan = make_plan(read, named_numbers("--slope", slope or (), "name=value, e.g. rollout_s=0.05"))

    if check:
        require_hours(plan, read)
    elif as_json:
        typer.echo(json.dumps(as_values(plan), indent=2))
    else:
        show(plan)


def as_values(plan: Plan) -> dict[str, object]:
    """Return the plan as JSON values: its stages, their totals, and all slopes."""
    stages = [
        {
            **asdict(work),
            "seconds": work.seconds(plan.slopes),
            "cost": plan.cost(work) if work.api else 0.0,
        }
        for work in plan.stages
    ]
    slopes = {name: slope.model_dump() for name, slope in plan.slopes.items()}
    return {
        "profile": plan.profile,
        "machine": plan.machine,
        "hours": plan.hours,
        "stages": stages,
        "slopes": slopes,
    }


def show(plan: Plan) -> None:
    """Print the stages with totals, the assumptions, and the prices."""
    rows = [
        *(_cells(plan, work.stage, [work]) for work in plan.stages),
        _cells(plan, "all / highest", plan.stages),
    ]
    header = (
        "stage",
        "time",
        "disk GiB",
        "host GiB",
        "GPU GiB",
        "million tokens, read + written",
        "price",
    )
    print_table(f"Profile {plan.profile} on a machine like {plan.machine}", header, rows)
    typer.echo(
        f"A run takes {_time(plan.hours)}, for stages run side by side (slope side_by_side)."
    )
    used = {name for work in plan.stages for name, amount in work.amounts.items() if amount}
    lines = [
        (name, f"{slope.value:.4g}", slope.source)
        for name, slope in plan.slopes.items()
        if name in used or not name.endswith("_s")
    ]
    print_table(
        "Assumptions (--slope NAME=VALUE for another value)", ("slope", "value", "source"), lines
    )

    for name in sorted({work.api for work in plan.stages if work.api}):
        price = plan.file.prices.get(name)
        text = (
            f"{price.prompt} and {price.completion} USD per million tokens, {price.source}"
            if price
            else "not known"
        )
        typer.echo(f"Price of {name}: {text}.")


def _cells(plan: Plan, title: str, works: Sequence[StageWork]) -> tuple[str, ...]:
    """Return a line of the table: sums of time, disk, tokens and price, and the highest memory."""
    seconds = sum(work.seconds(plan.slopes) for work in works)
    gpu_gib = max(work.gpu_gib for work in works)
    costs = [plan.cost(work) for work in works if work.api]
    read, written = (
        sum(counts) / 1e6 for counts in zip(*(work.tokens for work in works), strict=True)
    )
    return (
        title,
        _time(seconds / 3600),
        f"{sum(work.disk_gib for work in works):.1f}",
        f"{max(work.host_gib for work in works):.1f}",
        f"{gpu_gib:.0f}" if gpu_gib else "",
        f"{read:.1f} + {written:.1f}" if costs else "",
        ""
        if not costs
        else "not known"
        if None in costs
        else f"{sum(filter(None, costs)):.2f} USD",
    )


def _time(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.1f} min"
