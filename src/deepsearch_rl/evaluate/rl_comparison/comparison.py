"""RL with several settings from one start: each is trained, and scored where nothing was trained.

Every run has equal questions and rollouts and lies in a folder of ``work/<profile>/compare/``, named
by all that decides its weights. A run is not trained again while these are what they were, and is
scored again where the scoring differs.
"""

import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pydantic import Field

from deepsearch_rl.core.answers import is_refusal, score_rollout
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_jsonl, read_record, sha256_json, write_json
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Record, Trajectory
from deepsearch_rl.core.scratch import DIGITS
from deepsearch_rl.core.stage_graph import family_sources
from deepsearch_rl.core.stage_state import code_digests, read_state
from deepsearch_rl.evaluate.evaluate_model import checkpoint_name, evaluate_model
from deepsearch_rl.evaluate.evaluation_plan import Evaluation, SetPlan
from deepsearch_rl.evaluate.f1_row import ModelEvaluation, run_file
from deepsearch_rl.evaluate.standalone_world import WorldEvaluation
from deepsearch_rl.train.curves import TrainingStep, curve_path
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.run_log import TRAIN_LOG, best_line
from deepsearch_rl.train.rl.worker import rl_run, train_watched

# Greedy answers to more questions than any set has: to all of them
_ALL = 2**31


class Scores(Record):
    """F1 of one model, in [0, 1], on questions that it was not trained on.

    ``dev``: the dev questions of the set that RL trains on. ``world``: the same set of a generated
    world of another seed; ``other_sets``: the mean over the other sets of that world. Each is None
    where it was not asked for, or where no question is of the kind.
    """

    dev_sampled: float
    dev_greedy: float
    dev_unanswerable: float | None = Field(
        description="greedy, where the right answer is that there is none"
    )
    world_sampled: float | None = None
    world_greedy: float | None = None
    world_unanswerable: float | None = Field(default=None, description="greedy, as on dev")
    other_sets_sampled: float | None = None
    other_sets_greedy: float | None = None
    tool_calls: float = Field(description="per sampled rollout on dev")


class TrainedRun(Record):
    """What one RL run came to: the scores of its best step, and the means of its metrics."""

    best_step: int
    scores: Scores
    cpu_s: float = Field(
        description="CPU seconds of training, all processes; of the last start where it was resumed"
    )
    steps: dict[str, float] = Field(
        description="mean of each metric of train_log.jsonl over the steps"
    )
    dev_f1: dict[int, float] = Field(
        description="F1 by step on the dev questions that choose the checkpoint"
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """What is compared: fields of params by a setting's name, the start, and how many seeds and answers.

    ``seeds`` runs of each setting, with the profile's seed and those after it; ``samples`` sampled
    answers per dev question. With a ``world_seed`` another world's questions are answered too.
    """

    profile: Profile
    fields: Mapping[str, Mapping[str, object]]
    start: str
    seeds: int
    samples: int
    world_seed: int | None


class Comparison(Record):
    """The scores of the start, and the runs of each setting, by seed from the profile's own on."""

    profile: str
    start: str
    checkpoint: str = Field(description="the start's weights")
    generated: bool = Field(description="the questions are generated")
    questions: dict[str, int] = Field(description="scored questions by set")
    samples: int = Field(description="sampled answers per dev question")
    world_seed: int | None
    start_scores: Scores
    runs: dict[str, list[TrainedRun]]


class _Training(Record):
    """``training.json``, which is written once the model is whole."""

    cpu_s: float


@dataclass(frozen=True, slots=True)
class Scoring:
    """How models are scored: on all dev questions, and on another world's sets where it has a seed."""

    profile: Profile
    dataset: str
    samples: int
    world_seed: int | None

    def __post_init__(self) -> None:
        """Raise ConfigError where another world is asked for and the profile's questions are not generated."""
        if self.world_seed is not None and self.profile.value("download.source") != "world":
            raise ConfigError(
                f"--world-seed {self.world_seed} makes questions of another generated world, and profile "
                f"{self.profile.name} has questions that were not generated (download.source); leave the option out."
            )

    @property
    def dev(self) -> Evaluation:
        """All dev questions of the set, sampled and greedy."""
        plan = SetPlan(questions=None, samples=self.samples, greedy=_ALL, controls=0)
        changes = {"evaluate.split": "dev", "evaluate.sets": {self.dataset: plan.model_dump()}}
        return Evaluation.of(self.profile.with_overrides({**changes, "evaluate.variants": {}}))

    def world(self, model: Path) -> WorldEvaluation | None:
        """Every evaluated set of another world, as many questions as the profile evaluates, one answer each."""
        if self.world_seed is None:
            return None

        plans: dict[str, object] = {}
        for name, plan in Evaluation.of(self.profile).evaluate.sets.items():
            plans[name] = SetPlan(
                questions=plan.questions, samples=1, greedy=_ALL, controls=0
            ).model_dump()

        changes = {"evaluate.sets": plans, "evaluate.variants": {}, "chunk.variants": {}}
        world = self.profile.with_overrides(changes)
        return WorldEvaluation("policy", model, self.world_seed, world)

    def digest(self) -> str:
        """Return the SHA-256 of settings and code that decide the scores of a model."""
        code = code_digests(family_sources(self.profile, "evaluate", Path()), Path())
        parts: list[object] = [self.dev.digest(), self.dataset, code]
        world = self.world(Path())
        if world is not None:
            parts += [world.setting.digest(), world.data_digest()]
        return sha256_json(parts)

    def score(self, model: Path, folder: Path) -> Scores:
        """Return the scores of the weights in ``model``; rollouts and logs are kept in ``folder``."""
        digest = self.digest()[:DIGITS]
        known = folder / f"scores-{digest}.json"
        if known.is_file():
            return read_record(known, Scores)

        logs = folder / "logs" / digest
        dev = evaluate_model("policy", model, self.dev, self.profile.data, folder / "dev", logs)
        sampled, greedy = _f1_of(dev, self.dataset)
        scores = Scores(
            dev_sampled=sampled,
            dev_greedy=greedy,
            dev_unanswerable=_unanswerable_f1(folder / "dev", self.dataset),
            tool_calls=next(row.mean_tool_calls for row in dev.rows if row.main),
        )

        world = self.world(model)
        if world is not None:
            data = world.prepare(self.profile.work / "compare" / "worlds")
            out = folder / "world"
            evaluation = evaluate_model("policy", model, world.setting, data, out, logs)
            scores = scores.model_copy(update=self._world_scores(evaluation, out))

        write_json(known, scores.model_dump(mode="json"))
        return scores

    def _world_scores(self, evaluation: ModelEvaluation, out: Path) -> dict[str, float | None]:
        """Return the fields of :class:`Scores` that an evaluation on another world gives."""
        update: dict[str, float | None] = {}
        others = sorted({row.dataset for row in evaluation.rows} - {self.dataset})
        if others:
            pairs = [_f1_of(evaluation, name) for name in others]
            update["other_sets_sampled"] = fmean(sampled for sampled, _ in pairs)
            update["other_sets_greedy"] = fmean(greedy for _, greedy in pairs)

        update["world_sampled"], update["world_greedy"] = _f1_of(evaluation, self.dataset)
        update["world_unanswerable"] = _unanswerable_f1(out, self.dataset)
        return update


def _f1_of(evaluation: ModelEvaluation, dataset: str) -> tuple[float, float]:
    """Return the F1 of a set's sampled and greedy answers."""
    rows = [row for row in evaluation.rows if row.dataset == dataset]
    # The main row is that of the sampled answers
    sampled, greedy = sorted(rows, key=lambda row: not row.main)
    return sampled.f1, greedy.f1


def _unanswerable_f1(folder: Path, dataset: str) -> float | None:
    """Return the mean F1 of the greedy answers to questions without an answer; None where a set has none."""
    values: list[float] = []
    for rollout in read_jsonl(folder / run_file(dataset, "search", 0), Trajectory):
        if any(map(is_refusal, rollout.golden_answers)):
            values.append(score_rollout(rollout).f1)

    return fmean(values) if values else None


def compare_settings(settings: Settings, announce: Callable[[str], None]) -> Iterator[Comparison]:
    """Train and score every setting with every seed; yield what is known after each run.

    ``announce`` is told what begins. Raises as the stages rl and evaluate, and as :class:`Scoring`.
    """
    profile = settings.profile
    start = settings.start
    config = profile.section("rl", RlConfig)
    scoring = Scoring(profile, config.dataset, settings.samples, settings.world_seed)
    model = profile.models / start
    checkpoint = checkpoint_name(model)
    # As a run's folder: by the start's weights and the data, which its name does not show
    folder = profile.work / "compare" / f"start-{_run_name(profile, start)}"

    announce(f"the start, {start}")
    runs: dict[str, list[TrainedRun]] = {}
    for name in settings.fields:
        runs[name] = []

    comparison = Comparison(
        profile=profile.name,
        start=start,
        checkpoint=checkpoint,
        generated=profile.value("download.source") == "world",
        samples=settings.samples,
        world_seed=settings.world_seed,
        start_scores=scoring.score(model, folder),
        questions=_questions(scoring, folder),
        runs=runs,
    )

    first = profile.value("seed")
    for seed in range(first, first + settings.seeds):
        # A round of all settings, so that a table cut short still compares
        for name, fields in settings.fields.items():
            announce(f"{name}, seed {seed}")
            changed = profile.with_overrides({**fields, "seed": seed})
            comparison.runs[name].append(_trained(changed, start, scoring))
            yield comparison


def _run_name(profile: Profile, start: str) -> str:
    """Return a run's name, by the digest of all that decides its weights: start, data, code and params."""
    state = read_state(profile, f"rl@{start}", Path())
    return f"{start}-{state.resumable().digest()[:DIGITS]}"


def _questions(scoring: Scoring, folder: Path) -> dict[str, int]:
    """Return how many questions each set of a scored model has, those of another world by their set's name."""
    counts: dict[str, int] = {}
    for part in ("dev", "world"):
        rows = folder / part / "rows.json"
        if rows.is_file() and (part == "dev" or scoring.world_seed is not None):
            for row in read_record(rows, ModelEvaluation).rows:
                if row.main:
                    counts[f"{part}: {row.dataset}"] = row.n

    return counts


def _trained(profile: Profile, start: str, scoring: Scoring) -> TrainedRun:
    """Train one setting unless that was done before, and score it."""
    name = _run_name(profile, start)
    folder = profile.work / "compare" / name
    model = folder / "model"
    trained = folder / "training.json"

    if not trained.is_file():
        config = profile.section("rl", RlConfig)
        curve = curve_path(profile.work, f"rl-{name}")
        run = rl_run(profile, config, start, folder / "training", curve)
        before = _children_cpu_s()
        train_watched(run.model_copy(update={"output": model}))
        training = _Training(cpu_s=_children_cpu_s() - before)
        write_json(trained, training.model_dump(mode="json"))

    lines = list(read_jsonl(model / TRAIN_LOG, TrainingStep))
    dev_f1: dict[int, float] = {}
    for line in lines:
        if line.dev_f1 is not None:
            dev_f1[line.step] = line.dev_f1

    return TrainedRun(
        best_step=best_line(lines).step,
        scores=scoring.score(model, folder),
        cpu_s=read_record(trained, _Training).cpu_s,
        steps=mean_metrics([line.metrics for line in lines[1:]]),
        dev_f1=dev_f1,
    )


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def mean_metrics(steps: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Return the mean of each metric over the steps that have it."""
    values: dict[str, list[float]] = {}
    for step in steps:
        for name, value in step.items():
            if value is not None:
                values.setdefault(name, []).append(value)

    return {name: fmean(of_steps) for name, of_steps in sorted(values.items())}
