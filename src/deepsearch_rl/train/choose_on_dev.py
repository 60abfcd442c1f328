"""The SFT checkpoint with the best F1 of real rollouts on dev questions, the scorer of RL's dev F1.

Each adapter is served beside its base, as an evaluated model is, and answers the same questions
with the same seeds. Rollouts are logged in the stage's scratch folder, so that a killed choice
continues.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from deepsearch_rl.agent.collect import BulkRun, RolloutSetting, collect, read_questions
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.chat.prompts import require_trained_with
from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.core.files import (
    atomic_directory,
    read_json,
    read_jsonl,
    write_json,
    write_jsonl,
)
from deepsearch_rl.core.records import Question
from deepsearch_rl.serve.launch import ServingConfig, serve_model
from deepsearch_rl.server.launch import serve_index
from deepsearch_rl.train.choose_checkpoint import (
    DevQuestions,
    copy_adapter,
    read_checkpoints,
)
from deepsearch_rl.train.curves import TrainingStep, record_step
from deepsearch_rl.train.model_folder import (
    MANIFEST,
    TRAIN_LOG,
)

# The score's name in log and curve; a curve has names of ``eval_`` in lines of their own
DEV_F1 = "eval_dev_f1"


@dataclass(frozen=True, slots=True)
class DevRollouts:
    """How dev questions are answered, and how many of them."""

    plan: DevQuestions
    interpolation: float
    setting: RolloutSetting
    serving: ServingConfig


def choose_on_dev(
    rollouts: DevRollouts, checkpoints: Path, output: Path, scratch: Path
) -> dict[int, float]:
    """Write the adapter with the best dev F1, the earliest of equals, to ``output``.

    The scores go into its log, its manifest and a training curve; return them, in [0, 1], by step.

    Raise ArtifactError where there is nothing to choose from or no dev question, and as
    :func:`require_trained_with`, :func:`serve_model`, :func:`serve_index` and :func:`collect`.
    """
    adapters = read_checkpoints(checkpoints)
    setting = rollouts.setting
    require_trained_with(
        checkpoints,
        setting.agent.prompt_digests(),
        f"the agent (agent.prompt: {setting.agent.prompt})",
    )
    questions = read_questions(setting.split("dev"), rollouts.plan.questions)
    scores: dict[int, float] = {}

    with serve_index(setting.index, setting.chunks, setting.retrieval) as url:
        for step, adapter in adapters.items():
            with _interpolated(adapter, rollouts.interpolation, scratch) as model:
                scores[step] = _dev_f1(rollouts, questions, url, step, model, scratch)
            record_step({"step": step, DEV_F1: scores[step]})

    best = max(scores, key=lambda step: (scores[step], -step))
    log = read_jsonl(checkpoints / TRAIN_LOG, TrainingStep)
    lines = {line.step: line.model_dump() for line in log}
    for step, score in scores.items():
        lines[step] = {"step": step, **lines.get(step, {}), DEV_F1: score}

    steps: list[TrainingStep] = []
    for step in sorted(lines):
        steps.append(TrainingStep.model_validate(lines[step]))

    with atomic_directory(output) as partial:
        copy_adapter(adapters[best], partial, rollouts.interpolation)
        write_jsonl(partial / TRAIN_LOG, steps)
        manifest = {**read_json(checkpoints / MANIFEST), "best_step": best, "dev_f1": scores}
        write_json(partial / MANIFEST, manifest)

    return scores


@contextmanager
def _interpolated(adapter: Path, interpolation: float, scratch: Path) -> Iterator[Path]:
    """Yield the adapter's folder, or a scaled copy that is deleted after the block."""
    if interpolation == 1:
        yield adapter
        return

    scratch.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=scratch) as folder:
        copy_adapter(adapter, Path(folder), interpolation)
        yield Path(folder)


def _dev_f1(
    rollouts: DevRollouts,
    questions: list[Question],
    url: str,
    step: int,
    adapter: Path,
    scratch: Path,
) -> float:
    """Return the mean over questions of the mean F1 of an adapter's rollouts; a failed one scores 0."""
    plan = rollouts.plan
    agent = rollouts.setting.agent
    seed = rollouts.setting.seed
    log = scratch / f"{step}.jsonl"
    out = scratch / f"{step}.sorted.jsonl"
    label = f"sft, step {step} on dev"

    with serve_model(adapter, rollouts.serving) as endpoint:
        agents = partial(
            SearchAgent, agent, endpoint, url, plan.temperature, model_name="sft", seed=seed
        )
        run = BulkRun(questions, plan.samples, [agents], log, label, out)
        answers = collect(run, agent.concurrency)

    f1_by_question: dict[str, list[float]] = {}
    for trajectory in answers.without_server_failures():
        f1 = score_rollout(trajectory).f1
        f1_by_question.setdefault(trajectory.question_id, []).append(f1)
    return fmean(map(fmean, f1_by_question.values()))
