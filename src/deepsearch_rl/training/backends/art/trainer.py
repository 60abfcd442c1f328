"""ART as an engine of the RL loop, whichever of its services trains and serves the policy.

The agent answers a question as it does everywhere; ART captures the model calls underneath,
tokenises and packs the conversations and keeps a folder per step. Advantages are those of
``rl.loss.algorithm``. The services are those of ``service.py`` and ``unsloth.py``.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import art
import torch
from art import dev
from art.auto_trajectory import AutoTrajectoryContext
from art.local import backend as local_backend
from art.local.backend import LocalBackend
from art.local.service import ModelService
from art.preprocessing import tokenize
from art.preprocessing.pack import PackedTensors
from art.preprocessing.tokenize import TokenizedResult, tokenize_trajectory_groups
from art.types import MessagesAndChoices
from art.utils.output_dirs import get_model_dir, get_step_checkpoint_dir
from mp_actors import move_to_child_process
from openai.types.chat.chat_completion import Choice

from deepsearch_rl.agent.protocols import EndpointPolicy
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.conversation.agent_config import SEARCH_TAGS
from deepsearch_rl.conversation.chat_format import ChatFormat, load_chat_format
from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.global_random import seeded_global_random
from deepsearch_rl.core.records import Question
from deepsearch_rl.endpoints.endpoint import Endpoint
from deepsearch_rl.serving.opened_thought import prompt_opens_thought
from deepsearch_rl.training.backends.art.captures import NO_TURN, sampled_choices, why_left_out
from deepsearch_rl.training.backends.art.checkpoints import RESUME_ONLY, is_whole, require_start
from deepsearch_rl.training.backends.art.tag_policy import (
    TagPolicy,
    row_trajectory,
    tokenized_row,
)
from deepsearch_rl.training.rl.checkpoints import checkpoints
from deepsearch_rl.training.rl.heartbeat import check_server
from deepsearch_rl.training.rl.policy_loss import ALGORITHMS, advantages
from deepsearch_rl.training.rl.tokens import TokenRecord, TokenRow, end_ids
from deepsearch_rl.training.rl.trainer import LossConfig, RlConfig, RlTask, Rollout, RolloutSampling

_LOG = logging.getLogger(__name__)
METRICS = {
    "loss/train": "loss",
    "loss/clip_fraction": "clip_fraction",
    "loss/entropy": "entropy",
    "loss/grad_norm": "grad_norm",
    "loss/learning_rate": "learning_rate",
    "data/step_num_groups_trainable": "trainable_groups",
    "data/step_trainer_tokens": "trained_tokens",
    "kl": "kl",
    "served_share": "served_share",
    "logprob_positive": "logprob_positive",
    **{f"mismatch_{name}": f"mismatch_{name}" for name in ("mean", "median", "p99", "max", "corr")},
    **{f"outside_clip_{sign}": f"outside_clip_{sign}" for sign in ("positive", "negative")},
}
"""A service's metrics of an update, as ART hands them on, and their names in the log."""
NO_ADVANTAGE = 1e-6
"""Rollouts with at most this advantage are not trained on: equal rewards differ from their mean by rounding."""


def _note(*texts: object) -> None:
    """Take what ART prints of every step; the loop's log holds more."""
    _LOG.debug("%s", " ".join(map(str, texts)))


setattr(local_backend, "print", _note)  # noqa: B010 - hides Python's print from this module of ART alone


@contextlib.contextmanager
def _used_by_art(module: ModuleType, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Have a module of ART call another function in a block; ART has no argument for that."""
    own = getattr(module, name)
    setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, own)


class ServiceBackend(LocalBackend):
    """``art.LocalBackend`` that is given its services (ART 0.5.18 imports Megatron before it makes one).

    Rollouts are packed to ``rl.max_sequence_tokens``; the services cut them to their own length or
    check the chunks. ``in_tags``: they are sequences of :func:`row_trajectory`.
    """

    def __init__(
        self, *, config: RlConfig, in_process: bool, path: str, in_tags: bool = False
    ) -> None:
        super().__init__(in_process=in_process, path=path)
        self._tokenize = tokenized_row if in_tags else tokenize.tokenize_trajectory
        self._loss = config.loss
        self._max_tokens = config.max_sequence_tokens
        self.draws = ""
        """Seed of what the next update draws."""
        self.overlong = 0
        """Rollouts of the last update that were longer than what is trained on."""
        self._packed_sequence_length_requires_chunk_alignment = False

    async def _get_service(self, model: art.TrainableModel[Any, Any]) -> ModelService:
        return self._services[model.name]

    def _get_packed_tensors(self, *arguments: Any, **named: Any) -> PackedTensors | None:
        """Tokenise and pack as ART does, with the advantages of ``rl.loss``, which ART would compute on the way.

        ART drops a rollout that is longer than a row after it has compared rewards. Here it is left
        out, and counted, before that: a baseline is the mean of what is trained on.
        """
        results: list[TokenizedResult] = []

        def tokenized(
            tokenizer: Any, groups: Any, no_logprobs: bool, _: bool, **rest: Any
        ) -> list[TokenizedResult]:
            rest["drop_zero_advantage_trajectories"] = False
            with _used_by_art(tokenize, "tokenize_trajectory", self._tokenize):
                rows = list(
                    tokenize_trajectory_groups(tokenizer, groups, no_logprobs, False, **rest)
                )

            fitting = [row for row in rows if len(row.token_ids) <= self._max_tokens]
            self.overlong = len(rows) - len(fitting)
            results.extend(with_advantages(fitting, self._loss))
            return results

        # ART draws ids and orders from the module's generator
        replaced = _used_by_art(local_backend, tokenize_trajectory_groups.__name__, tokenized)
        with replaced, seeded_global_random(self.draws):
            packed = super()._get_packed_tensors(*arguments, **named)
        if packed is not None and not self._loss.unit_advantages:
            packed["advantages"] *= fmean(abs(row.advantage) for row in results)
        return packed


class ArtTrainer:
    """An :class:`~deepsearch_rl.training.rl.trainer.RlTrainer` around one of ART's services.

    ``make_service`` gets ART's model and its folder below ``task.scratch`` and makes an ART
    ``ModelService`` whose checkpoints are sealed; it runs in a process of its own unless
    ``in_process``. ``settings`` are ART's, of the model.
    """

    def __init__(
        self,
        task: RlTask,
        config: RlConfig,
        make_service: Callable[[art.TrainableModel[Any, Any], str], Any],
        settings: dev.InternalModelConfig,
        in_process: bool = False,
    ) -> None:
        self.hardware: Mapping[str, str] = {"device": config.backend.device, "dtype": config.dtype}
        self._task = task
        self._config = config
        self._make_service = make_service
        self._in_process = in_process
        self._in_tags = task.agent.protocol == SEARCH_TAGS
        self._backend = ServiceBackend(
            config=config,
            path=str(task.scratch),
            in_process=in_process,
            in_tags=self._in_tags,
        )
        self._model: art.TrainableModel[Any, Any] = art.TrainableModel(
            name="policy",
            project="deepsearch-rl",
            base_model=str(task.start),
            _internal_config=settings,
        )
        self._folder = Path(get_model_dir(self._model, str(task.scratch)))
        self._step = 0
        splits_thoughts = (
            config.backend.device == "cuda" and config.sampler.reasoning_parser is not None
        )
        self._begins_in_thought = not splits_thoughts and prompt_opens_thought(task.start)

    async def start(self, step: int) -> int:
        """Serve the newest policy up to ``step`` whose checkpoint is whole; delete all others, and say if one is not.

        Raises ArtifactError if the checkpoint was trained from other weights than the start
        model's.
        """
        steps = sorted(number for number in checkpoints(self._folder) if number <= step)
        while steps and not is_whole(self._checkpoint(steps[-1])):
            _LOG.warning(
                "%s is damaged; rl goes on from the checkpoint before it",
                self._checkpoint(steps.pop()),
            )

        if steps:
            require_start(self._checkpoint(steps[-1]), self._task.weights)
        self._step = steps[-1] if steps else 0
        self.keep_only(set(steps))
        service = self._make_service(self._model, str(self._folder))
        self._service = service if self._in_process else move_to_child_process(service)
        self._backend._services[self._model.name] = self._service
        await self._model.register(self._backend)
        check_server(
            "the policy's server", self._endpoint().base_url.removesuffix("/v1") + "/health"
        )
        return self._step

    @cached_property
    def _chat_format(self) -> ChatFormat:
        return load_chat_format(self._task.start)

    def _checkpoint(self, step: int) -> Path:
        return Path(get_step_checkpoint_dir(str(self._folder), step))

    async def roll_out(
        self, questions: Sequence[Question], sampling: RolloutSampling
    ) -> list[list[Rollout]]:
        """Answer every question with the agent.

        A trained rollout's ``capture`` is ART's record of its model calls; of one in Search-R1's
        tags, its sequence of tokens.
        """
        endpoint = self._endpoint()
        agent = SearchAgent(
            self._task.agent,
            endpoint,
            self._task.retrieval_url,
            sampling.temperature,
            logprobs=sampling.trained,
            seed=sampling.seed,
        )
        limit = asyncio.Semaphore(self._config.concurrency)

        async def answer(question: Question, sample: int) -> Rollout:
            """Roll out one sample as soon as fewer than ``rl.concurrency`` others run."""
            async with limit:
                if not sampling.trained:
                    return Rollout(await agent.answer(question, sample))
                if self._in_tags:
                    policy = agent.endpoint_policy(endpoint, question, sample)
                    return await self._recorded(agent, policy, question, sample)
                return await self._captured(agent, question, sample)

        async with agent:
            samples = range(sampling.samples)
            groups = [
                asyncio.gather(*(answer(question, sample) for sample in samples))
                for question in questions
            ]
            return await asyncio.gather(*groups)

    async def _captured(self, agent: SearchAgent, question: Question, sample: int) -> Rollout:
        """Roll out one sample while ART records its model calls."""
        with AutoTrajectoryContext() as captured:
            trajectory = await agent.answer(question, sample)

        with_reasoning = self._task.agent.history_reasoning
        reason = why_left_out(captured, trajectory, self._chat_format, with_reasoning)
        return Rollout(trajectory, captured, reason)

    async def _recorded(
        self, agent: SearchAgent, asked: EndpointPolicy, question: Question, sample: int
    ) -> Rollout:
        """Roll out one sample in Search-R1's tags, in which the sampled tokens are continued."""
        tokens = TokenRecord(self._chat_format, asked.protocol, self._end_ids)
        policy = TagPolicy(asked, tokens)
        trajectory = await agent.answer(question, sample, policy)
        return Rollout(trajectory, policy.row, NO_TURN if policy.row is None else "")

    @cached_property
    def _end_ids(self) -> tuple[int, ...]:
        return end_ids(self._task.start, self._chat_format)

    def _endpoint(self) -> Endpoint:
        address = self._model.inference_base_url
        key = self._model.inference_api_key
        assert address is not None, "the trainer was not started"
        assert key is not None
        return Endpoint(
            address, self._model.get_inference_name(self._step), key, self._begins_in_thought
        )

    async def update(
        self, rollouts_QG: Sequence[Sequence[Rollout]], rewards_QG: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Have ART train on the captured rollouts; return those of its metrics that :data:`METRICS` names."""
        groups = [
            art.TrajectoryGroup([art_trajectory(*pair) for pair in in_order(rollouts_G, rewards_G)])
            for rollouts_G, rewards_G in zip(rollouts_QG, rewards_QG, strict=True)
        ]
        self._backend.draws = f"{self._task.seed}/{self._step}"
        result = await self._backend.train(self._model, groups, **train_arguments(self._config))
        metrics = {
            name: float(result.metrics[key])
            for key, name in METRICS.items()
            if key in result.metrics
        }
        return {**metrics, "overlong": float(self._backend.overlong)}

    def require_whole(self, step: int) -> None:
        """Compare a step's checkpoint with its seal."""
        if not is_whole(self._checkpoint(step)):
            raise ArtifactError(
                f"{self._checkpoint(step)}, the checkpoint with the best dev score, is damaged, so that this run could "
                f"not publish it. Put the folder back from a copy, or delete {self._task.scratch} to train again."
            )

    async def serve(self) -> None:
        """Have the service serve the policy of the newest checkpoint."""
        await self._service.serve()
        self._step += 1

    def save(self, step: int, folder: Path) -> None:
        """Copy a step's checkpoint without the files that only a resume needs; raise ArtifactError if it is damaged."""
        self.require_whole(step)
        ignored = shutil.ignore_patterns(*RESUME_ONLY)
        shutil.copytree(self._checkpoint(step), folder, dirs_exist_ok=True, ignore=ignored)

    def keep_only(self, steps: set[int]) -> None:
        """Delete all other folders of checkpoints."""
        for checkpoint in set(self._folder.glob("checkpoints/*")) - {
            self._checkpoint(step) for step in steps
        }:
            shutil.rmtree(checkpoint)

    async def close(self) -> None:
        """Stop the backend's services."""
        await self._backend.close()


def with_advantages(results: Sequence[TokenizedResult], loss: LossConfig) -> list[TokenizedResult]:
    """Give the tokenised rollouts of a step their advantages; return those that have one, up to rounding."""
    rewards_B = torch.tensor([result.trajectory.reward for result in results], dtype=torch.float64)
    groups_B = torch.tensor([result.prompt_id for result in results], dtype=torch.int64)
    tokens_B = torch.tensor([sum(result.assistant_mask) for result in results])
    kind = ALGORITHMS[loss.algorithm].advantage
    advantages_B = advantages(kind, rewards_B, groups_B, tokens_B, loss.sample_std)
    for result, advantage in zip(results, advantages_B.tolist(), strict=True):
        result.advantage = advantage
    return [result for result in results if abs(result.advantage) > NO_ADVANTAGE]


def in_order(
    rollouts_G: Sequence[Rollout], rewards_G: Sequence[float]
) -> list[tuple[Rollout, float]]:
    """Return the rollouts of a group with their rewards by id, so that no sum depends on which one ended first."""
    return sorted(zip(rollouts_G, rewards_G, strict=True), key=lambda pair: pair[0].trajectory.id)


def art_trajectory(rollout: Rollout, reward: float) -> art.Trajectory:
    """Return a rollout as ART trains on it: what it captured as one conversation with its tools, or the sequence."""
    if isinstance(rollout.capture, TokenRow):
        return row_trajectory(rollout.capture, reward)

    captured: art.Trajectory = rollout.capture
    tools = next(
        (history.tools for history in (captured, *captured.additional_histories) if history.tools),
        None,
    )
    return art.Trajectory(messages_and_choices=conversation(captured), tools=tools, reward=reward)


def conversation(captured: art.Trajectory) -> MessagesAndChoices:
    """Return the whole conversation of a rollout with every assistant turn as the choice that was sampled.

    ART splits a rollout into several histories where a request does not repeat the previous answer
    to the letter (an empty text against none); they are put back together. ART renders an assistant
    turn as its sampled tokens followed by its structured tool calls, which the tokens already hold;
    the structured copy is dropped.
    """
    histories = [
        history.messages_and_choices for history in (captured, *captured.additional_histories)
    ]
    choices = iter(sampled_choices(captured))
    items: MessagesAndChoices = []

    for item in max(histories, key=len):
        if isinstance(item, Choice) or item["role"] == "assistant":
            choice = next(choices)
            message = choice.message.model_copy(update={"content": "", "tool_calls": None})
            item = choice.model_copy(update={"message": message})

        items.append(item)

    return items


def model_settings(config: RlConfig) -> dev.InternalModelConfig:
    """Return ART's model settings that all services share.

    ``vllm_openai`` renders the tool schema as servers do; with ART's default the correlation of
    sampled and trained probabilities falls from 0.99 to 0.83.
    """
    return {
        "chat_template_tool_schema_format": "vllm_openai",
        "init_args": {"max_seq_length": config.max_sequence_tokens},
    }


def train_arguments(config: RlConfig) -> dict[str, Any]:
    """Return the keyword arguments of ``art.LocalBackend.train``, the same for every service.

    With ``precalculate_logprobs`` ART's service recomputes the old log-probabilities by the
    trainer, as ours does.
    """
    return {
        "learning_rate": config.learning_rate,
        "loss_fn": "ppo",
        "precalculate_logprobs": True,
        "importance_sampling_level": "token"
        if ALGORITHMS[config.loss.algorithm].ratio == "token"
        else "sequence",
        "epsilon": config.loss.epsilon,
        "epsilon_high": config.loss.epsilon_high,
        "truncated_importance_sampling": config.loss.truncated_importance_sampling,
        "kl_penalty_coef": config.loss.kl_penalty,
        "packed_sequence_length": config.max_sequence_tokens,
        "logprob_calculation_chunk_size": config.logprob_chunk,
    }
