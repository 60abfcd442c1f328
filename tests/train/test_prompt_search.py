"""The real GEPA library over the real agent and retrieval server; policy and reflection model follow a script."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.agent.collect import RolloutSetting
from deepsearch_rl.chat.prompts import MADE_PROMPT
from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.files import AppendLog, read_json, read_jsonl, write_json, write_jsonl
from deepsearch_rl.core.records import Chunk, ChunkMetadata, Question
from deepsearch_rl.search.build import build_index
from deepsearch_rl.serve.launch import ServingConfig
from deepsearch_rl.train import prompt_search
from deepsearch_rl.train.curves import CurveLine, recorded_curve
from deepsearch_rl.train.prompt_search import (
    CANDIDATES,
    MANIFEST,
    OptimizePromptConfig,
    PromptTask,
    optimize_prompt,
)
from deepsearch_rl.train.reflector import Reflection, Reflector
from tests.evaluate.chat import KEY, ChatEndpoint, says, searches, serve_chat
from tests.search_servers import serve_index_here
from tests.settings import AGENT, INDEX, RETRIEVAL

TOWNS = {
    f"{first} {last}": f"{last}ham"
    for first in ("Ada", "Ben", "Cy")
    for last in ("Holt", "Ide", "Jones", "Kerr")
}
GOOD = "Search first. Copy the town from the passage."
PROPOSALS = (
    "```\n\n```",
    "I cannot help with that.",
    "```\nSearch first.\n```",
    f"Better:\n```\n{GOOD}\n```",
)


def town_in(text: str) -> str:
    return next(town for person, town in TOWNS.items() if f"{person} was born" in text)


Reply = Callable[[dict[str, Any]], dict[str, Any] | int]


def script() -> Reply:
    """A policy that does what its prompt says, searching and copying, and a reflection model beside it."""
    proposals = iter([*PROPOSALS, *["nonsense"] * 100])

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        messages = body["messages"]
        if "tools" not in body:
            assert "earns 0.00 of 1.00; correct is" in messages[0]["content"], (
                "the feedback reaches the reflection"
            )
            return says(next(proposals))
        prompt = messages[0]["content"].lower()
        if messages[-1]["role"] == "tool":
            return says(
                f"<answer> {town_in(messages[-1]['content']) if 'copy' in prompt else 'a town'}</answer>"
            )
        return (
            searches(messages[-1]["content"])
            if "search" in prompt
            else says("<answer> unknown</answer>")
        )

    return reply


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PromptTask:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROMPT_TEST_KEY", KEY)
    monkeypatch.setattr(prompt_search, "serve_index", serve_index_here)
    texts = {
        f"d{number}": f"{person} was born in {town}."
        for number, (person, town) in enumerate(TOWNS.items())
    }
    chunks = [
        Chunk(
            id=f"{id_}-0",
            contents=text,
            metadata=ChunkMetadata(doc_id=id_, doc_chunks=1, doc_chunk_id=0),
        )
        for id_, text in texts.items()
    ]
    write_jsonl(tmp_path / "chunks.jsonl", chunks)
    build_index(tmp_path / "chunks.jsonl", tmp_path / "index", INDEX, seed=0)
    questions = [
        Question(id=f"q{number:02}", question=f"Where was {person} born?", golden_answers=(town,))
        for number, (person, town) in enumerate(TOWNS.items())
    ]
    write_jsonl(tmp_path / "train.jsonl", questions[:6])
    write_jsonl(tmp_path / "dev.jsonl", questions[6:])
    (tmp_path / "start.txt").write_text("Answer.")
    setting = RolloutSetting(
        questions=tmp_path,
        index=tmp_path / "index",
        chunks=tmp_path / "chunks.jsonl",
        agent=AGENT.model_copy(update={"prompt": "./start.txt"}),
        retrieval=RETRIEVAL,
        seed=0,
    )
    return PromptTask(
        name="api", folder=tmp_path / "model", setting=setting, serving=ServingConfig(backend="cpu")
    )


def config(
    chat: ChatEndpoint, task: PromptTask, rollouts: int = 60, **changes: object
) -> OptimizePromptConfig:
    endpoint = {
        "base_url": chat.endpoint.base_url,
        "model": "scripted",
        "api_key_variable": "PROMPT_TEST_KEY",
    }
    write_json(task.folder / "endpoint.json", endpoint)
    values: dict[str, object] = {
        "models": {"api": str(task.folder)},
        "dataset": "towns",
        "questions": {"train": 6, "dev": 6},
        "rollouts": rollouts,
        "minibatch": 2,
        "temperature": 0.0,
        "rewards": {"f1": 1.0},
        "max_characters": 500,
        "reflection": {
            "endpoint": str(task.folder),
            "temperature": 1.0,
            "max_tokens": 100,
            "timeout_s": 20,
        },
    }
    return OptimizePromptConfig.model_validate(values | changes)


@pytest.mark.slow
def test_the_prompt_that_makes_the_policy_answer_is_found_among_nonsense(
    task: PromptTask, tmp_path: Path
) -> None:
    with serve_chat(script()) as chat:
        candidates = optimize_prompt(task, config(chat, task), tmp_path / "work", tmp_path / "out")
    assert candidates[0].prompt == "Answer."
    assert candidates[0].dev_reward == 0.0
    assert (tmp_path / "out" / MADE_PROMPT).read_text() == f"{GOOD}\n"
    manifest = read_json(tmp_path / "out" / MANIFEST)
    assert (manifest["start_dev_reward"], manifest["best_dev_reward"]) == (0.0, 1.0)
    best = read_json(tmp_path / "out" / CANDIDATES)[manifest["best"]]
    assert best["best_at"] == [f"q{number:02}" for number in range(6, 12)]
    assert manifest["rollouts"] >= 60
    assert KEY not in "".join(path.read_text() for path in (tmp_path / "out").iterdir())


@pytest.mark.slow
def test_a_run_that_was_cut_off_goes_on_to_the_same_files_and_asks_nothing_twice(
    task: PromptTask, tmp_path: Path
) -> None:
    with serve_chat(script()) as chat:
        optimize_prompt(task, config(chat, task), tmp_path / "work", tmp_path / "undisturbed")
        undisturbed = len(chat.requests)
    reply, failed = script(), 0

    def fails_at_times(body: dict[str, Any]) -> dict[str, Any] | int:
        nonlocal failed
        # Longer than calls are retried
        is_down = 30 < len(chat.requests) < 55 or 80 < len(chat.requests) < 105
        failed += is_down
        return 500 if is_down else reply(body)

    runs = 0
    with serve_chat(fails_at_times) as chat:
        while not (tmp_path / "resumed").exists():
            runs += 1
            with contextlib.suppress(EndpointError):
                optimize_prompt(task, config(chat, task), tmp_path / "work", tmp_path / "resumed")
        repeated = len(chat.requests) - failed - undisturbed
    assert runs > 1
    agent = task.setting.agent
    assert repeated <= runs * agent.concurrency * agent.max_turns, (
        "turns of rollouts that were cut off"
    )
    for name in (MADE_PROMPT, CANDIDATES, MANIFEST):
        assert (tmp_path / "resumed" / name).read_bytes() == (
            tmp_path / "undisturbed" / name
        ).read_bytes()


def test_a_reflection_model_that_fails_ends_the_search_and_its_answers_are_kept(
    task: PromptTask, tmp_path: Path
) -> None:
    reply = script()
    answered = 0
    is_down = True

    def refuses_the_second_question(body: dict[str, Any]) -> dict[str, Any] | int:
        nonlocal answered
        if "tools" in body:
            return reply(body)
        answered += 1
        return 401 if is_down and answered > 1 else reply(body)

    with serve_chat(refuses_the_second_question) as chat:
        settings = config(chat, task, rollouts=30)
        with pytest.raises(EndpointError, match="the reflection model failed"):
            optimize_prompt(task, settings, tmp_path / "work", tmp_path / "out")
        assert answered == 2
        assert not (tmp_path / "out").exists()

        is_down = False
        optimize_prompt(task, settings, tmp_path / "work", tmp_path / "out")
        manifest = read_json(tmp_path / "out" / MANIFEST)
        assert answered - 1 == manifest["reflections"], "the first answer is read from the log"


@pytest.mark.parametrize(
    ("protocol", "start", "proposed"),
    [
        ("function_calling", "Answer.", "Write <search> query </search>."),
        ("search_tags", "Write <search> query </search>.", "Answer."),
    ],
)
def test_a_proposed_prompt_of_the_other_protocol_is_not_tried(
    task: PromptTask, tmp_path: Path, protocol: str, start: str, proposed: str
) -> None:
    Path("start.txt").write_text(start)
    agent = task.setting.agent.model_copy(update={"protocol": protocol})
    task = replace(task, setting=task.setting.model_copy(update={"agent": agent}))

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        is_reflection = "tools" not in body and "stop" not in body
        return says(f"```\n{proposed}\n```" if is_reflection else "<answer> no town</answer>")

    with serve_chat(reply) as chat:
        settings = config(chat, task, rollouts=12)
        candidates = optimize_prompt(task, settings, tmp_path / "work", tmp_path / "out")
        assert not any(proposed in str(body["messages"][0]) for body in agent_requests(chat))
    assert [candidate.prompt for candidate in candidates] == [start]


def agent_requests(chat: ChatEndpoint) -> list[dict[str, Any]]:
    return [body for body in chat.requests if "tools" in body or "stop" in body]


def test_a_penalty_does_not_make_a_wrong_answer_perfect(task: PromptTask, tmp_path: Path) -> None:
    with serve_chat(script()) as chat:
        settings = config(chat, task, rollouts=12, rewards={"f1": 1.0, "justified_refusal": -1.0})
        assert settings.full_reward == 1.0
        optimize_prompt(task, settings, tmp_path / "work", tmp_path / "out")
    assert read_json(tmp_path / "out" / MANIFEST)["reflections"] > 0


def test_a_prompt_that_was_not_tried_is_no_better_than_one_whose_rewards_are_negative(
    task: PromptTask, tmp_path: Path
) -> None:
    def reply(body: dict[str, Any]) -> dict[str, Any]:
        return says("<answer> a town</answer>" if "tools" in body else f"```\n{'x' * 501}\n```")

    with serve_chat(reply) as chat, recorded_curve(tmp_path / "curve.jsonl"):
        settings = config(chat, task, rollouts=12, rewards={"f1": 1.0, "answer_format": -0.5})
        candidates = optimize_prompt(task, settings, tmp_path / "work", tmp_path / "out")
    assert read_json(tmp_path / "out" / MANIFEST)["reflections"] > 0
    assert [(each.prompt, each.dev_reward) for each in candidates] == [("Answer.", -0.5)]
    first = next(read_jsonl(tmp_path / "curve.jsonl", CurveLine))
    assert first.metrics["best_dev_reward"] == -0.5


def test_a_start_that_is_longer_than_a_prompt_may_be_is_refused(
    task: PromptTask, tmp_path: Path
) -> None:
    with serve_chat(script()) as chat:
        settings = config(chat, task, max_characters=6)
        with pytest.raises(ConfigError, match=r"has 7 characters.*max_characters is 6"):
            optimize_prompt(task, settings, tmp_path / "work", tmp_path / "out")
        assert chat.requests == []


def test_a_thought_of_the_reflection_model_is_no_part_of_its_answer(tmp_path: Path) -> None:
    answer = f"```\n{GOOD}\n```"
    with opened_reflector(f"<think>```none```</think>{answer}", tmp_path) as reflector:
        assert reflector("Which prompt is better?") == answer


def test_an_answer_of_the_reflection_model_that_its_limit_cut_off_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened_reflector("<think>Which one ", tmp_path, "length") as reflector:
        assert reflector("Which prompt is better?") == ""
    assert "optimize_prompt.reflection.max_tokens" in caplog.text


@contextlib.contextmanager
def opened_reflector(answer: str, folder: Path, finish_reason: str = "stop") -> Iterator[Reflector]:
    with serve_chat(lambda _: says(answer)) as chat, AppendLog(folder / "log.jsonl") as log:
        chat.finish_reason = finish_reason
        values = {"endpoint": "models/api", "temperature": 1.0, "max_tokens": 9, "timeout_s": 20}
        yield Reflector(Reflection.model_validate(values), chat.endpoint, log)
