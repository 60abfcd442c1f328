"""ART's local backend, given its services: what it is told of a run, and how rollouts become rows.

ART knows conversations and renders them. A rollout is the sequence that the policy read and wrote,
so it travels through ART as one choice that holds every token, and is read back where ART would
render it.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from types import ModuleType
from typing import Any, cast

import art
import torch
from art import dev
from art.local import backend as local_backend
from art.local.backend import LocalBackend
from art.local.service import ModelService
from art.preprocessing import tokenize
from art.preprocessing.pack import PackedTensors
from art.preprocessing.tokenize import TokenizedResult, tokenize_trajectory_groups
from art.trajectories import History
from openai.types.chat.chat_completion import Choice
from transformers import PreTrainedTokenizerBase

from deepsearch_rl.core.global_random import seeded_global_random
from deepsearch_rl.train.art.captures import reported_tokens
from deepsearch_rl.train.rl.policy_loss import ALGORITHMS, advantages
from deepsearch_rl.train.rl.rl_config import LossConfig, RlConfig
from deepsearch_rl.train.rl.rl_trainer import Rollout
from deepsearch_rl.train.rl.tokens import TokenRow

_LOG = logging.getLogger(__name__)

# Rollouts with at most this advantage are not trained on: equal rewards differ from their mean by
# rounding
NO_ADVANTAGE = 1e-6

_SAMPLED = "token_id"

_READ = "read_id"


def _note(*texts: object) -> None:
    """Take what ART prints of every step; the loop's log holds more."""
    _LOG.debug("%s", " ".join(map(str, texts)))


# Hides Python's print from this module of ART alone
setattr(local_backend, "print", _note)  # noqa: B010


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
    check the chunks. They are sequences of :func:`row_trajectory`.
    """

    def __init__(self, *, config: RlConfig, in_process: bool, path: str) -> None:
        super().__init__(in_process=in_process, path=path)
        self._loss = config.loss
        self._max_tokens = config.max_sequence_tokens
        # Seed of what the next update draws
        self.draws = ""
        # Rollouts of the last update that were longer than what is trained on
        self.overlong = 0
        self._packed_sequence_length_requires_chunk_alignment = False

    async def _get_service(self, model: art.TrainableModel[Any, Any]) -> ModelService:
        return self._services[model.name]

    def _get_packed_tensors(self, *arguments: Any, **named: Any) -> PackedTensors | None:
        """Pack as ART does, with the advantages of ``rl.loss``, which ART would compute on the way.

        ART drops a rollout that is longer than a row after it has compared rewards. Here it is left
        out, and counted, before that: a baseline is the mean of what is trained on.
        """
        results: list[TokenizedResult] = []

        def tokenized(
            tokenizer: Any, groups: Any, no_logprobs: bool, _: bool, **rest: Any
        ) -> list[TokenizedResult]:
            """Stand in for ART's function of the same arguments, which this calls."""
            rest["drop_zero_advantage_trajectories"] = False
            with _used_by_art(tokenize, "tokenize_trajectory", tokenized_row):
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


def model_settings(config: RlConfig) -> dev.InternalModelConfig:
    """Return ART's model settings that all services share."""
    return {"init_args": {"max_seq_length": config.max_sequence_tokens}}


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


def in_order(
    rollouts_G: Sequence[Rollout], rewards_G: Sequence[float]
) -> list[tuple[Rollout, float]]:
    """Return the rollouts of a group with their rewards by id, so that no sum depends on which one ended first."""
    return sorted(zip(rollouts_G, rewards_G, strict=True), key=lambda pair: pair[0].trajectory.id)


def row_trajectory(row: TokenRow, reward: float) -> art.Trajectory:
    """Return a sequence as ART carries it: one choice with all tokens, which :func:`tokenized_row` reads."""
    logprobs = row.logprobs or [math.nan] * len(row.ids)
    content: list[dict[str, Any]] = []

    for token, is_sampled, logprob in zip(row.ids, row.mask, logprobs, strict=True):
        name = _SAMPLED if is_sampled else _READ
        content.append({"token": f"{name}:{token}", "logprob": logprob, "top_logprobs": []})

    message = {"role": "assistant", "content": ""}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return art.Trajectory(
        messages_and_choices=[Choice.model_validate({**choice, "logprobs": {"content": content}})],
        reward=reward,
    )


def tokenized_row(
    tokenizer: PreTrainedTokenizerBase,
    _image_processor: Any,
    history: History,
    advantage: float,
    _without_logprobs: bool,
    trajectory: art.Trajectory,
    **_: Any,
) -> TokenizedResult:
    """Return a sequence of :func:`row_trajectory` as ART's ``tokenize_trajectory`` returns a conversation.

    As there, a token that the model did not write has no log-probability (NaN) and no place in the
    mask.
    """
    choice = cast(Choice, history.messages_and_choices[0])
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []

    for entry in reported_tokens(choice):
        name, _colon, token = entry.token.partition(":")
        is_sampled = name == _SAMPLED
        ids.append(int(token))
        mask.append(int(is_sampled))
        logprobs.append(entry.logprob if is_sampled else math.nan)

    return TokenizedResult(
        advantage=advantage,
        chat="",
        token_ids=ids,
        input_pos=list(range(len(ids))),
        assistant_mask=mask,
        logprobs=logprobs,
        pixel_values=None,
        image_grid_thw=None,
        trajectory=trajectory,
        choice_offsets=[],
        extra_logprobs={},
        _tokenizer=tokenizer,
    )
