"""The environment against the agent's own rollout: the same scripts, token by token."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from deepsearch_rl.agent.search_tool import open_session, search_over_mcp
from deepsearch_rl.chat.chat_format import ChatFormat
from deepsearch_rl.core.records import Message
from deepsearch_rl.environment.episode import Episode, RewardSetting
from deepsearch_rl.environment.search_environment import SearchEnvironment
from deepsearch_rl.train.rewards import reward_parts
from deepsearch_rl.train.rl.tokens import end_ids
from tests.environment.scripted import (
    QUESTION,
    REWARDS,
    SCRIPTS,
    Reference,
    Script,
    own_rollout,
    policy_text,
)


def environment_episode(
    script: Script,
    chat_format: ChatFormat,
    retrieval_url: str,
    folder: Path,
) -> tuple[Episode, list[list[int]], list[Message]]:
    """Return an episode after a script, the prompts on its way, and the messages that the steps returned."""

    async def run() -> tuple[Episode, list[list[int]], list[Message]]:
        async with open_session(retrieval_url, 20) as session:
            environment = SearchEnvironment(
                script.config,
                chat_format,
                end_ids(folder, chat_format),
                partial(search_over_mcp, session, 0.001),
                RewardSetting(REWARDS, policy_text(chat_format)),
            )
            episode = environment.open(QUESTION)
            prompts: list[list[int]] = []
            observed: list[Message] = []
            for turn in script.turn_ids(chat_format):
                if episode.outcome is not None:
                    break
                prompts.append(episode.prompt_ids)
                step = await episode.step(turn)
                observed += step.observations
                assert step.done == (episode.outcome is not None)
            return episode, prompts, observed

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_an_episode_is_the_agents_own_rollout_token_by_token(
    script: Script, chat_format: ChatFormat, retrieval_url: str, policy_folder: Path
) -> None:
    reference = own_rollout(script, chat_format, retrieval_url)
    episode, prompts, observed = environment_episode(
        script, chat_format, retrieval_url, policy_folder
    )
    outcome = episode.outcome
    assert outcome is not None
    ours = outcome.trajectory
    theirs = reference.trajectory

    assert ours.stop_reason == theirs.stop_reason == script.stop_reason
    assert ours.answer == theirs.answer
    assert ours.messages == theirs.messages
    assert ours.retrievals == theirs.retrievals
    read = [message.content for message in theirs.messages if message.role == "tool"]
    assert [message.content for message in observed] == read[: len(observed)]
    parts = reward_parts(REWARDS, theirs, QUESTION, policy_text(chat_format))
    assert (outcome.parts, outcome.reward) == (parts, sum(parts.values()))

    if script.tags:
        assert_same_text(episode, prompts, reference, chat_format)
        return
    assert ours.usage == theirs.usage
    assert prompts == reference.prompts
    assert [(row.ids, row.mask) for row in episode.rows] == reference.rows()


def assert_same_text(
    episode: Episode, prompts: list[list[int]], reference: Reference, chat_format: ChatFormat
) -> None:
    """A text that grows: the server reads it as tokens anew, and may join two at a seam, which were sampled apart."""
    decode = chat_format.tokenizer.decode
    assert [decode(prompt) for prompt in prompts] == [
        decode(prompt) for prompt in reference.prompts
    ]
    assert prompts[0] == reference.prompts[0]
    (row,) = episode.rows
    sampled = [token for token, is_sampled in zip(row.ids, row.mask, strict=True) if is_sampled]
    ends = chat_format.tokenizer.eos_token_id
    written = [token for turn in reference.written for token in turn if token != ends]
    assert sampled == written
