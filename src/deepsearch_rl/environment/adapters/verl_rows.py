"""Questions as the files that veRL's trainer reads (:mod:`deepsearch_rl.environment.adapters.verl`).

<output_dir>/rows.parquet     one row for each question, with the messages that open it
<output_dir>/agent.yaml       the agent loop, for actor_rollout_ref.rollout.agent.agent_loop_config_path
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from deepsearch_rl.core.files import atomic_file, read_jsonl
from deepsearch_rl.core.records import Question
from deepsearch_rl.environment.adapters.command_errors import exit_on_error
from deepsearch_rl.environment.adapters.row_files import row_files
from deepsearch_rl.environment.adapters.verl import QUESTION, SearchAgentLoop
from deepsearch_rl.environment.search_environment import SearchEnvironment, open_environment
from deepsearch_rl.train.rl.rl_config import AGENT_LOOP


def write_rows(
    path: Path, questions: Sequence[Question], environment: SearchEnvironment, data_source: str
) -> None:
    """Write a Parquet file; raise ConfigError where questions leave no room for an answer."""
    prompts = environment.prompts(questions)
    rows: list[dict[str, Any]] = []

    for index, (question, prompt) in enumerate(zip(questions, prompts, strict=True)):
        target = {"target": list(question.golden_answers)}
        rows.append(
            {
                "data_source": data_source,
                "prompt": prompt,
                "ability": "fact-reasoning",
                "reward_model": {"style": "rule", "ground_truth": target},
                "extra_info": {"index": index, QUESTION: question.model_dump_json()},
            }
        )

    with atomic_file(path) as partial:
        pd.DataFrame(rows).to_parquet(partial, index=False)


def write_agent(path: Path, params: Path, *, model: Path, retrieval_url: str) -> None:
    """Write the file that names the agent loop; all workers must be able to read the paths in it."""
    entry = {
        "name": AGENT_LOOP,
        "_target_": f"{SearchAgentLoop.__module__}.{SearchAgentLoop.__qualname__}",
        "params": str(params.absolute()),
        "model": str(model.absolute()),
        "retrieval_url": retrieval_url,
    }
    with atomic_file(path) as partial:
        partial.write_text(yaml.safe_dump([entry], sort_keys=False), encoding="utf-8")


async def _write(arguments: argparse.Namespace) -> None:
    where = {"model": arguments.model, "retrieval_url": arguments.retrieval_url}
    output: Path = arguments.output_dir
    files = row_files(arguments.questions, output, ".parquet")
    output.mkdir(parents=True, exist_ok=True)

    async with open_environment(arguments.params, **where) as environment:
        for path, rows in zip(arguments.questions, files, strict=True):
            questions = list(read_jsonl(path, Question))
            write_rows(rows, questions, environment, arguments.data_source)
    write_agent(output / "agent.yaml", arguments.params, **where)


def main() -> None:
    """Write the files, or end with one paragraph that says what is wrong."""
    parser = argparse.ArgumentParser(description="Write questions and agent for veRL's trainer.")
    parser.add_argument("--params", type=Path, required=True, help="its sections agent and rl")
    parser.add_argument("--questions", type=Path, nargs="+", required=True, help="jsonl")
    parser.add_argument("--model", type=Path, required=True, help="folder of the start model")
    parser.add_argument("--retrieval_url", required=True, help="a running retrieval server")
    parser.add_argument("--data_source", default="deepsearch", help="names the set in veRL's log")
    parser.add_argument("--output_dir", type=Path, required=True, help="where the files go")
    with exit_on_error():
        asyncio.run(_write(parser.parse_args()))


if __name__ == "__main__":
    main()
