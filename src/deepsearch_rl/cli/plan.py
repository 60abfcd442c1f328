"""``deepsearch plan``: hours, disk, memory, tokens and cost of a profile, stage by stage, before anything starts."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deepsearch_rl.cli.defaults import named_numbers, require_effect
from deepsearch_rl.cli.planning.plan import Plan, make_plan, require_hours
from deepsearch_rl.cli.planning.scale import Scale, verl_scales
from deepsearch_rl.cli.planning.sizes import StageWork
from deepsearch_rl.cli.profile_argument import ProfileName
from deepsearch_rl.cli.profile_inputs import missing_inputs
from deepsearch_rl.cli.terminal import print_table
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.profile import find_profile


def plan_command(
    context: typer.Context,
    profile: ProfileName = "tiny",
    slope: Annotated[
        list[str] | None, Option(help="`name=value` in place of an assumption; may be repeated.")
    ] = None,
    check: Annotated[
        bool, Option("--check", help="Only compare the hours with requires.max_hours.")
    ] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
    sizes: Annotated[
        str | None,
        Option(
            help="With `engine: verl`: a table of models of these sizes instead, in thousand million parameters, "
            "e.g. `3,7,14,72`."
        ),
    ] = None,
) -> None:
    """Show what a run of a profile takes, stage by stage: time, disk, memory, an API's tokens and their price.

    The figures are sizes in params times slopes: those that preflight measured on this machine, or
    else assumptions, which are listed with their source. Every stage is counted, also one that need
    not run again.

        deepsearch plan gpu
        deepsearch plan gpu --slope rollout_eager_s=0.05 --slope copies=1
        deepsearch plan search_r1 --sizes 3,7,14,72
    """
    settings = find_profile(Path(), profile)
    slopes = named_numbers("--slope", slope or (), "name=value, e.g. rollout_s=0.05")
    if sizes is not None:
        reason = "with --sizes, whose models have no limit of hours; leave one of them out"
        require_effect(context, ["check"], reason)
        show_scales(list(verl_scales(settings, slopes, _numbers(sizes))), as_json=as_json)
        return

    plan = make_plan(settings, slopes)
    # What it writes to stderr is a stage's error
    if check:
        reason = "with --check, which prints nothing; leave one of them out"
        require_effect(context, ["as_json"], reason)
        require_hours(plan, settings)
        return

    # Without its endpoint.json an API's model looks like one that is served here, which costs nothing
    for requirement in missing_inputs(settings, Path()):
        typer.echo(f"Missing: {requirement.what}. To do: {requirement.fix}.", err=True)

    if as_json:
        typer.echo(json.dumps(as_values(plan), indent=2))
    else:
        show(plan)


def _numbers(text: str) -> list[float]:
    """Return the numbers of a list; raise ConfigError where one is none, or not above 0."""
    numbers: list[float] = []
    for part in text.split(","):
        try:
            number = float(part)
        except ValueError:
            number = 0.0
        if not 0 < number < math.inf:
            raise ConfigError(f"--sizes {text}: {part!r} is no size of a model, e.g. 3,7,14,72.")
        numbers.append(number)
    return numbers


def show_scales(scales: Sequence[Scale], *, as_json: bool) -> None:
    """Print a line for each size of model."""
    if as_json:
        typer.echo(json.dumps([asdict(scale) for scale in scales], indent=2))
        return

    rows: list[tuple[str, ...]] = []
    for scale in scales:
        rows.append(
            (
                f"{scale.billions:g}B",
                f"{scale.nodes} x {scale.gpus_per_node}",
                str(scale.tensor_parallel),
                f"{scale.gpu_gib:.0f}",
                f"{scale.host_gib:.0f}",
                f"{scale.disk_gib:.0f}",
                f"{scale.hours:.1f}",
                f"{scale.rollout_hours:.1f}",
                f"{scale.queries_per_s:.0f}",
                f"{scale.cores:.1f}",
            )
        )

    header = ("model", "nodes x GPUs", "tensor parallel", "GiB of a GPU", "GiB of a node")
    header += ("checkpoints GiB", "hours", "of them rollouts", "queries/s", "cores that answer")
    print_table("RL by veRL, by size of the model", header, rows)
    typer.echo(
        "Nothing of it has been measured on GPUs: the slopes are assumptions, without lost time."
    )


def as_values(plan: Plan) -> dict[str, object]:
    """Return the plan as JSON values: its stages, their totals, and all slopes."""
    stages: list[dict[str, object]] = []
    for work in plan.stages:
        seconds = work.seconds(plan.slopes)
        cost = plan.cost(work) if work.api else 0.0
        stages.append({**asdict(work), "seconds": seconds, "cost": cost})

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
    rows = [_cells(plan, work.stage, [work]) for work in plan.stages]
    rows.append(_cells(plan, "all / highest", plan.stages))
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
    relevant_slopes: set[str] = set()
    apis: set[str] = set()
    for work in plan.stages:
        for name, amount in work.amounts.items():
            if amount:
                relevant_slopes.add(name)

        if work.api:
            apis.add(work.api)

    lines: list[tuple[str, str, str]] = []
    for name, slope in plan.slopes.items():
        # Times of work that this profile does not have are left out; sizes and shares have no amounts
        if name in relevant_slopes or not name.endswith("_s"):
            lines.append((name, f"{slope.value:.4g}", slope.source))
    print_table(
        "Assumptions (--slope NAME=VALUE for another value)", ("slope", "value", "source"), lines
    )

    for name in sorted(apis):
        price = plan.file.prices.get(name)
        text = "not known"
        if price:
            text = f"{price.prompt} and {price.completion} USD per million tokens, {price.source}"
        typer.echo(f"Price of {name}: {text}.")


def _cells(plan: Plan, title: str, works: Sequence[StageWork]) -> tuple[str, ...]:
    """Return a line of the table: sums of time, disk, tokens and price, and the highest memory."""
    seconds = 0.0
    disk_gib = 0.0
    # Stages run one after another, so that memory does not add up
    host_gib = max(work.host_gib for work in works)
    gpu_gib = max(work.gpu_gib for work in works)
    prompt_tokens = 0.0
    completion_tokens = 0.0
    costs: list[float | None] = []

    for work in works:
        seconds += work.seconds(plan.slopes)
        disk_gib += work.disk_gib
        stage_prompt_tokens, stage_completion_tokens = work.tokens
        prompt_tokens += stage_prompt_tokens
        completion_tokens += stage_completion_tokens
        if work.api:
            costs.append(plan.cost(work))

    tokens_text = ""
    if costs:
        tokens_text = f"{prompt_tokens / 1e6:.1f} + {completion_tokens / 1e6:.1f}"

    return (
        title,
        _time(seconds / 3600),
        f"{disk_gib:.1f}",
        f"{host_gib:.1f}",
        f"{gpu_gib:.0f}" if gpu_gib else "",
        tokens_text,
        _cost_text(costs),
    )


def _cost_text(costs: Sequence[float | None]) -> str:
    """Return the sum of some costs; one that is not known leaves the sum unknown."""
    if not costs:
        return ""
    known = [cost for cost in costs if cost is not None]
    return f"{sum(known):.2f} USD" if len(known) == len(costs) else "not known"


def _time(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.1f} min"
