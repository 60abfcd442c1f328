"""Runs in a process that has TRL: the scripts through its GRPOTrainer, or two steps of training.

python -m tests.environment.trl_child scripts FOLDER URL     # writes a JSON line for each script
python -m tests.environment.trl_child train FOLDER URL OUT   # trains the model of the folder and
writes its log
"""

import contextlib
import importlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from deepsearch_rl.agent.search_tool import open_session, search_over_mcp
from deepsearch_rl.chat.chat_format import load_chat_format
from deepsearch_rl.environment.adapters.trl import TrlSearch
from deepsearch_rl.environment.blocking import BlockingEnvironment
from deepsearch_rl.environment.episode import RewardSetting
from deepsearch_rl.environment.search_environment import SearchEnvironment
from deepsearch_rl.train.rl.tokens import end_ids
from tests.environment.scripted import NEVER_FITS, QUESTION, REWARDS, SCRIPTS, Script, policy_text

trl: Any = importlib.import_module("trl")


@contextlib.asynccontextmanager
async def scripted_environment(
    script: Script, folder: Path, url: str
) -> AsyncIterator[SearchEnvironment]:
    chat_format = load_chat_format(folder)
    async with open_session(url, 20) as session:
        rewards = RewardSetting(REWARDS, policy_text(chat_format))
        search = partial(search_over_mcp, session, 0.001)
        yield SearchEnvironment(
            script.config, chat_format, end_ids(folder, chat_format), search, rewards
        )


@contextlib.contextmanager
def trainer_of(
    script: Script, folder: Path, url: str, output: Path, **options: Any
) -> Iterator[Any]:
    chat_format = load_chat_format(folder)
    with BlockingEnvironment(partial(scripted_environment, script, folder, url)) as environment:
        search = TrlSearch(environment, [QUESTION])
        settings = {
            "per_device_train_batch_size": 2,
            "num_generations": 2,
            "report_to": [],
            "use_cpu": True,
        }
        settings |= {
            "bf16": False,
            "save_strategy": "no",
            "logging_steps": 1,
            "temperature": 1.0,
            "seed": 1,
        }
        settings |= {"max_completion_length": script.config.max_tokens, "output_dir": str(output)}
        yield trl.GRPOTrainer(
            model=str(folder),
            args=trl.GRPOConfig(**(settings | options)),
            train_dataset=search.dataset(),
            reward_funcs=search.reward,
            rollout_func=search.roll_out,
            processing_class=chat_format.tokenizer,
        )


def run_scripts(folder: Path, url: str) -> None:
    """Let TRL generate and score two rollouts of each script, and write what it would train on."""
    chat_format = load_chat_format(folder)
    for script in SCRIPTS:
        if script.name == NEVER_FITS:
            continue
        with trainer_of(script, folder, url, folder / "trl") as trainer:
            turns = iter(script.turn_ids(chat_format))
            prompts: list[list[int]] = []

            def write(
                prompt_ids: list[list[int]], *_: Any, prompts: Any = prompts, turns: Any = turns
            ) -> Any:
                prompts.append(prompt_ids[0])
                return [next(turns)] * len(prompt_ids), None

            trainer._generate_single_turn = write
            inputs = [dict(trainer.train_dataset[0]) for _ in range(2)]
            try:
                batch = trainer._generate_and_score_completions(inputs)
            except Exception as error:  # noqa: BLE001 - the test compares it
                print(
                    json.dumps({"name": script.name, "error": f"{type(error).__name__}: {error}"})
                )
                continue
            length = int(batch["completion_mask"][0].sum())
            line = {
                "name": script.name,
                "prompts": prompts,
                "prompt_ids": batch["prompt_ids"][0].tolist(),
                "completion_ids": batch["completion_ids"][0][:length].tolist(),
                "mask": batch["tool_mask"][0][:length].tolist(),
                "reward": inputs[0]["search_reward"],
                "stop_reason": inputs[0]["search_trajectory"].stop_reason,
                "observations": [
                    message.content
                    for message in inputs[0]["search_trajectory"].messages
                    if message.role == "tool"
                ],
            }
            print(json.dumps(line))


def train(folder: Path, url: str, output: Path) -> None:
    """Train two steps and write what changed."""
    script = Script("trained", (), {"max_tokens": 24, "answer_tokens": 8, "max_turns": 3})
    options = {
        "max_steps": 2,
        "learning_rate": 1e-3,
        "num_generations": 4,
        "per_device_train_batch_size": 4,
    }
    with trainer_of(script, folder, url, output, **options) as trainer:
        before = {
            name: weight.detach().clone() for name, weight in trainer.model.named_parameters()
        }

        def by_length(completion_ids: list[list[int]], **_: Any) -> list[float]:
            """An untrained model earns nothing from search; a reward that differs lets gradients flow."""
            return [float(sum(ids)) for ids in completion_ids]

        trainer.reward_funcs = [*trainer.reward_funcs, by_length]
        trainer.reward_func_names = [*trainer.reward_func_names, "by_length"]
        trainer.reward_weights = torch.tensor([1.0, 1.0])
        trainer.reward_processing_classes = [*trainer.reward_processing_classes, None]
        trainer.train()
        changed = [
            name
            for name, weight in trainer.model.named_parameters()
            if not weight.equal(before[name])
        ]
        log = [line for line in trainer.state.log_history if "grad_norm" in line]
        line = {
            "log": log,
            "grad_norms": [entry["grad_norm"] for entry in log],
            "changed": len(changed),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    what, folder_, url_, *rest = sys.argv[1:]
    if what == "tools":
        run_scripts(Path(folder_), url_)
    else:
        train(Path(folder_), url_, Path(rest[0]))
