"""Runs in a process that has RLinf: its own loader, data set, search client and reward on files written for it.

python tests/environment/rlinf_child.py FOLDER     # writes one JSON line
"""

import asyncio
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

hydra: Any = importlib.import_module("hydra")
config_module: Any = importlib.import_module("rlinf.config")
datasets: Any = importlib.import_module("rlinf.data.datasets")
tools: Any = importlib.import_module("rlinf.agents.searchr1.search_tool_worker")
rewards: Any = importlib.import_module("rlinf.algorithms.rewards.searchr1")
parsers: Any = importlib.import_module("rlinf.agents.tool_call.parsers")
transformers: Any = importlib.import_module("transformers")


def loaded_config(folder: Path) -> Any:
    """Return the written config as RLinf's program loads and validates it."""
    # Importing it registers RLinf's resolvers, `subtract` and `not`
    importlib.import_module("rlinf.utils.utils")
    with hydra.initialize_config_dir(config_dir=str(folder), version_base="1.1"):
        config = hydra.compose(config_name="searchr1")
    return config_module.validate_cfg(config)


def main(folder: Path) -> None:
    """Write what RLinf reads from the files, and what its client gets from the server."""
    config = loaded_config(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(config.rollout.model.model_path)
    train, _ = datasets.create_rl_dataset(config, tokenizer)
    items = [train[index] for index in range(len(train))]

    query = {"queries": ["capital of Austria"], "topk": config.tools.search.topk}
    client = tools.AsyncSearchClient(config)
    found = asyncio.run(client.query_async(query | {"return_scores": False}))

    turn = "<think> I need it. </think> <search> capital of Austria </search>"
    _, calls = asyncio.run(parsers.Searchr1QwenToolCallParser()(turn))
    line = {
        "prompts": [item.prompt.tolist()[-item.length :] for item in items],
        "answers": [item.answer for item in items],
        "lengths": [item.length for item in items],
        "server": config.tools.search.server_addr,
        "max_new_tokens": config.algorithm.sampling_params.max_new_tokens,
        "global_batch_size": config.actor.global_batch_size,
        "layers": config.actor.model.num_layers,
        "model_type": config.rollout.model.model_type,
        "found": found,
        "calls": [call.arguments for call in calls],
        "scores": [
            rewards.compute_score(f"<answer> {text} </answer>", items[0].answer, do_print=False)
            for text in ("the Mary Moss", "Mary")
        ],
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
