"""Runs in a process that has verifiers: the scripts through its environment, against the real model server.

python -m tests.environment.verifiers_child FOLDER URL     # writes a JSON line for each script, and one of all
"""

import asyncio
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any, cast

from deepsearch_rl.chat.chat_format import load_chat_format
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.processes import LOOPBACK
from deepsearch_rl.environment import search_environment
from deepsearch_rl.environment.adapters.verifiers import RESULT, load_environment
from deepsearch_rl.serve.chat_server import chat_app, serve_in_thread
from deepsearch_rl.serve.engine import Engine
from tests.environment.params_of import write_params
from tests.environment.scripted import QUESTION, SCRIPTS, Script, ScriptedEngine

vf: Any = importlib.import_module("verifiers.v1")
clients: Any = importlib.import_module("verifiers.v1.clients")


async def roll_out(environment: Any, port: int) -> Any:
    """Return the trace of the only task."""
    (task,) = list(environment.taskset)
    client = clients.EvalClientConfig(
        base_url=f"http://{LOOPBACK}:{port}/v1", api_key_var="SCRIPTED_KEY"
    )
    sampling = vf.SamplingConfig(temperature=1.0)
    context = clients.ModelContext(model="policy", client=client, sampling=sampling)

    async def completed(_: Any) -> None:
        return None

    async with environment.serving():
        (slot,) = environment.slots(task)
        episode = await environment.run_slot(slot, context, None, completed)
    (trace,) = episode.traces
    return trace


def run_script(script: Script, folder: Path, url: str, work: Path) -> dict[str, Any]:
    """Return what verifiers recorded of a script."""
    chat_format = load_chat_format(folder)
    params = write_params(work / "params.yaml", script)
    write_jsonl(work / "questions.jsonl", [QUESTION])
    environment = load_environment(
        params=params, questions=work / "questions.jsonl", model=folder, retrieval_url=url
    )
    end_id = cast(int, chat_format.tokenizer.eos_token_id)
    engine = ScriptedEngine(script.turn_ids(chat_format), end_id, script.config.context_tokens)

    with serve_in_thread(chat_app(cast(Engine, engine), chat_format, lambda: "policy")) as port:
        trace = asyncio.run(roll_out(environment, port))

    line = {"name": script.name, "prompts": engine.prompts, "written": engine.written}
    if RESULT not in trace.info:
        return line | {"error": " ".join(error.message for error in trace.errors)}
    rewards = {name: reward.score for name, reward in trace.rewards.items()}
    trajectory = trace.info[RESULT]["trajectory"]
    return line | {
        "rewards": rewards,
        "metrics": trace.metrics,
        "trajectory": trajectory,
        "calls": len(trace.calls),
    }


def main(folder: Path, url: str) -> None:
    os.environ["SCRIPTED_KEY"] = "none"
    loads: list[Path] = []

    def load_and_count(model: Path) -> Any:
        loads.append(model)
        return load_chat_format(model)

    search_environment.load_chat_format = load_and_count
    for number, script in enumerate(SCRIPTS):
        work = folder / "verifiers" / str(number)
        work.mkdir(parents=True, exist_ok=True)
        print(json.dumps(run_script(script, folder, url, work)), flush=True)

    print(json.dumps({"name": "all", "tokenizers_loaded": len(loads)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
