r"""veRL: its rollout servers sample the agent's turns, and the environment does everything around them.

    python -m deepsearch_rl.environment.adapters.verl --params params.yaml --questions train.jsonl \
        --retrieval_url http://127.0.0.1:8099 --model models/tiny/sft --data_source multihoprag --output_dir rows

writes what veRL's trainer reads:

    rows/train.parquet    one row for each question, with the messages that open it
    rows/agent.yaml       the agent loop, for actor_rollout_ref.rollout.agent.agent_loop_config_path

veRL makes a :class:`SearchAgentLoop` for each rollout; each worker process has one environment. The
loop gives the reward as well, so veRL's own reward workers are not asked. :func:`compute_score` is
the reward of rows that a different agent loop rolls out; veRL's own selector refuses a
``data_source`` that it does not know:

    reward.custom_reward_function.path=pkg://deepsearch_rl.environment.adapters.verl \
    reward.custom_reward_function.name=compute_score +reward.custom_reward_function.reward_kwargs.metric=em

A rollout whose search failed raises, and veRL 0.9.1 trains on the others of its group.
"""

import argparse
import asyncio
import importlib
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pandas as pd
import yaml

from deepsearch_rl.chat.chat_messages import spoken_text
from deepsearch_rl.core.answers import extract_answer, score
from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.files import atomic_file, read_jsonl
from deepsearch_rl.core.records import Message, Question
from deepsearch_rl.environment.adapters.commands import exit_on_error, row_files
from deepsearch_rl.environment.blocking import shared_environment
from deepsearch_rl.environment.episode import Episode, Outcome
from deepsearch_rl.environment.search_environment import SearchEnvironment, open_environment
from deepsearch_rl.train.rl.rl_config import AGENT_LOOP
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
            "reward_extra_info": outcome.figures(),
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


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **options: Any
) -> dict[str, float]:
    """Return the score of a response's last answer, outside of its thoughts, by the golden ``target`` of a row.

    ``reward.custom_reward_function.reward_kwargs.metric`` chooses ``f1`` (the default), ``em``,
    ``acc``, ``precision`` or ``recall`` as the reward.
    """
    del data_source, extra_info
    golden_answers = [str(answer) for answer in ground_truth["target"]]
    said = spoken_text(Message(role="assistant", content=solution_str))
    scores = score(extract_answer(said), golden_answers)._asdict()
    return {"score": scores[options.get("metric", "f1")], **scores}


def write_rows(
    path: Path, questions: Sequence[Question], environment: SearchEnvironment, data_source: str
) -> None:
    """Write a Parquet file; raise ConfigError where questions leave no room for an answer."""
    prompts = environment.prompts(questions)
    rows: list[dict[str, Any]] = []

    for index, (question, prompt) in enumerate(zip(questions, prompts, strict=True)):
        target = {"target": list(question.golden_answers)}
        rows.append(
            {
                "data_source": data_source,
                "prompt": prompt,
                "ability": "fact-reasoning",
                "reward_model": {"style": "rule", "ground_truth": target},
                "extra_info": {"index": index, QUESTION: question.model_dump_json()},
            }
        )

    with atomic_file(path) as partial:
        pd.DataFrame(rows).to_parquet(partial, index=False)


def write_agent(path: Path, params: Path, *, model: Path, retrieval_url: str) -> None:
    """Write the file that names the agent loop; all workers must be able to read the paths in it."""
    entry = {
        "name": AGENT_LOOP,
        # Not by __module__, which is __main__ in the command
        "_target_": "deepsearch_rl.environment.adapters.verl.SearchAgentLoop",
        "params": str(params.absolute()),
        "model": str(model.absolute()),
        "retrieval_url": retrieval_url,
    }
    with atomic_file(path) as partial:
        partial.write_text(yaml.safe_dump([entry], sort_keys=False), encoding="utf-8")


async def _write(arguments: argparse.Namespace) -> None:
    where = {"model": arguments.model, "retrieval_url": arguments.retrieval_url}
    output: Path = arguments.output_dir
    files = row_files(arguments.questions, output, ".parquet")
    output.mkdir(parents=True, exist_ok=True)

    async with open_environment(arguments.params, **where) as environment:
        for path, rows in zip(arguments.questions, files, strict=True):
            questions = list(read_jsonl(path, Question))
            write_rows(rows, questions, environment, arguments.data_source)
    write_agent(output / "agent.yaml", arguments.params, **where)


def main() -> None:
    """Write the files, or end with one paragraph that says what is wrong."""
    parser = argparse.ArgumentParser(description="Write questions and agent for veRL's trainer.")
    parser.add_argument("--params", type=Path, required=True, help="its sections agent and rl")
    parser.add_argument("--questions", type=Path, nargs="+", required=True, help="jsonl")
    parser.add_argument("--model", type=Path, required=True, help="folder of the start model")
    parser.add_argument("--retrieval_url", required=True, help="a running retrieval server")
    parser.add_argument("--data_source", default="deepsearch", help="names the set in veRL's log")
    parser.add_argument("--output_dir", type=Path, required=True, help="where the files go")
    with exit_on_error():
        asyncio.run(_write(parser.parse_args()))


if __name__ == "__main__":
    main()
