"""verifiers: questions as its tasks, and the project's own rollout as its harness.

    python -m deepsearch_rl.environment.adapters.verifiers --env.taskset.params params.yaml \
        --env.taskset.questions train.jsonl --env.taskset.model models/tiny/sft \
        --env.taskset.retrieval_url http://127.0.0.1:8099 --client.base-url http://127.0.0.1:8000/v1 ...

is verifiers' own ``vf-eval`` on these tasks; :func:`load_environment` makes the same environment for
a trainer. In verifiers 0.4 a harness may run its loop in the process as long as every model call
goes through the endpoint that it is given, which records the tokens of a training client. So the
loop here is :class:`~deepsearch_rl.agent.rollout.SearchAgent`: prompts, limits, notices, searches
and stop reasons are those of every rollout. The sampling temperature is that of ``--sampling``.
"""

import functools
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.records import SERVER_FAILURES, Question
from deepsearch_rl.environment.search_environment import load_policy_format, reward_setting
from deepsearch_rl.train.rewards import reward_parts
from deepsearch_rl.train.rl.rl_config import RlConfig

vf: Any = importlib.import_module("verifiers.v1")
runtimes: Any = importlib.import_module("verifiers.v1.runtimes")
# The id of taskset and harness; verifiers imports a plugin by a name without dots
PLUGIN = "deepsearch_search"
# So that such an import finds this module, in which the classes are defined once
sys.modules[PLUGIN] = sys.modules[__name__]
# The field of a trace's ``info`` with the parts of the reward, the figures and the trajectory
RESULT = "deepsearch"
# Loaded once: all rollouts of a run have one model
_policy_format = functools.cache(load_policy_format)


class SearchData(vf.TaskData):
    """A question with what plays it."""

    question: str
    params: str
    model: str
    retrieval_url: str


class SearchTask(vf.Task[SearchData]):
    """Reports what :class:`SearchHarness` left in the trace."""

    @property
    def key(self) -> str:
        """The question's id."""
        return self.data.id

    @vf.reward
    async def search(self, trace: Any) -> dict[str, float]:
        """Return the parts of the reward, weights in them."""
        return trace.info[RESULT]["parts"]

    @vf.metric
    async def figures(self, trace: Any) -> dict[str, float]:
        """Return F1, exact match and the number of searches."""
        return trace.info[RESULT]["figures"]


class SearchTasksetConfig(vf.TasksetConfig):
    """``--env.taskset.*``: params with the sections agent and rl, questions, the model's tokenizer, the server."""

    params: Path = Path("params.yaml")
    questions: Path = Path("questions.jsonl")
    model: Path = Path("model")
    retrieval_url: str = "http://127.0.0.1:8099"


class SearchTaskset(vf.Taskset[SearchTask, SearchTasksetConfig]):
    """The questions of a file."""

    def load(self) -> Iterator[SearchTask]:
        """Return a task for each question."""
        config = self.config
        shared = {"params": str(config.params), "model": str(config.model)}
        for question in read_jsonl(config.questions, Question):
            data = SearchData(
                id=question.id,
                prompt=question.question,
                question=question.model_dump_json(),
                retrieval_url=config.retrieval_url,
                **shared,
            )
            yield SearchTask(data, config.task)


class SearchHarness(vf.Harness[vf.HarnessConfig]):
    """Plays a question in this process."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, _runtime: Any, endpoint: str, secret: str, *_: Any, **__: Any
    ) -> Any:
        """Roll a question out through the endpoint; a server's failure is the program's."""
        data = trace.task.data
        profile = load_profile(Path(data.params))
        training = profile.section("rl", RlConfig)
        rewards = reward_setting(training, _policy_format(Path(data.model)))
        question = Question.model_validate_json(data.question)
        # A trainer that says nothing samples as the project's own RL does
        temperature = ctx.sampling.temperature
        temperature = training.temperature if temperature is None else temperature
        server = Endpoint(endpoint, ctx.model, secret)
        agent = profile.section("agent", AgentConfig)

        async with SearchAgent(agent, server, data.retrieval_url, temperature) as search_agent:
            trajectory = await search_agent.answer(question, 0)

        # As a program that failed: its reward of zero would say nothing of the model
        if trajectory.stop_reason in SERVER_FAILURES:
            problem = f"{trajectory.stop_reason}: {trajectory.error}"
            return runtimes.ProgramResult(1, "", problem)

        scores = score_rollout(trajectory)
        trace.info[RESULT] = {
            "parts": reward_parts(rewards.weights, trajectory, question, rewards.policy),
            "figures": {"f1": scores.f1, "em": scores.em, "searches": trajectory.tool_calls},
            "trajectory": trajectory.model_dump(mode="json"),
        }
        return runtimes.ProgramResult(0, "", "")


__all__ = ["SearchHarness", "SearchTask", "SearchTaskset"]


def load_environment(**taskset: Any) -> Any:
    """Return verifiers' environment of ``params, questions, model, retrieval_url``."""
    agent = {"harness": {"id": PLUGIN}, "runtime": {"type": "subprocess"}}
    values = {"taskset": {"id": PLUGIN, **taskset}, "agent": agent}
    envs: Any = importlib.import_module("verifiers.v1.envs.single_agent.env")
    return vf.load_environment(envs.SingleAgentEnvConfig.model_validate(values))


if __name__ == "__main__":
    sys.modules[PLUGIN] = importlib.import_module("deepsearch_rl.environment.adapters.verifiers")
    evaluation: Any = importlib.import_module("verifiers.v1.cli.eval.main")
    usual = ["--env.agent.harness.id", PLUGIN, "--env.agent.runtime.type", "subprocess"]
    evaluation.main([PLUGIN, *usual, *sys.argv[1:]])
