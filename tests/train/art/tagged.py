"""A start model that knows one rollout in Search-R1's tags by heart, and its rollouts in the environment."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.search_tool import open_session, search_over_mcp
from deepsearch_rl.chat.chat_format import load_chat_format
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.environment.episode import Episode, RewardSetting
from deepsearch_rl.environment.search_environment import SearchEnvironment
from deepsearch_rl.train.rl.rl_trainer import RlTask
from deepsearch_rl.train.rl.tokens import end_ids
from tests.environment.scripted import QUESTION, REWARDS, policy_text
from tests.policies import CONTEXT_TOKENS

PROMPT = "Write <search> query </search> or <answer> answer </answer>."
TURNS = ("<search> Silent Harbor</search>", "<answer> Mary Moss</answer>")


def tags_agent(profile: Profile, folder: Path) -> AgentConfig:
    """Return a profile's agent in tags, with a short prompt that is written to ``folder``."""
    prompt = folder / "tags.txt"
    prompt.write_text(PROMPT)
    values = profile.value("agent") | {"protocol": "search_tags", "prompt": str(prompt)}
    limits = {"max_tokens": 32, "answer_tokens": 16, "context_tokens": CONTEXT_TOKENS}
    return AgentConfig.model_validate(
        {**values, **limits, "history_reasoning": False, "max_searches": 2, "max_turns": 3}
    )


def play(
    folder: Path, agent: AgentConfig, retrieval_url: str, turns: Sequence[Sequence[int]]
) -> Episode:
    """Return the environment's episode in which the model writes these turns."""
    chat_format = load_chat_format(folder)

    async def run() -> Episode:
        async with open_session(retrieval_url, 20) as session:
            environment = SearchEnvironment(
                agent,
                chat_format,
                end_ids(folder, chat_format),
                partial(search_over_mcp, session, 0.001),
                RewardSetting(REWARDS, policy_text(chat_format)),
            )
            episode = environment.open(QUESTION)
            for turn in turns:
                await episode.step(turn)
            return episode

    return asyncio.run(run())


def learn_by_heart(
    untrained: Path, agent: AgentConfig, retrieval_url: str, folder: Path, steps: int = 60
) -> None:
    """Write a model to ``folder`` that has learnt one rollout."""
    chat_format = load_chat_format(untrained)
    encode = partial(chat_format.tokenizer.encode, add_special_tokens=False)
    row = play(untrained, agent, retrieval_url, [encode(turn) for turn in TURNS]).row

    model: Any = AutoModelForCausalLM.from_pretrained(untrained, dtype=torch.float32)
    ids = torch.tensor([row.ids])
    labels = torch.where(torch.tensor([row.mask]).bool(), ids, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    model.save_pretrained(folder)
    chat_format.tokenizer.save_pretrained(folder)


def tags_task(start: Path, agent: AgentConfig, retrieval_url: str, scratch: Path) -> RlTask:
    """Return the task of one question."""
    return RlTask(
        start=start,
        start_name="base",
        weights="digest",
        train=[QUESTION],
        dev=[QUESTION],
        agent=agent,
        retrieval_url=retrieval_url,
        scratch=scratch,
        seed=0,
    )
