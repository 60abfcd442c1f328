"""A better system prompt for a model as it is, found by GEPA over the agent, its rewards and the dev questions.

GEPA (Agrawal et al. 2025, arXiv 2507.19457; the library ``gepa``) lets a reflection model read a
few rollouts and write a new prompt. One that earns more on these questions is kept and scored on
the dev questions. The parent of the next one is drawn from the prompts that are best at some dev
question (the Pareto front).

Rollouts and the reflection model's texts are logged under ``work/``, in a folder named by all that
they depend on. GEPA draws from one seed, so that a killed run, started again, takes the same way:
what the log holds is not asked again.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gepa.api import optimize
from gepa.core.adapter import EvaluationBatch
from pydantic import Field, FiniteFloat, field_validator

from deepsearch_rl.agent.collect import BulkRun, RolloutSetting, collect, read_questions
from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.chat.endpoint import Endpoint, open_endpoint, read_remote, require_remote
from deepsearch_rl.chat.prompts import MADE_PROMPT, load_prompt
from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.files import (
    AppendLog,
    atomic_directory,
    only_writer,
    sha256_json,
    write_json,
)
from deepsearch_rl.core.own_code import is_own
from deepsearch_rl.core.records import NonEmpty, Question, Record, Trajectory
from deepsearch_rl.serve.launch import ServingConfig, serve_model
from deepsearch_rl.server.launch import serve_index
from deepsearch_rl.train.curves import record_step
from deepsearch_rl.train.reflector import Reflection, Reflector, conversation_text, feedback
from deepsearch_rl.train.rewards import (
    ANSWER_REWARDS,
    PolicyText,
    ThinkLength,
    find_reward,
    require_scores,
    reward_parts,
)

_LOG = logging.getLogger(__name__)
CANDIDATES = "candidates.json"
MANIFEST = "manifest.json"
REFLECTIONS = "reflections.jsonl"
# No tokenizer is here: a reward of the user's own counts characters. ANSWER_REWARDS do not read it.
_CHARACTERS_AS_TOKENS = PolicyText(
    count_tokens=len, think_length=ThinkLength(min_tokens=0, full_score_tokens=0, max_tokens=1)
)
# GEPA's name of the text that changes
COMPONENT = "system_prompt"


class QuestionCounts(Record):
    """How many of a set's first questions are used."""

    train: int = Field(
        ge=1, description="their rollouts are read by the reflection model, a few at a time"
    )
    dev: int = Field(ge=1, description="score every prompt that is kept, and choose the best one")


class OptimizePromptConfig(Record):
    """Section ``optimize_prompt``."""

    models: dict[str, NonEmpty] = Field(
        description="name -> model folder; a prompt is looked for, for each"
    )
    dataset: NonEmpty
    questions: QuestionCounts
    rollouts: int = Field(ge=1, description="budget; the last prompt is still scored whole")
    minibatch: int = Field(
        ge=1, description="rollouts that the reflection model reads for one new prompt"
    )
    temperature: float = Field(ge=0, description="of the rollouts")
    rewards: dict[str, FiniteFloat] = Field(
        min_length=1, description="weights of ANSWER_REWARDS, or of own ones, as in rl.rewards"
    )
    max_characters: int = Field(ge=1, description="of a prompt; a longer one is not tried")
    reflection: Reflection

    @property
    def full_reward(self) -> float:
        """The most that a rollout can earn: a weight below 0 is a penalty, which the best one avoids."""
        return sum(max(weight, 0.0) for weight in self.rewards.values())

    @property
    def least_reward(self) -> float:
        """The least that a rollout can earn: all penalties, and nothing else."""
        return sum(min(weight, 0.0) for weight in self.rewards.values())

    @field_validator("rewards")
    @classmethod
    def _known_rewards(cls, weights: dict[str, float]) -> dict[str, float]:
        for name in weights:
            if is_own(name):
                find_reward(name)
            else:
                look_up("reward of prompts", name, ANSWER_REWARDS)
        return weights


class Candidate(Record):
    """A prompt that GEPA kept: its parents' numbers, mean and single scores on the dev questions."""

    prompt: str
    parents: tuple[int, ...]
    dev_reward: float
    scores: dict[str, float] = Field(description="by question id")
    best_at: tuple[str, ...] = Field(
        description="ids of the questions at which no other prompt is better"
    )
    rollouts: int = Field(description="made before it was found")


@dataclass(frozen=True, slots=True)
class PromptTask:
    """A model's ``folder`` and ``name``, how it is served, and the setting in which its prompts are scored."""

    name: str
    folder: Path
    setting: RolloutSetting
    serving: ServingConfig


def optimize_prompt(
    task: PromptTask, config: OptimizePromptConfig, scratch: Path, out: Path
) -> list[Candidate]:
    """Look for a better prompt than the setting's and write the best one, all that were kept and a manifest.

    Returns the kept prompts, the first of which is the start. The best has the highest mean on the
    dev questions, the earliest of equals.

    Raises ConfigError where no reflection model is named, or the setting's prompt is longer than a
    prompt may be; ArtifactError where a split has no question; EndpointError where
    the reflection model fails; and as :func:`serve_model`, :func:`serve_index` and :func:`collect`.
    Finished rollouts and reflections are kept in ``scratch`` then, by the models behind the
    endpoints.
    """
    setting = task.setting
    start = _start_prompt(setting.agent.prompt, config.max_characters)
    train = read_questions(setting.split("train"), config.questions.train)
    dev = read_questions(setting.split("dev"), config.questions.dev)
    require_scores(config.rewards, train[0], _CHARACTERS_AS_TOKENS)
    reflector = open_endpoint(require_remote(Path(config.reflection.endpoint)))
    with serve_model(task.folder, task.serving) as endpoint:
        folder = scratch / _models_digest(task, endpoint, reflector)[:16]
        log = folder / REFLECTIONS

        with only_writer(log), AppendLog(log) as texts:
            reflect = Reflector(config.reflection, reflector, texts)
            progress = _Progress()

            with serve_index(setting.index, setting.chunks, setting.retrieval) as url:
                result = optimize(
                    seed_candidate={COMPONENT: start},
                    trainset=train,
                    valset=dev,
                    adapter=_Rollouts(task, config, endpoint, url, folder),  # pyright: ignore[reportArgumentType]
                    reflection_lm=reflect,  # pyright: ignore[reportArgumentType]
                    reflection_minibatch_size=min(config.minibatch, len(train)),
                    perfect_score=config.full_reward,
                    max_metric_calls=config.rollouts,
                    stop_callbacks=lambda gepa_state: reflect.failure is not None,  # noqa: ARG005 - GEPA's name
                    callbacks=[progress],  # pyright: ignore[reportArgumentType]
                    logger=progress,
                    seed=setting.seed,
                )

    if reflect.failure is not None:
        raise reflect.failure
    candidates = _candidates(result, dev)
    _write(out, task, config, candidates, result, reflect.calls)
    return candidates


def _start_prompt(name: str, max_characters: int) -> str:
    """Return the text of the prompt to begin with; raise ConfigError where it is too long to be tried."""
    text = load_prompt(name)
    if len(text) > max_characters:
        raise ConfigError(
            f"the prompt to begin with, {name}, has {len(text)} characters, and "
            f"optimize_prompt.max_characters is {max_characters}, so that it would not be tried. "
            "Raise max_characters, or begin with a shorter prompt."
        )
    return text


def _write(
    out: Path,
    task: PromptTask,
    config: OptimizePromptConfig,
    candidates: Sequence[Candidate],
    result: Any,
    reflections: int,
) -> None:
    """Write the best prompt, all candidates and a manifest; ``result`` is GEPA's."""
    best = candidates[result.best_idx]
    manifest = {
        "model": task.name,
        "start": task.setting.agent.prompt_title,
        "dataset": config.dataset,
        "rewards": {**config.rewards},
        "start_dev_reward": candidates[0].dev_reward,
        "best_dev_reward": best.dev_reward,
        "best": result.best_idx,
        "rollouts": result.total_metric_calls,
        "reflections": reflections,
        "seed": task.setting.seed,
    }
    rows = [candidate.model_dump(mode="json") for candidate in candidates]
    with atomic_directory(out) as partial:
        (partial / MADE_PROMPT).write_text(f"{best.prompt}\n", encoding="utf-8")
        write_json(partial / CANDIDATES, rows)
        write_json(partial / MANIFEST, manifest)


def _models_digest(task: PromptTask, endpoint: Endpoint, reflector: Endpoint) -> str:
    """Return the SHA-256 of the models that environment variables may name: the one that answers and the reflector."""
    # A server of this run has another port each time
    address = endpoint.base_url if read_remote(task.folder) else None
    return sha256_json([endpoint.model, address, reflector.base_url, reflector.model])


def _candidates(result: Any, dev: Sequence[Question]) -> list[Candidate]:
    """Return GEPA's pool, whose questions are numbered as in ``dev``."""
    pool = zip(
        result.candidates,
        result.parents,
        result.val_subscores,
        result.discovery_eval_counts,
        strict=True,
    )
    front = result.per_val_instance_best_candidates

    candidates: list[Candidate] = []
    for number, (texts, parents, scores, rollouts) in enumerate(pool):
        best_at: list[str] = []
        for place in sorted(front):
            if number in front[place]:
                best_at.append(dev[place].id)

        scores_by_id: dict[str, float] = {}
        for place, score in sorted(scores.items()):
            scores_by_id[dev[place].id] = score

        candidate = Candidate(
            prompt=texts[COMPONENT],
            # The start's only parent is None
            parents=tuple(parent for parent in parents if parent is not None),
            dev_reward=result.val_aggregate_scores[number],
            scores=scores_by_id,
            best_at=tuple(best_at),
            rollouts=rollouts,
        )
        candidates.append(candidate)

    return candidates


@dataclass(slots=True)
class _Rollouts:
    """GEPA's adapter (``gepa.core.adapter.GEPAAdapter``): answers questions with a prompt and tells what happened."""

    task: PromptTask
    config: OptimizePromptConfig
    endpoint: Endpoint
    retrieval_url: str
    scratch: Path
    rollouts: int = 0
    # GEPA's own way of asking the reflection model
    propose_new_texts: None = None

    def evaluate(
        self, batch: Sequence[Question], candidate: Mapping[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Trajectory, None]:
        """Answer a batch of questions with a prompt; one that cannot be tried asks nothing and scores the least."""
        prompt = candidate[COMPONENT].strip()
        outputs: list[None] = [None] * len(batch)
        agent = self._agent(prompt)
        if agent is None:
            scores = [self.config.least_reward] * len(batch)
            return EvaluationBatch(outputs=outputs, scores=scores, trajectories=[])

        by_id = {trajectory.question_id: trajectory for trajectory in self._answers(agent, batch)}
        trajectories: list[Trajectory] = []
        rewards: list[float] = []
        # GEPA may draw a question twice into a batch; it is answered once
        for question in batch:
            trajectory = by_id[question.id]
            parts = reward_parts(self.config.rewards, trajectory, question, _CHARACTERS_AS_TOKENS)
            trajectories.append(trajectory)
            rewards.append(sum(parts.values()))

        return EvaluationBatch(
            outputs=outputs, scores=rewards, trajectories=trajectories if capture_traces else None
        )

    def _agent(self, prompt: str) -> AgentConfig | None:
        """Return the agent with a prompt, which is written to a folder of its own.

        None where the prompt is empty, too long or of the other protocol: a reflection model may
        drop Search-R1's tags, or ask for them.
        """
        if not 0 < len(prompt) <= self.config.max_characters:
            _LOG.info("a proposed prompt of %d characters is not tried", len(prompt))
            return None

        folder = self.scratch / sha256_json(prompt)[:16]
        folder.mkdir(exist_ok=True)
        path = folder / MADE_PROMPT
        path.write_text(prompt, encoding="utf-8")
        agent = self.task.setting.agent.model_copy(update={"prompt": path.as_posix()})
        try:
            agent.load_instruction()
        except ConfigError as error:
            _LOG.info("a proposed prompt is not tried: %s", error)
            return None
        return agent

    def _answers(self, agent: AgentConfig, batch: Sequence[Question]) -> list[Trajectory]:
        folder = Path(agent.prompt).parent
        name = self.task.name
        setting = self.task.setting
        config = self.config
        self.rollouts += len(batch)
        distinct = {question.id: question for question in batch}
        run = BulkRun(
            list(distinct.values()),
            samples=1,
            make_agents=[
                lambda: SearchAgent(
                    agent,
                    self.endpoint,
                    self.retrieval_url,
                    config.temperature,
                    model_name=name,
                    seed=setting.seed,
                )
            ],
            log=folder / "rollouts.jsonl",
            label=f"optimize_prompt@{name}, to rollout {self.rollouts} of about {config.rollouts}",
            out=folder / "batch.jsonl",
        )
        return list(collect(run, agent.concurrency).without_server_failures())

    def make_reflective_dataset(
        self,
        candidate: Mapping[str, str],  # noqa: ARG002 - GEPA's signature
        eval_batch: EvaluationBatch[Trajectory, None],
        components_to_update: Sequence[str],
    ) -> dict[str, list[dict[str, str]]]:
        """Return what the reflection model reads of each rollout: question, conversation, and what was wrong."""
        full_reward = self.config.full_reward
        records: list[dict[str, str]] = []
        pairs = zip(eval_batch.trajectories or (), eval_batch.scores, strict=True)
        for trajectory, reward in pairs:
            # The keys are headings of the text that GEPA makes of them
            record = {
                "Inputs": trajectory.question,
                "Generated Outputs": conversation_text(trajectory),
                "Feedback": feedback(trajectory, reward, full_reward),
            }
            records.append(record)

        return dict.fromkeys(components_to_update, records)


class _Progress:
    """GEPA's logger and callback: its own lines are for ``--debug``, every kept prompt is a point of the live curve."""

    def __init__(self) -> None:
        self._best = float("-inf")

    def log(self, message: str) -> None:
        """Pass a line on."""
        _LOG.debug(message)

    def on_valset_evaluated(self, event: Mapping[str, Any]) -> None:
        """Record the score of a prompt on the dev questions."""
        self._best = max(self._best, event["average_score"])
        line = {"dev_reward": event["average_score"], "best_dev_reward": self._best}
        record_step({"step": event["candidate_idx"], **line})
