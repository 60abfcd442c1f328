"""ms-swift: a scheduler that plays the episodes of its GRPO, and the reward that it left.

``swift rollout`` and ``swift rlhf`` get a file with the line
``import deepsearch_rl.environment.adapters.ms_swift`` as ``--external_plugins``, and the name
``deepsearch`` as ``--multi_turn_scheduler`` and ``--reward_funcs``. The rows are those of
:mod:`deepsearch_rl.environment.adapters.ms_swift_rows`.

ms-swift renders messages by templates of its own. The turns before the one that is sampled are
handed over as token ids, and the prompt that its engine read is compared with the agent's: another
one is an error that names the template. What is trained on are the episode's tokens with its mask.
"""

import copy
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.records import Question
from deepsearch_rl.environment.adapters.ms_swift_rows import COLUMN
from deepsearch_rl.environment.adapters.verl_reward import reward_figures
from deepsearch_rl.environment.blocking import BlockingEnvironment, shared_environment
from deepsearch_rl.environment.episode import Episode, Outcome

multi_turn: Any = importlib.import_module("swift.rollout.multi_turn")
rewards: Any = importlib.import_module("swift.rewards.orm")
protocol: Any = importlib.import_module("swift.infer_engine.protocol")
# The scheduler's and the reward's name in ms-swift, and the column of a row that names the episode
NAME = COLUMN


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
    infos = {"num_turns": len(turns), "total_reward": outcome.reward, **reward_figures(outcome)}
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
