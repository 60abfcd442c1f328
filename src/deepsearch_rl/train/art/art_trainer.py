"""ART as an engine of the RL loop, whichever of its services trains and serves the policy.

The agent answers a question as it does everywhere; ART captures the model calls underneath,
packs what is trained on and keeps a folder per step. Advantages are those of
``rl.loss.algorithm``. The services are those of ``service.py`` and ``unsloth.py``.
"""

import asyncio
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import art
from art import dev
from art.auto_trajectory import AutoTrajectoryContext
from art.utils.output_dirs import get_model_dir, get_step_checkpoint_dir
from mp_actors import move_to_child_process

from deepsearch_rl.agent.config import SEARCH_TAGS
from deepsearch_rl.agent.protocols import EndpointPolicy
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.chat.chat_format import ChatFormat, load_chat_format
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.chat.prompts import prompt_opens_thought
from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.records import Question
from deepsearch_rl.train.art.backend import (
    ServiceBackend,
    in_order,
    row_trajectory,
    train_arguments,
)
from deepsearch_rl.train.art.captures import NO_TURN, TagPolicy, captured_row
from deepsearch_rl.train.art.rows import RESUME_ONLY, is_whole, require_start
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask, Rollout, RolloutSampling
from deepsearch_rl.train.rl.tokens import TokenRecord, end_ids
from deepsearch_rl.train.rl.watchdog import check_server

_LOG = logging.getLogger(__name__)
# A service's metrics of an update, as ART hands them on, and their names in the log
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
    "served_share_se": "served_share_se",
    "logprob_positive": "logprob_positive",
    "mismatch_mean": "mismatch_mean",
    "mismatch_median": "mismatch_median",
    "mismatch_p99": "mismatch_p99",
    "mismatch_max": "mismatch_max",
    "mismatch_corr": "mismatch_corr",
    "outside_clip_positive": "outside_clip_positive",
    "outside_clip_negative": "outside_clip_negative",
}


class ArtTrainer:
    """An :class:`~deepsearch_rl.train.rl.rl_trainer.RlTrainer` around one of ART's services.

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
        )
        self._model: art.TrainableModel[Any, Any] = art.TrainableModel(
            name="policy",
            project="deepsearch-rl",
            base_model=str(task.start),
            _internal_config=settings,
        )
        self._folder = Path(get_model_dir(self._model, str(task.scratch)))
        self._step = 0
        # A server that splits thoughts off gives them in a field of their own
        splits_thoughts = (
            config.backend.device == "cuda" and config.sampler.reasoning_parser is not None
        )
        self._begins_in_thought = not splits_thoughts and prompt_opens_thought(task.start)

    async def start(self, step: int) -> int:
        """Serve the newest whole checkpoint up to ``step``; delete all others and warn about damaged ones.

        Raises ArtifactError if the checkpoint was trained from other weights than the start
        model's.
        """
        names = (path.name for path in self._folder.glob("checkpoints/*"))
        steps = sorted(int(name) for name in names if name.isdigit() and int(name) <= step)
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
        # Registering asks the backend for it
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

        A trained rollout's ``capture`` is its sequence, a ``TokenRow``.
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
            groups: list[asyncio.Future[list[Rollout]]] = []
            drawn = Counter[str]()
            for question in questions:
                # A question that comes again has further samples, not the same ones
                first = drawn[question.id] * sampling.samples
                drawn[question.id] += 1
                numbers = range(first, first + sampling.samples)
                groups.append(asyncio.gather(*[answer(question, number) for number in numbers]))

            return await asyncio.gather(*groups)

    async def _captured(self, agent: SearchAgent, question: Question, sample: int) -> Rollout:
        """Roll out one sample while ART records its model calls."""
        with AutoTrajectoryContext() as captured:
            trajectory = await agent.answer(question, sample)

        with_reasoning = self._task.agent.history_reasoning
        row = captured_row(captured, trajectory, self._chat_format, with_reasoning)
        return Rollout(trajectory, row.row, row.left_out)

    async def _recorded(
        self, agent: SearchAgent, sampler: EndpointPolicy, question: Question, sample: int
    ) -> Rollout:
        """Roll out one sample in Search-R1's tags, in which the sampled tokens are continued."""
        tokens = TokenRecord(self._chat_format, sampler.protocol, self._end_ids)
        policy = TagPolicy(sampler, tokens)
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
        """Have ART train on the rollouts' sequences; return its metrics in :data:`METRICS`."""
        groups: list[art.TrajectoryGroup] = []
        for rollouts_G, rewards_G in zip(rollouts_QG, rewards_QG, strict=True):
            pairs_G = in_order(rollouts_G, rewards_G)
            rows_G = [row_trajectory(rollout.capture, reward) for rollout, reward in pairs_G]
            groups.append(art.TrajectoryGroup(rows_G))

        self._backend.draws = f"{self._task.seed}/{self._step}"
        result = await self._backend.train(self._model, groups, **train_arguments(self._config))
        metrics: dict[str, float] = {}
        for key, name in METRICS.items():
            if key in result.metrics:
                metrics[name] = float(result.metrics[key])

        return {**metrics, "overlong": float(self._backend.overlong)}

    def require_whole(self, step: int) -> None:
        """Compare a step's checkpoint with its seal."""
        if not is_whole(self._checkpoint(step)):
            raise ArtifactError(
                f"{self._checkpoint(step)}, the checkpoint with the best dev score, is damaged, so "
                "that this run could not publish it. Put the folder back from a copy, or delete "
                f"{self._task.scratch} to train again."
            )

    async def serve(self) -> None:
        """Have the service serve the policy of the newest checkpoint."""
        await self._service.serve()
        self._step += 1

    def save(self, step: int, folder: Path) -> None:
        """Copy a step's checkpoint without optimizer state and seal; raise ArtifactError if it is damaged."""
        self.require_whole(step)
        ignored = shutil.ignore_patterns(*RESUME_ONLY)
        shutil.copytree(self._checkpoint(step), folder, dirs_exist_ok=True, ignore=ignored)

    def keep_only(self, steps: set[int]) -> None:
        """Delete all other checkpoints, and what a killed save left beside them."""
        wanted_folders = set(map(self._checkpoint, steps))
        for path in set(self._folder.glob("checkpoints/*")) - wanted_folders:
            # A killed save leaves a lock, which is a file
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    async def close(self) -> None:
        """Stop the backend's services."""
        await self._backend.close()
