"""Runs in a process that has veRL: the scripts through its agent loop worker, and its reward function.

python -m tests.environment.verl_child scripts FOLDER URL     # writes a JSON line for each script
python -m tests.environment.verl_child reward FOLDER          # and one of the reward of veRL's own
worker
"""

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from deepsearch_rl.agent.search_tool import open_session, search_over_mcp
from deepsearch_rl.chat.chat_format import load_chat_format
from deepsearch_rl.environment.adapters.verl import write_agent, write_rows
from deepsearch_rl.environment.episode import RewardSetting
from deepsearch_rl.environment.search_environment import SearchEnvironment
from deepsearch_rl.train.rl.rl_config import AGENT_LOOP
from deepsearch_rl.train.rl.tokens import end_ids
from tests.environment.params_of import write_params
from tests.environment.scripted import (
    QUESTION,
    REWARDS,
    SCRIPTS,
    Script,
    policy_text,
)

hydra: Any = importlib.import_module("hydra")
loops: Any = importlib.import_module("verl.experimental.agent_loop.agent_loop")
replica: Any = importlib.import_module("verl.workers.rollout.replica")


def verl_config(*overrides: str) -> Any:
    """Return veRL's own configuration with overrides."""
    trainer = Path(str(importlib.import_module("verl").__file__)).parent / "trainer" / "config"
    with hydra.initialize_config_dir(config_dir=str(trainer), version_base=None):
        return hydra.compose(config_name="ppo_trainer", overrides=list(overrides))


class ScriptedServer:
    """Stands in for veRL's rollout servers: the next turn of a script for each prompt."""

    def __init__(self, turns: Iterator[list[int]]) -> None:
        self.turns = turns
        self.prompts: list[list[int]] = []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        assert request_id
        self.prompts.append(prompt_ids)
        ids = next(self.turns)[: sampling_params["max_tokens"]]
        versions = {"min_global_steps": 3, "max_global_steps": 3}
        logprobs = [-1.0] * len(ids)
        return replica.TokenOutput(token_ids=ids, log_probs=logprobs, extra_fields=versions)


class RecordingWorker(loops.AgentLoopWorker):
    """veRL's worker, which keeps what an agent loop returned in place of padding it."""

    async def _agent_loop_postprocess(self, output: Any, *_: Any, **__: Any) -> Any:
        return output if isinstance(output, list) else [output]


def run_script(script: Script, folder: Path, url: str, work: Path) -> dict[str, Any]:
    """Return what veRL's worker would hand to its trainer for a script."""
    chat_format = load_chat_format(folder)
    params = write_params(work / "params.yaml", script)
    write_agent(work / "agent.yaml", params, model=folder, retrieval_url=url)
    row = asyncio.run(written_row(script, folder, url, work / "rows.parquet"))
    server = ScriptedServer(iter(script.turn_ids(chat_format)))
    rollout = "actor_rollout_ref.rollout"
    config = verl_config(
        f"actor_rollout_ref.model.path={folder}",
        f"{rollout}.name=vllm",
        f"{rollout}.agent.agent_loop_config_path={work / 'agent.yaml'}",
        f"data.max_prompt_length={script.config.context_tokens}",
        f"data.max_response_length={script.config.context_tokens}",
    )

    async def run() -> list[Any]:
        worker = RecordingWorker(config, server)
        trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}
        return await worker._run_agent_loop(
            {}, trajectory, agent_name=AGENT_LOOP, trace=False, **row
        )

    outputs = asyncio.run(run())
    figures = [output.as_dict() for output in outputs]
    rows: list[tuple[list[int], list[int]]] = []
    for figure in figures:
        prompt = figure["prompts"].tolist()
        mask = [0] * len(prompt) + figure["response_mask"].tolist()
        rows.append((prompt + figure["responses"].tolist(), mask))

    return {
        "name": script.name,
        "prompts": server.prompts,
        "rows": rows,
        "prompt_tokens": [len(figure["prompts"]) for figure in figures],
        "logprobs": [sum(figure["rollout_log_probs"].tolist()) for figure in figures],
        "reward": figures[-1]["rm_scores"].sum().item(),
        "rewarded_at": int(figures[-1]["rm_scores"].ne(0).sum()),
        "figures": figures[-1]["extra_fields"]["reward_extra_info"],
        "version": figures[-1]["extra_fields"]["max_global_steps"],
        "num_turns": figures[-1]["num_turns"],
    }


async def written_row(script: Script, folder: Path, url: str, path: Path) -> dict[str, Any]:
    """Return the question as veRL's data set reads it from the rows that were written."""
    chat_format = load_chat_format(folder)
    async with open_session(url, 20) as session:
        search = partial(search_over_mcp, session, 0.001)
        rewards = RewardSetting(REWARDS, policy_text(chat_format))
        environment = SearchEnvironment(
            script.config, chat_format, end_ids(folder, chat_format), search, rewards
        )
        write_rows(path, [QUESTION], environment, "scripted")

    dataset: Any = importlib.import_module("verl.utils.dataset.rl_dataset")
    config = verl_config("actor_rollout_ref.rollout.name=vllm").data
    return dict(dataset.RLHFDataset(str(path), chat_format.tokenizer, config)[0])


def run_scripts(folder: Path, url: str) -> None:
    """Write a line for each script; one that veRL does not get an output for has its error."""
    for number, script in enumerate(SCRIPTS):
        work = folder / "verl" / str(number)
        work.mkdir(parents=True, exist_ok=True)
        try:
            line = run_script(script, folder, url, work)
        except Exception as error:  # noqa: BLE001 - the test compares it
            line = {"name": script.name, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(line))


if __name__ == "__main__":
    what, folder_, *rest = sys.argv[1:]
    run_scripts(Path(folder_), rest[0])
