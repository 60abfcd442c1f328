"""``deepsearch plan``: hours, disk, memory, tokens and price of a profile, stage by stage, before anything starts.

A stage's seconds are amounts times slopes: questions, tokens and steps come from the params, what one
of them takes from :data:`SLOPES`. Amounts are upper bounds: runs that stop early take less.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
import yaml
from typer import Option

from deepsearch_rl.cli.plan_sizes import StagePlan, sizes_of
from deepsearch_rl.cli.plan_stages import stage_plans
from deepsearch_rl.cli.shared import ProfileName, print_table
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.profile import Profile, find_profile


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages of a profile in the order of its dvc.yaml, and the slopes that their time comes from.

    ``basis`` says what the time of a model on a CPU rests on; empty where none computes on one.
    """

    profile: str
    stages: tuple[StagePlan, ...]
    slopes: Mapping[str, float]
    basis: str

    @property
    def hours(self) -> float:
        """The time of a run: of all stages together, less what is saved where two run side by side."""
        return self.slopes["side_by_side"] * sum(stage.seconds for stage in self.stages) / 3600


def plan_command(
    profile: ProfileName = "tiny",
    slope: Annotated[
        list[str] | None, Option(help="`name=value` in place of an assumption; may be repeated.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a run of a profile takes, stage by stage: time, disk, memory, an API's tokens and their price.

    The figures are estimates from the sizes in params.yaml and a table of slopes in cli/plan.py.
    Every stage is counted, even if it is up to date.

        deepsearch plan gpu --slope rollout_eager_s=0.05
    """
    given: dict[str, float] = {}
    for text in slope or ():
        name, _, number = text.partition("=")
        try:
            given[name] = float(number)
        except ValueError as error:
            raise ConfigError(
                f"--slope {text!r} should be name=value, e.g. rollout_s=0.05."
            ) from error

    # It loads the config classes of all stages
    from deepsearch_rl.cli.check_params import check  # noqa: PLC0415

    found = find_profile(Path(), profile)
    check(found)
    plan = make_plan(found, given)
    if as_json:
        typer.echo(json.dumps({**asdict(plan), "hours": plan.hours}, indent=2))
    else:
        _show(plan)


def make_plan(profile: Profile, given: Mapping[str, float]) -> Plan:
    """Return the plan of a profile, with the values of slopes that are ``given``.

    Raise ConfigError where the profile lacks a field, UnknownNameError for a slope, split or set that
    does not exist.
    """
    sizes = sizes_of(profile, given)
    stages: list[StagePlan] = []
    graph = yaml.safe_load(profile.path.with_name("dvc.yaml").read_text(encoding="utf-8"))
    for name in graph["stages"]:
        try:
            works = stage_plans(sizes, name).items() if name != "endpoint" else ()
            for item, work in works:
                stages.append(replace(work, stage=f"{name}@{item}" if item else name))
        except KeyError as error:
            raise ConfigError(
                f"{profile.path} has no field {error}, which the plan of {name} needs; run `make params`."
            ) from error

    return Plan(profile.name, tuple(stages), sizes.slopes, sizes.basis)


def _show(plan: Plan) -> None:
    """Print the stages with their totals."""
    rows = [_cells(stage.stage, [stage]) for stage in plan.stages]
    rows.append(_cells("all / highest", plan.stages))
    header = (
        "stage",
        "time",
        "disk GiB",
        "host GiB",
        "GPU GiB",
        "million tokens, read + written",
        "price",
    )
    print_table(f"Profile {plan.profile}", header, rows)
    if plan.basis:
        typer.echo(plan.basis)
    typer.echo(
        f"A run takes {_time(plan.hours)}. These are estimates: --slope NAME=VALUE changes one."
    )


def _cells(title: str, stages: Sequence[StagePlan]) -> tuple[str, ...]:
    """Return a line of the table: sums of time, disk, tokens and price, and the highest memory."""
    gpu_gib = max(stage.gpu_gib for stage in stages)
    asked = [stage for stage in stages if stage.api]
    read, written = (sum(stage.tokens[side] for stage in asked) / 1e6 for side in (0, 1))
    prices = [stage.price_usd for stage in asked]
    known = [price for price in prices if price is not None]
    price = f"{sum(known):.2f} USD" if len(known) == len(prices) else "not known"
    return (
        title,
        _time(sum(stage.seconds for stage in stages) / 3600),
        f"{sum(stage.disk_gib for stage in stages):.1f}",
        f"{max(stage.host_gib for stage in stages):.1f}",
        f"{gpu_gib:.0f}" if gpu_gib else "",
        f"{read:.1f} + {written:.1f}" if asked else "",
        price if asked else "",
    )


def _time(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.1f} min"
