"""veRL: its rollout servers sample the agent's turns, and the environment does everything around them.

    python -m deepsearch_rl.environment.adapters.verl_rows --params params.yaml --questions train.jsonl \
        --retrieval_url http://127.0.0.1:8099 --model models/tiny/sft --data_source multihoprag --output_dir rows

writes the rows, and the file that names :class:`SearchAgentLoop` to veRL. An agent loop is made for
each rollout; the environment behind it is one for each worker process. It gives the reward as well,
so veRL's own reward workers are not asked. Rows that another agent loop rolls out take
:mod:`deepsearch_rl.environment.adapters.verl_reward`.

A rollout whose search failed raises, and veRL 0.9.1 trains on the others of its group.
"""

import importlib
import time
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.records import Question
from deepsearch_rl.environment.adapters.verl_reward import reward_figures
from deepsearch_rl.environment.blocking import shared_environment
from deepsearch_rl.environment.episode import Episode, Outcome
from deepsearch_rl.train.rl.tokens import TokenRow

ResultT = TypeVar("ResultT")
# The field of a row's ``extra_info`` that holds the question as JSON
QUESTION = "deepsearch_question"


class SearchAgentLoop:
    """One rollout, as veRL makes and runs it; ``trainer_config.config`` is veRL's whole configuration."""

    def __init__(
        self,
        params: str,
        model: str,
        retrieval_url: str,
        trainer_config: Any,
        server_manager: Any,
        **_: Any,
    ) -> None:
        self._environment = shared_environment(params, model, retrieval_url)
        self._rollout = trainer_config.config.actor_rollout_ref.rollout
        self._server = server_manager
        self._seconds = {"generate_sequences": 0.0, "tool_calls": 0.0}

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> Any:
        """Return veRL's ``AgentLoopOutput``, a list of them where the episode has several sequences.

        ``fields`` are those of the row. Raises EndpointError where a server failed the rollout,
        ConfigError where it does not fit veRL's lengths.
        """
        question = Question.model_validate_json(fields["extra_info"][QUESTION])
        episode = self._environment.open(question, int(fields.get("session_id", 0)))
        request_id = uuid4().hex
        versions: list[Any] = []
        if episode.outcome is not None:
            raise ConfigError(
                f"{question.id} leaves no room for an answer in agent.context_tokens."
            )

        while episode.outcome is None:
            sampling = sampling_params | {"max_tokens": episode.max_tokens} | self._stops(episode)
            # One request id for all turns: veRL sends them to one server, which has their prefix cached
            generation = self._server.generate(
                request_id=request_id, prompt_ids=episode.prompt_ids, sampling_params=sampling
            )
            turn = await self._timed("generate_sequences", generation)
            if turn.stop_reason == "aborted" or not turn.token_ids:
                raise EndpointError(f"veRL's rollout server gave up a turn of {question.id}.")

            versions.append(turn.extra_fields.get("min_global_steps"))
            versions.append(turn.extra_fields.get("max_global_steps"))
            step = episode.step(turn.token_ids, logprobs=turn.log_probs or None)
            await self._timed("tool_calls", self._environment.begin(step))

        if episode.outcome.is_server_failure:
            trajectory = episode.outcome.trajectory
            raise EndpointError(
                f"{trajectory.stop_reason} in a rollout of {question.id}: {trajectory.error}. "
                "It is left out of its group; check the retrieval server."
            )
        outputs = self._outputs(episode, episode.outcome, versions)
        return outputs if len(outputs) > 1 else outputs[0]

    def _stops(self, episode: Episode) -> dict[str, Any]:
        """Return the protocol's stop strings for vLLM; SGLang has no tokenizer, and the environment cuts its turns."""
        stops = episode.request.get("stop")
        is_vllm = self._rollout.name == "vllm"
        return {"stop": stops, "include_stop_str_in_output": True} if stops and is_vllm else {}

    async def _timed(self, name: str, work: Awaitable[ResultT]) -> ResultT:
        start = time.perf_counter()
        result = await work
        self._seconds[name] += time.perf_counter() - start
        return result

    def _outputs(self, episode: Episode, outcome: Outcome, versions: Sequence[Any]) -> list[Any]:
        loops: Any = importlib.import_module("verl.experimental.agent_loop.agent_loop")
        extra = {
            "turn_scores": [],
            "tool_rewards": [],
            "min_global_steps": versions[0],
            "max_global_steps": versions[-1],
            "reward_extra_info": reward_figures(outcome),
        }
        outputs: list[Any] = []
        for sequence in episode.rows:
            self._require_room(sequence)
            values = {
                "prompt_ids": sequence.prompt_ids,
                "response_ids": sequence.completion_ids,
                "response_mask": sequence.completion_mask,
                "response_logprobs": sequence.completion_logprobs if sequence.logprobs else None,
                "reward_score": outcome.reward,
                "num_turns": sum(message.role != "system" for message in episode.messages),
                "metrics": dict(self._seconds),
                "extra_fields": dict(extra),
            }
            outputs.append(loops.AgentLoopOutput(**values))
        return outputs

    def _require_room(self, sequence: TokenRow) -> None:
        """Raise ConfigError where veRL's lengths would cut a sequence."""
        response_tokens = len(sequence.ids) - sequence.prompt_tokens
        for name, tokens in (("prompt", sequence.prompt_tokens), ("response", response_tokens)):
            limit = self._rollout[f"{name}_length"]
            if tokens > limit:
                raise ConfigError(
                    f"a rollout's {name} has {tokens} tokens, and data.max_{name}_length is {limit}: set it "
                    "to agent.context_tokens, which is never exceeded."
                )
