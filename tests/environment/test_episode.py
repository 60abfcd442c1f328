"""What an episode does with turns that no model server would return, and what it refuses."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.agent.search_tool import ShownPassage
from deepsearch_rl.chat.chat_format import ChatFormat, load_chat_format
from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.records import Question, StopReason
from deepsearch_rl.environment.blocking import BlockingEnvironment
from deepsearch_rl.environment.episode import Episode, RewardSetting
from deepsearch_rl.environment.search_environment import SearchEnvironment, open_environment
from deepsearch_rl.train.rl.tokens import end_ids
from tests.environment.scripted import (
    ANSWER,
    END,
    QUESTION,
    REWARDS,
    Script,
    policy_text,
    retrieval,
)
from tests.vllm_parsers import hermes_call

PARAMS = Path(__file__).resolve().parents[2] / "params.yaml"
Opener = Callable[..., Episode]


@pytest.fixture
def open_episode(chat_format: ChatFormat, policy_folder: Path) -> Opener:
    """Opens an episode with some of the agent's settings replaced; each search finds its query."""

    async def search(query: str, _question: Question) -> tuple[ShownPassage, ...]:
        return (ShownPassage(chunk=f"T\n{query}", chunk_id="c"),)

    def make(**settings: Any) -> Episode:
        script = Script("", (), settings, tags=settings.get("protocol") == "search_tags")
        rewards = RewardSetting(REWARDS, policy_text(chat_format))
        ends = end_ids(policy_folder, chat_format)
        return SearchEnvironment(script.config, chat_format, ends, search, rewards).open(QUESTION)

    return make


def step(episode: Episode, *turns: Any, **options: Any) -> Episode:
    async def run() -> None:
        for turn in turns:
            await episode.step(turn, **options)

    asyncio.run(run())
    return episode


def test_turns_may_be_given_as_text(open_episode: Opener, chat_format: ChatFormat) -> None:
    as_text = step(open_episode(), hermes_call("one"), ANSWER)
    encode = partial(chat_format.tokenizer.encode, add_special_tokens=False)
    as_ids = step(open_episode(), encode(hermes_call("one") + END), encode(ANSWER + END))
    assert as_text.row == as_ids.row
    assert as_text.outcome == as_ids.outcome


def test_a_call_in_other_json_stays_as_the_model_wrote_it(
    open_episode: Opener, chat_format: ChatFormat
) -> None:
    dense = '<tool_call>\n{"name":"retrieve","arguments":{"query":"one"}}\n</tool_call>'
    episode = step(open_episode(), dense)
    text = str(chat_format.tokenizer.decode(episode.row.ids))
    assert (
        f"<|im_start|>assistant\n{dense}<|im_end|>\n<|im_start|>user\n<tool_response>\n[1] T\none"
        in text
    )
    assert text.endswith("<|im_start|>assistant\n")
    assert len(episode.rows) == 1


def test_a_call_in_tags_is_a_text_because_no_tool_is_offered(open_episode: Opener) -> None:
    turn = f"{hermes_call('one')} <search>two</search>"
    episode = step(open_episode(protocol="search_tags"), turn)
    assert episode.messages[1].content == turn
    assert [message.tool_calls[0].parsed for message in episode.messages[1:2]] == [{"query": "two"}]


def test_tokens_behind_the_end_of_a_turn_do_not_count(
    open_episode: Opener, chat_format: ChatFormat
) -> None:
    encode = partial(chat_format.tokenizer.encode, add_special_tokens=False)
    padded = encode(ANSWER + END + END + "padding")
    episode = step(open_episode(), padded, logprobs=[-0.5] * len(padded))
    row = episode.row
    assert row.completion_ids == encode(ANSWER + END)
    assert row.completion_logprobs == [-0.5] * len(row.completion_ids)
    assert row.completion_mask == [1] * len(row.completion_ids)


def test_log_probabilities_of_observations_are_zero(
    open_episode: Opener, chat_format: ChatFormat
) -> None:
    ids = chat_format.tokenizer.encode(hermes_call("one") + END, add_special_tokens=False)
    episode = step(open_episode(), ids, logprobs=[-1.0] * len(ids))
    logprobs = episode.row.logprobs
    assert logprobs is not None
    assert [value == -1.0 for value in logprobs] == [bool(value) for value in episode.row.mask]
    with pytest.raises(ValueError, match="none of them"):
        step(episode, ids)


def test_a_dropped_thought_begins_a_new_sequence_which_a_trainer_of_one_refuses(
    open_episode: Opener,
) -> None:
    episode = step(
        open_episode(history_reasoning=False),
        f"<think>\nWho?\n</think>\n\n{hermes_call('one')}",
        ANSWER,
    )
    assert [sum(row.mask) > 0 for row in episode.rows] == [True, True]
    with pytest.raises(ConfigError, match="history_reasoning"):
        _ = episode.row


def test_the_limit_of_tokens_is_the_agents_whatever_the_sampler_wrote(open_episode: Opener) -> None:
    episode = open_episode(max_tokens=24)
    step(episode, "and so on " * 40)
    assert episode.outcome is not None
    assert episode.outcome.stop_reason is StopReason.TOKEN_BUDGET
    assert sum(episode.row.mask) == 24


def test_an_episode_whose_question_does_not_fit_ends_before_its_first_turn(
    open_episode: Opener,
) -> None:
    episode = open_episode(context_tokens=100)
    assert episode.outcome is not None
    assert episode.outcome.stop_reason is StopReason.TOKEN_BUDGET
    assert (episode.max_tokens, episode.rows) == (0, ())


def test_an_episode_takes_no_turn_after_its_end(open_episode: Opener) -> None:
    episode = step(open_episode(), ANSWER)
    with pytest.raises(ValueError, match="over"):
        step(episode, ANSWER)


def test_an_abandoned_episode_is_a_failed_rollout(open_episode: Opener) -> None:
    episode = step(open_episode(), hermes_call("one"))
    outcome = episode.abandon(StopReason.MODEL_ERROR, "the sampler stopped")
    assert (outcome.reward, outcome.is_server_failure) == (0.0, True)
    assert outcome.trajectory.error == "the sampler stopped"
    assert len(outcome.trajectory.retrievals) == 1


@pytest.mark.parametrize("logprobs", [[-1.0], []])
def test_log_probabilities_of_other_tokens_are_refused(
    open_episode: Opener, logprobs: list[float]
) -> None:
    with pytest.raises(ValueError, match="one for each"):
        step(open_episode(), [1, 2, 3], logprobs=logprobs)


def test_a_batch_steps_without_an_event_loop_as_params_say(policy_folder: Path) -> None:
    with (
        retrieval() as url,
        BlockingEnvironment(
            partial(open_environment, PARAMS, model=policy_folder, retrieval_url=url)
        ) as environment,
    ):
        questions = [replace_id(QUESTION, number) for number in range(3)]
        episodes = [environment.open(question) for question in questions]
        tokenizer = load_chat_format(policy_folder).tokenizer
        turns = [tokenizer.encode(hermes_call(f"query {number}") + END) for number in range(3)]
        steps = environment.step(episodes, turns)
    assert [step.observations[0].content for step in steps] == [
        f"[1] T\nquery {number}" for number in range(3)
    ]


def test_an_environment_opens_in_any_working_directory(
    policy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_folder.absolute()
    monkeypatch.chdir(tmp_path)
    with (
        retrieval() as url,
        BlockingEnvironment(
            partial(open_environment, PARAMS, model=policy, retrieval_url=url)
        ) as environment,
    ):
        assert environment.open(QUESTION).outcome is None


def replace_id(question: Question, number: int) -> Question:
    return question.model_copy(update={"id": f"q{number}"})


def test_a_retrieval_server_that_does_not_answer_is_an_error_at_the_start(
    policy_folder: Path,
) -> None:
    connect = partial(
        open_environment, PARAMS, model=policy_folder, retrieval_url="http://127.0.0.1:9"
    )
    with pytest.raises(EndpointError, match="does not answer"), BlockingEnvironment(connect):
        pass


def test_no_question_at_all_is_said_so(chat_format: ChatFormat, policy_folder: Path) -> None:
    async def search(_query: str, _question: Question) -> tuple[ShownPassage, ...]:
        return ()

    rewards = RewardSetting(REWARDS, policy_text(chat_format))
    ends = end_ids(policy_folder, chat_format)
    environment = SearchEnvironment(Script("", ()).config, chat_format, ends, search, rewards)
    with pytest.raises(ConfigError, match="there is no question"):
        environment.prompts([])
