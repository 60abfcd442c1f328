"""Agent-Lightning: the project's own rollout as a ``LitAgent``.

    import agentlightning as agl

    agent = SearchLitAgent("params.yaml", model="models/tiny/sft", retrieval_url="http://127.0.0.1:8099")
    tasks = [question.model_dump(mode="json") for question in read_jsonl(path, Question)]
    agl.Trainer(algorithm=agl.VERL(config), n_runners=8).fit(agent, train_dataset=tasks)

Agent-Lightning serves the policy behind an endpoint of its own, whose proxy records the tokens of
every call. So the loop here is :class:`~deepsearch_rl.agent.rollout.SearchAgent` against that
endpoint: prompts, limits, notices, searches and stop reasons are those of every rollout.

``LitAgent`` is that of the releases up to 0.3.0; 1.0 has none, and trains any program that asks the
endpoint that it is given, as `deepsearch evaluate --base-url` does.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.chat.address import NO_KEY, Endpoint
from deepsearch_rl.chat.agent_config import AgentConfig
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.records import SERVER_FAILURES, Question, Trajectory
from deepsearch_rl.environment.search_environment import load_policy_format, reward_setting
from deepsearch_rl.train.rewards import reward_parts
from deepsearch_rl.train.rl.rl_config import RlConfig

agents: Any = importlib.import_module("agentlightning.litagent")
# The name under which Agent-Lightning's algorithms hand the policy's endpoint over
RESOURCE = "main_llm"


class SearchLitAgent(agents.LitAgent):
    """Answers a question as JSON; params have the sections agent and rl, ``model`` is the tokenizer's folder."""

    def __init__(self, params: str | Path, *, model: str | Path, retrieval_url: str) -> None:
        super().__init__()
        profile = load_profile(Path(params))
        training = profile.section("rl", RlConfig)
        self._agent = profile.section("agent", AgentConfig)
        self._temperature = training.temperature
        self._rewards = reward_setting(training, load_policy_format(Path(model)))
        self._retrieval_url = retrieval_url

    async def rollout_async(
        self, task: Mapping[str, Any], resources: Mapping[str, Any], rollout: Any
    ) -> float:
        """Return the reward of one rollout by the served policy; raise EndpointError where a server failed it."""
        llm = resources[RESOURCE]
        attempt = getattr(getattr(rollout, "attempt", None), "attempt_id", None)
        base_url = llm.get_base_url(rollout.rollout_id, attempt)
        endpoint = Endpoint(base_url.rstrip("/"), llm.model, llm.api_key or NO_KEY)
        temperature = llm.sampling_parameters.get("temperature", self._temperature)
        question = Question.model_validate(task)
        trajectory = await self.answer(question, endpoint, temperature)

        parts = reward_parts(self._rewards.weights, trajectory, question, self._rewards.policy)
        return sum(parts.values())

    async def answer(
        self, question: Question, endpoint: Endpoint, temperature: float
    ) -> Trajectory:
        """Return the rollout of a question; raise EndpointError where a server failed it."""
        async with SearchAgent(
            self._agent, endpoint, self._retrieval_url, temperature
        ) as search_agent:
            trajectory = await search_agent.answer(question, 0)

        if trajectory.stop_reason in SERVER_FAILURES:
            raise EndpointError(
                f"{trajectory.stop_reason} in a rollout of {question.id}: {trajectory.error}"
            )
        return trajectory
