r"""SkyRL: an environment of SkyRL-gym, for its generator to step.

    skyrl_gym.register(
        id="deepsearch",
        entry_point="deepsearch_rl.environment.adapters.skyrl:make",
        kwargs={"params": "params.yaml", "model": "models/tiny/sft", "retrieval_url": "http://127.0.0.1:8099"},
    )

in the program that starts SkyRL's trainer, with ``environment.env_class=deepsearch``. The rows are
those of :mod:`deepsearch_rl.environment.adapters.verl`: SkyRL hands their ``extra_info`` on.

SkyRL samples a turn, gives its text, and renders the observations itself. So texts, limits, reward
and stop reason are the environment's; tokens and masks are SkyRL's own.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.records import Question
from deepsearch_rl.environment.adapters.verl import QUESTION
from deepsearch_rl.environment.blocking import shared_environment
from deepsearch_rl.environment.episode import Episode

base: Any = importlib.import_module("skyrl_gym.envs.base_text_env")


class SearchTextEnv(base.BaseTextEnv):
    """One rollout: ``extras`` are the row's, ``model`` is the folder with the tokenizer."""

    def __init__(
        self, params: str, model: str, retrieval_url: str, extras: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._environment = shared_environment(params, model, retrieval_url)
        self._question = Question.model_validate_json(extras["extra_info"][QUESTION])
        self._episode: Episode | None = None
        self.max_turns = self._environment.environment.config.max_turns + 1

    def init(
        self, _prompt: Sequence[Mapping[str, str]]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the messages that open the question; raise ConfigError where it does not fit."""
        self._episode = self._environment.open(self._question)
        if self._episode.outcome is not None:
            raise ConfigError(
                f"{self._question.id} leaves no room for an answer in agent.context_tokens."
            )
        return self._episode.request["messages"], {}

    def step(self, action: str) -> Any:
        """Carry out a turn; the reward comes with the last one. Raise EndpointError where a server failed."""
        assert self._episode is not None, "init comes first"
        self.turns += 1
        (step,) = self._environment.step([self._episode], [action])
        if step.outcome is None:
            observations: list[dict[str, str]] = []
            for message in step.observations:
                observations.append({"role": message.role, "content": message.content})

            return base.BaseTextEnvStepOutput(
                observations=observations, reward=0.0, done=False, metadata={}
            )

        if step.outcome.is_server_failure:
            trajectory = step.outcome.trajectory
            raise EndpointError(
                f"{trajectory.stop_reason} in a rollout of {self._question.id}: "
                f"{trajectory.error}; check the retrieval server."
            )
        return base.BaseTextEnvStepOutput(
            observations=[],
            reward=step.outcome.reward,
            done=True,
            metadata={"stop_reason": str(step.outcome.stop_reason)},
        )

    def get_metrics(self) -> dict[str, Any]:
        """Return F1, exact match, searches, parts of the reward and the stop reason, as SkyRL averages them."""
        outcome = self._episode.outcome if self._episode else None
        return {} if outcome is None else outcome.figures()


def make(
    params: str, model: str, retrieval_url: str, extras: Mapping[str, Any], **_: Any
) -> SearchTextEnv:
    """Return the environment of a row; SkyRL's own ``env_config`` is not read."""
    return SearchTextEnv(params, model, retrieval_url, extras)
