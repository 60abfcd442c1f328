"""Runs in a process that has RLinf: its own loader, data set, search client and reward on files written for it.

python tests/environment/rlinf_child.py FOLDER     # writes one JSON line
"""

import asyncio
import importlib
import importlib.util
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

hydra: Any = importlib.import_module("hydra")
config_module: Any = importlib.import_module("rlinf.config")
datasets: Any = importlib.import_module("rlinf.data.datasets.reasoning")
tools: Any = importlib.import_module("rlinf.agents.searchr1.search_tool_worker")
parsers: Any = importlib.import_module("rlinf.agents.tool_call.parsers")
transformers: Any = importlib.import_module("transformers")


def reward_module() -> Any:
    """Return the example's rewards, without their package, which imports parsers of formulas."""
    rlinf: Any = importlib.import_module("rlinf")
    path = Path(rlinf.__file__).parent / "algorithms" / "rewards" / "searchr1" / "__init__.py"
    spec = importlib.util.spec_from_file_location("searchr1_rewards", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loaded_config(folder: Path) -> Any:
    """Return the written config as RLinf's program loads and validates it."""
    # The loader asks Megatron's worker for one constant, and Megatron is not installed here
    manager = types.ModuleType("megatron_model_manager")
    manager.__dict__["HAVE_FUSCO"] = False
    sys.modules["rlinf.hybrid_engines.megatron.megatron_model_manager"] = manager

    with hydra.initialize_config_dir(config_dir=str(folder), version_base="1.1"):
        config = hydra.compose(config_name="searchr1")
    return config_module.validate_cfg(config)


def main(folder: Path) -> None:
    """Write what RLinf reads from the files, and what its client gets from the server."""
    config = loaded_config(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(config.rollout.model.model_path)
    train, _ = datasets.create_reasoning_datasets(config, tokenizer)
    items = [train[index] for index in range(len(train))]

    query = {"queries": ["capital of Austria"], "topk": config.tools.search.topk}
    client = tools.AsyncSearchClient(config)
    found = asyncio.run(client.query_async(query | {"return_scores": False}))

    rewards = reward_module()
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
