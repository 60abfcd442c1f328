"""The work of every stage of a profile, from the sizes in its params, and what it takes by the slopes.

A stage's seconds are a sum of amounts times slopes. Nothing of the profile needs to have run.
Horizons and counts are upper bounds: runs that stop early, and rollouts that end early, take less.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from deepsearch_rl.cli.planning.answer_work import answers, endpoint_of, evaluation_rollouts
from deepsearch_rl.cli.planning.data_work import corpora, question_writing
from deepsearch_rl.cli.planning.sizes import Sizes, StageWork
from deepsearch_rl.cli.planning.slopes import Slope, SlopeFile, read_slopes, slopes_for
from deepsearch_rl.cli.planning.training_work import training
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.profile import Profile


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages of a profile, with the slopes that their time is told by."""

    profile: str
    machine: str
    stages: tuple[StageWork, ...]
    slopes: Mapping[str, Slope]
    file: SlopeFile

    @property
    def hours(self) -> float:
        """The time of a run: of all stages together, less what is saved where two run side by side."""
        seconds = sum(work.seconds(self.slopes) for work in self.stages)
        return self.slopes["side_by_side"].value * seconds / 3600

    def cost(self, work: StageWork) -> float | None:
        """Return the list price of what a stage's API reads and writes; None where the price is not known."""
        price = self.file.prices.get(work.api)
        if price is None:
            return None
        prompt_tokens, completion_tokens = work.tokens
        # Prices are for a million tokens
        return (prompt_tokens * price.prompt + completion_tokens * price.completion) / 1e6


def make_plan(profile: Profile, given: Mapping[str, float]) -> Plan:
    """Return the plan of a profile, with the values of slopes that are ``given``.

    Raise ConfigError where the profile lacks a field, UnknownNameError for a split or set that it
    lacks, and as :func:`slopes_for`.
    """
    file = read_slopes()
    try:
        machine, slopes = slopes_for(profile, file, given)
        return Plan(
            profile.name, machine, tuple(stages(Sizes(profile, slopes, file))), slopes, file
        )
    except KeyError as error:
        raise ConfigError(
            f"{profile.path} has no field {error}, so it cannot be planned; run `make params`."
        ) from error


def require_hours(plan: Plan, profile: Profile) -> None:
    """Raise ConfigError where a plan takes longer than ``requires.max_hours`` of its profile; null is no limit."""
    max_hours = profile.value("requires")["max_hours"]
    if max_hours is None or plan.hours <= max_hours:
        return
    longest = sorted(plan.stages, key=lambda work: -work.seconds(plan.slopes))[:3]
    stages = ", ".join(f"{work.stage} {work.seconds(plan.slopes) / 3600:.1f}" for work in longest)
    raise ConfigError(
        f"profile {plan.profile} would take {plan.hours:.1f} hours ({stages}, ...), more than "
        f"requires.max_hours {max_hours:g} in {profile.path}. `deepsearch plan {plan.profile}` "
        "shows why. Make the profile smaller, or raise requires.max_hours in its profile.yaml and "
        "run `make params`."
    )


def stages(sizes: Sizes) -> Iterator[StageWork]:
    """Yield the stages that a run of the profile has, in the order of the graph."""
    models: Mapping[str, str] = sizes.profile.value("models")
    yield from question_writing(sizes)
    yield from corpora(sizes)

    # A profile that evaluates models of elsewhere trains none
    own_models = f"{sizes.profile.models.as_posix()}/"
    if any(folder.startswith(own_models) for folder in models.values()):
        yield from training(sizes)

    prompts = sizes.profile.value("optimize_prompt")
    for model, folder in prompts["models"].items():
        yield answers(sizes, f"optimize_prompt@{model}", endpoint_of(folder), prompts["rollouts"])

    endpoints: dict[str, Mapping[str, str] | None] = {}
    all_rollouts = 0
    for model, folder in models.items():
        endpoints[model] = endpoint_of(folder)
        rollouts = evaluation_rollouts(sizes, model)
        all_rollouts += rollouts
        yield answers(sizes, f"evaluate@{model}", endpoints[model], rollouts)

    if "ifeval" in sizes.profile.values:
        ifeval = sizes.profile.value("ifeval")
        count = sizes.file.sizes.ifeval if ifeval["prompts"] == "real" else ifeval["count"]
        for model, endpoint in endpoints.items():
            yield answers(sizes, f"ifeval@{model}", endpoint, count, is_ifeval=True)

    for stage in ("report", "track"):
        yield sizes.stage(stage, {"report_rollout_s": all_rollouts})
