r"""ms-swift: a scheduler that plays the episodes of its GRPO, and the reward that it left.

``swift rollout`` and ``swift rlhf`` get a file with the line
``import deepsearch_rl.environment.adapters.ms_swift`` as ``--external_plugins``, and the name
``deepsearch`` as ``--multi_turn_scheduler`` and ``--reward_funcs``. The command writes the rows:

    python -m deepsearch_rl.environment.adapters.ms_swift --params params.yaml --questions train.jsonl \
        --model models/tiny/sft --retrieval_url http://127.0.0.1:8099 --output rows.jsonl

A row says by which params, tokenizer and retrieval server its question is played. Paths are
absolute, since the servers of ms-swift may run elsewhere.

ms-swift renders messages by templates of its own. The turns before the one that is sampled are
handed over as token ids, and the prompt that its engine read is compared with the agent's: another
one is an error that names the template. What is trained on are the episode's tokens with its mask.
"""

import argparse
import copy
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deepsearch_rl.agent.config import FUNCTION_CALLING
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.files import read_jsonl, require_another_file, write_jsonl
from deepsearch_rl.core.records import Question, Record
from deepsearch_rl.environment.adapters.commands import exit_on_error
from deepsearch_rl.environment.blocking import BlockingEnvironment, shared_environment
from deepsearch_rl.environment.episode import Episode, Outcome

# The name of the scheduler and the reward in ms-swift, and of the column that says what plays a row
NAME: Final = "deepsearch"
multi_turn: Any = importlib.import_module("swift.rollout.multi_turn")
rewards: Any = importlib.import_module("swift.rewards.orm")
protocol: Any = importlib.import_module("swift.infer_engine.protocol")


class SearchScheduler(multi_turn.MultiTurnScheduler):
    """Plays a row's question; a row says by which params, tokenizer and retrieval server."""

    async def run(self, infer_request: Any, request_config: Any, **options: Any) -> Any:
        """Return ms-swift's ``RolloutOutput``: one assistant message of all turns and observations.

        Raises EndpointError where a server failed the rollout, ConfigError where the prompts
        differ, where the question does not fit, and where the episode has several sequences.
        """
        row = infer_request.data_dict[NAME]
        environment = shared_environment(row["params"], row["model"], row["retrieval_url"])
        question = Question.model_validate_json(row["question"])
        episode = environment.open(question)
        if episode.outcome is not None:
            raise ConfigError(
                f"{question.id} leaves no room for an answer in agent.context_tokens."
            )

        opening = list(episode.request["messages"])
        response: Any = None
        while episode.outcome is None:
            request = copy.deepcopy(infer_request)
            request.messages = [*opening]
            if answer_ids := episode.row.completion_ids:
                request.messages.append({"role": "assistant", "content": answer_ids})
            config = _turn_config(request_config, episode)
            response = await self.infer_engine.infer_async(request, config, **options)
            await _take_turn(environment, episode, response)

        return _output(episode, episode.outcome, opening, response)


def _turn_config(request_config: Any, episode: Episode) -> Any:
    """Return ms-swift's settings of one turn: the agent's limit and stop strings, and all details."""
    config = copy.deepcopy(request_config)
    config.max_tokens = episode.max_tokens
    config.stop = [*(config.stop or []), *episode.request.get("stop", [])]
    config.return_details = True
    config.logprobs = True
    return config


async def _take_turn(environment: BlockingEnvironment, episode: Episode, response: Any) -> None:
    rendered_ids = response.prompt_token_ids
    if rendered_ids is not None and list(rendered_ids) != episode.prompt_ids:
        raise ConfigError(
            "ms-swift's template renders another prompt than the model's own chat template, so "
            "that the model would be trained on prompts that it is not served: choose --template "
            "and --agent_template that are the model's (for Qwen3 without thoughts: "
            "qwen3_nothinking, hermes)."
        )

    choice = response.choices[0]
    details = (choice.logprobs or {}).get("content") or []
    logprobs = [entry["logprob"] for entry in details] or None
    await environment.begin(episode.step(list(choice.token_ids), logprobs=logprobs))


def _output(
    episode: Episode, outcome: Outcome, opening: Sequence[Mapping[str, Any]], response: Any
) -> Any:
    if outcome.is_server_failure:
        trajectory = outcome.trajectory
        raise EndpointError(
            f"{trajectory.stop_reason} in a rollout of {trajectory.question_id}: "
            f"{trajectory.error}; check the retrieval server."
        )

    row = episode.row
    mask = row.completion_mask
    pairs = zip(row.completion_logprobs or (), mask, strict=bool(row.logprobs))
    sampled_logprobs = [logprob for logprob, is_sampled in pairs if is_sampled]
    turns = [message for message in episode.messages if message.role == "assistant"]
    text = "".join(message.content for message in episode.messages[len(opening) :])
    infos = {"num_turns": len(turns), "total_reward": outcome.reward, **outcome.figures()}
    return protocol.RolloutOutput(
        response=response,
        messages=[*opening, {"role": "assistant", "content": text}],
        response_token_ids=[row.completion_ids],
        response_loss_mask=[mask],
        rollout_logprobs=[sampled_logprobs] if sampled_logprobs else [],
        rollout_infos=infos,
    )


class SearchReward(rewards.ORM):
    """The reward that :class:`SearchScheduler` left in ``rollout_infos``."""

    def __call__(
        self, completions: Sequence[str], rollout_infos: Sequence[Mapping[str, Any]], **_: Any
    ) -> list[float]:
        """Return a reward for each completion."""
        rewards: list[float] = []
        for _completion, infos in zip(completions, rollout_infos, strict=True):
            rewards.append(float(infos["total_reward"]))

        return rewards


multi_turn.multi_turns[NAME] = SearchScheduler
rewards.orms[NAME] = SearchReward


class PlayedQuestion(Record):
    """What plays a question, and the question as JSON."""

    params: str
    model: str
    retrieval_url: str
    question: str


class SwiftRolloutRow(Record):
    """A row of ms-swift's: the opening messages with the tools, and the column that its scheduler reads."""

    messages: list[dict[str, str]]
    tools: list[dict[str, Any]]
    deepsearch: PlayedQuestion


def swift_rows(
    questions: Path, *, params: Path, model: Path, retrieval_url: str
) -> Iterator[SwiftRolloutRow]:
    """Yield a row for each question of a file; raise ConfigError where one does not fit the context."""
    known = list(read_jsonl(questions, Question))
    params = params.absolute()
    model = model.absolute()
    environment = shared_environment(str(params), str(model), retrieval_url).environment
    tools = [RETRIEVE_TOOL] if environment.config.protocol == FUNCTION_CALLING else []

    for question, messages in zip(known, environment.prompts(known), strict=True):
        played = PlayedQuestion(
            params=str(params),
            model=str(model),
            retrieval_url=retrieval_url,
            question=question.model_dump_json(),
        )
        yield SwiftRolloutRow(messages=messages, tools=tools, deepsearch=played)


def main() -> None:
    """Write the rows, or end with one paragraph that says what is wrong."""
    parser = argparse.ArgumentParser(description="Write questions as rows of ms-swift's GRPO.")
    parser.add_argument("--params", type=Path, required=True, help="its sections agent and rl")
    parser.add_argument("--questions", type=Path, required=True, help="jsonl")
    parser.add_argument("--model", type=Path, required=True, help="folder of the start model")
    parser.add_argument("--retrieval_url", required=True, help="a running retrieval server")
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    arguments = parser.parse_args()
    rows = swift_rows(
        arguments.questions,
        params=arguments.params,
        model=arguments.model,
        retrieval_url=arguments.retrieval_url,
    )
    with exit_on_error():
        require_another_file(arguments.output, [arguments.questions])
        write_jsonl(arguments.output, rows)


if __name__ == "__main__":
    main()
