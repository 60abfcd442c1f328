"""``deepsearch rl compare``: RL with several settings from one start, and a table of what each of them does."""

import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field
from typer import Argument, Option

from deepsearch_rl.commands.defaults import changed_field
from deepsearch_rl.commands.terminal import print_table
from deepsearch_rl.core.profile import Profile, find_profile
from deepsearch_rl.core.records import Record
from deepsearch_rl.core.scratch import DIGITS
from deepsearch_rl.core.stage_graph import family_sources
from deepsearch_rl.core.stage_state import code_digests, read_state

if TYPE_CHECKING:
    from deepsearch_rl.evaluation.models.plan import Evaluation

COLUMNS = (
    "sampled_f1",
    "greedy_f1",
    "tool_calls",
    "entropy",
    "kl",
    "clip_fraction",
    "trained_tokens",
    "cpu_s",
)


class TrainedRun(Record):
    """What one RL run came to: F1 and searches of its best step on the dev questions, and means over its steps."""

    scoring: str = Field(description="digest of how it was scored")
    best_step: int
    sampled_f1: float
    greedy_f1: float
    tool_calls: float = Field(description="per sampled rollout")
    cpu_s: float = Field(
        description="CPU seconds of training, all processes; of this start alone where it was resumed"
    )
    steps: dict[str, float] = Field(description="mean of each metric of train_log.jsonl")

    def figure(self, name: str) -> float | None:
        """Return a figure of :data:`COLUMNS`; None where the engine does not log it."""
        return getattr(self, name) if name in type(self).model_fields else self.steps.get(name)


def compare_command(
    settings: Annotated[
        list[str],
        Argument(help="field=value of params; several of one setting with spaces between."),
    ],
    profile: Annotated[
        str, Option(help="`tiny` (the root params.yaml) or a folder of profiles/.")
    ] = "tiny",
    start: Annotated[str, Option(help="The model that every run starts from.")] = "sft",
    seeds: Annotated[
        int, Option(min=1, help="Runs of each setting: with the profile's seed and those after it.")
    ] = 2,
    samples: Annotated[int, Option(min=1, help="Sampled answers per dev question.")] = 3,
) -> None:
    """Train with several settings from one start, with equal questions and rollouts, and score them on dev.

    Every run is kept in `work/<profile>/compare/` and is not made again while code, params and data
    are what they were; one that was cut off goes on. The table is also
    `work/<profile>/compare/table.json`. `val` is not looked at.

        deepsearch rl compare rl.loss.algorithm=grpo rl.loss.algorithm=gspo rl.loss.algorithm=rloo
        deepsearch rl compare rl.loss.kl_penalty=0 'rl.loss.kl_penalty=0.05 rl.learning_rate=5e-4' --seeds 3
    """
    runs = compare_settings(find_profile(Path(), profile), settings, start, seeds, samples)
    header = ["setting", "runs", *(name.replace("_", " ") for name in COLUMNS)]
    print_table(
        f"RL from {start}, means over seeds ± standard deviation; F1 on dev", header, _lines(runs)
    )


def compare_settings(
    profile: Profile, settings: Sequence[str], start: str, seeds: int, samples: int
) -> dict[str, list[TrainedRun]]:
    """Return the runs of each setting, by seed from the profile's own on; raises as the stages rl and evaluate."""
    from deepsearch_rl.core.files import write_json  # noqa: PLC0415

    profiles: dict[str, Profile] = {}
    runs: dict[str, list[TrainedRun]] = {}
    table: dict[str, list[object]] = {}
    for text in settings:
        fields = dict(map(changed_field, text.split()))
        profiles[text] = profile.with_overrides(fields)
        runs[text] = []
        table[text] = []

    for seed in range(profile.value("seed"), profile.value("seed") + seeds):
        # A round of all settings, so that a table cut short still compares
        for text, of_setting in profiles.items():
            typer.echo(f"{text}, seed {seed}", err=True)
            run = _trained(of_setting.with_overrides({"seed": seed}), start, samples)
            runs[text].append(run)
            table[text].append(run.model_dump(mode="json"))
            write_json(profile.work / "compare" / "table.json", table)

    return runs


def _trained(profile: Profile, start: str, samples: int) -> TrainedRun:
    """Train and score one setting, unless that was done before; one that was scored in another way is scored again."""
    from deepsearch_rl.core.files import read_jsonl, read_record, sha256_json, write_json  # noqa: PLC0415
    from deepsearch_rl.evaluation.models.evaluate_model import evaluate_model  # noqa: PLC0415
    from deepsearch_rl.training.rl.rl_config import RlConfig  # noqa: PLC0415
    from deepsearch_rl.training.rl.run_log import TRAIN_LOG, best_line  # noqa: PLC0415
    from deepsearch_rl.training.rl_process.worker import rl_run, train_watched  # noqa: PLC0415
    from deepsearch_rl.training.runs.curves import TrainingStep, curve_path  # noqa: PLC0415

    state = read_state(profile, f"rl@{start}", Path())
    name = f"{start}-{state.resumable().digest()[:DIGITS]}"
    folder = profile.work / "compare" / name
    config = profile.section("rl", RlConfig)
    curve = curve_path(profile.work, f"rl-{name}")
    run = rl_run(profile, config, start, folder / "training", curve)
    scoring = _scoring(profile, run.rl.dataset, samples)
    code = code_digests(family_sources(profile, "evaluate", Path()), Path())
    scored_by = sha256_json([scoring.digest(), code])
    known: TrainedRun | None = None
    if (folder / "run.json").is_file():
        known = read_record(folder / "run.json", TrainedRun)

    if known is None or known.scoring != scored_by:
        before = _children_cpu_s()
        if known is None:
            train_watched(run.model_copy(update={"output": folder / "model"}))
        # To score a run anew is no training
        cpu_s = known.cpu_s if known else _children_cpu_s() - before
        logs = folder / "logs" / scored_by[:DIGITS]
        evaluation = evaluate_model(
            "policy", folder / "model", scoring, profile.data, folder / "dev", logs
        )
        # The main row is that of the sampled answers
        sampled, greedy = sorted(evaluation.rows, key=lambda row: not row.main)
        lines = list(read_jsonl(folder / "model" / TRAIN_LOG, TrainingStep))
        known = TrainedRun(
            scoring=scored_by,
            best_step=best_line(lines).step,
            sampled_f1=sampled.f1,
            greedy_f1=greedy.f1,
            tool_calls=sampled.mean_tool_calls,
            cpu_s=cpu_s,
            steps=_means([line.metrics for line in lines[1:]]),
        )
        write_json(folder / "run.json", known.model_dump(mode="json"))

    return known


def _scoring(profile: Profile, dataset: str, samples: int) -> "Evaluation":
    """Return how a trained model is scored: on all dev questions, sampled and greedy."""
    from deepsearch_rl.evaluation.models.plan import Evaluation, SetPlan  # noqa: PLC0415

    # Greedy answers to more questions than any set has: to all of them
    plan = SetPlan(questions=None, samples=samples, greedy=2**31, controls=0)
    changes = {
        "evaluate.split": "dev",
        "evaluate.sets": {dataset: plan.model_dump()},
        "evaluate.variants": {},
    }
    return Evaluation.of(profile.with_overrides(changes))


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _means(steps: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Return the mean of each metric over the steps that have it."""
    values: dict[str, list[float]] = {}
    for step in steps:
        for name, value in step.items():
            if value is not None:
                values.setdefault(name, []).append(value)

    return {name: fmean(of_steps) for name, of_steps in sorted(values.items())}


def _lines(runs: Mapping[str, Sequence[TrainedRun]]) -> list[list[str]]:
    """Return a line per setting: its number of runs and the columns."""
    lines: list[list[str]] = []
    for name, of_seeds in runs.items():
        line = [name, str(len(of_seeds))]
        line += [_cell(of_seeds, column) for column in COLUMNS]
        lines.append(line)

    return lines


def _cell(runs: Sequence[TrainedRun], column: str) -> str:
    values: list[float] = []
    for run in runs:
        figure = run.figure(column)
        if figure is not None:
            values.append(figure)

    if not values:
        return "-"
    # Tokens and seconds are large numbers, everything else is about 1
    digits = 3 if max(map(abs, values)) < 10 else 0
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"
