r"""SkyRL: an environment of SkyRL-gym, for its generator to step.

    register(cfg.generator, "params.yaml", model="models/tiny/sft", retrieval_url="http://127.0.0.1:8099")

in the program that starts SkyRL's trainer, with ``environment.env_class=deepsearch``. The rows are
those of :mod:`deepsearch_rl.environment.adapters.verl`: SkyRL hands their ``extra_info`` on.

SkyRL samples a turn, gives its text, and renders the observations itself. So texts, limits, reward
and stop reason are the environment's; tokens and masks are SkyRL's own.
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deepsearch_rl.agent.config import FUNCTION_CALLING, AgentConfig
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.records import Question, StopReason
from deepsearch_rl.environment.adapters.verl import QUESTION
from deepsearch_rl.environment.blocking import shared_environment
from deepsearch_rl.environment.episode import Episode

# What rows and SkyRL's configuration name it
NAME: Final = "deepsearch"
gym: Any = importlib.import_module("skyrl_gym")
base: Any = importlib.import_module("skyrl_gym.envs.base_text_env")


class SearchTextEnv(base.BaseTextEnv):
    """One rollout: ``extras`` are the row's, ``model`` is the folder with the tokenizer.

    SkyRL's own ``env_config`` is not read.
    """

    def __init__(
        self, params: str, model: str, retrieval_url: str, extras: Mapping[str, Any], **_: Any
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
            # In tags, passages are text of the one growing message and answer no call
            in_tags = self._environment.environment.config.protocol != FUNCTION_CALLING
            observations: list[dict[str, str]] = []
            for message in step.observations:
                role = "user" if in_tags else message.role
                observations.append({"role": role, "content": message.content})

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
        """Return F1, exact match, searches, parts of the reward and the stop reason, as SkyRL averages them.

        ``cut_by_skyrl`` is 1 for an episode that SkyRL's own limit of tokens ended.
        """
        if self._episode is None:
            return {}
        was_cut = self._episode.outcome is None
        limit = "SkyRL's limit of tokens (generator.max_input_length)"
        outcome = self._episode.abandon(StopReason.TOKEN_BUDGET, limit)
        return {**outcome.figures(), "cut_by_skyrl": float(was_cut)}


def register(generator: Any, params: str, *, model: str, retrieval_url: str) -> None:
    """Register the environment as ``deepsearch``, and give SkyRL's generator the schema of the tool.

    Args:
        generator: ``cfg.generator`` of SkyRL; ``chat_template_kwargs.tools`` is set.
        params: params.yaml, of which the sections agent and rl are read.
        model: folder of the start model.
        retrieval_url: a running retrieval server.

    Raises:
        ConfigError: the generator would render another conversation than the agent's.
    """
    config = load_profile(Path(params)).section("agent", AgentConfig)
    protocol = config.protocol
    in_messages = protocol == FUNCTION_CALLING
    if generator.batched:
        raise ConfigError("generator.batched plays one turn of an episode: set it to false.")
    if generator.use_conversation_multi_turn != in_messages:
        wanted = str(in_messages).lower()
        form = "messages" if in_messages else "text of one message"
        raise ConfigError(
            f"agent.protocol is {protocol}, whose passages are {form}: set "
            f"generator.use_conversation_multi_turn to {wanted}."
        )
    limit = generator.sampling_params.max_generate_length
    if limit != config.max_tokens:
        raise ConfigError(
            f"generator.sampling_params.max_generate_length is {limit} and limits one turn: set it to "
            f"agent.max_tokens, which is {config.max_tokens}."
        )
    if in_messages:
        tools = {"tools": [RETRIEVE_TOOL]}
        generator.chat_template_kwargs = {**(generator.chat_template_kwargs or {}), **tools}

    settings = {"params": params, "model": model, "retrieval_url": retrieval_url}
    entry_point = f"{SearchTextEnv.__module__}:{SearchTextEnv.__name__}"
    gym.register(id=NAME, entry_point=entry_point, kwargs=settings)
