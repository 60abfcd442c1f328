r"""Questions as the files that RLinf's Search-R1 example trains on.

    python -m deepsearch_rl.environment.adapters.rlinf_rows --params params.yaml --model models/base \
        --questions train.jsonl dev.jsonl --retrieval_url http://127.0.0.1:8000 --rlinf RLinf \
        --megatron_model Qwen2.5-3B --output_dir rows

<output_dir>/<questions>.jsonl     a row for each question: {"prompt": text, "solutions": [answers]}
<output_dir>/searchr1.yaml         the config (:mod:`deepsearch_rl.environment.adapters.rlinf_config`)

The example renders no chat template, so a row's prompt is the instruction with the question in the
start model's own template, up to where the model writes.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import atomic_file, read_jsonl, write_jsonl
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.records import Question, Record
from deepsearch_rl.environment.adapters.command_errors import exit_on_error
from deepsearch_rl.environment.adapters.rlinf_config import RlinfRun, config_facts, rlinf_config
from deepsearch_rl.environment.adapters.row_files import row_files
from deepsearch_rl.environment.search_environment import SearchEnvironment, open_environment
from deepsearch_rl.server.config import RetrievalConfig
from deepsearch_rl.train.rl.rl_config import RlConfig


class RlinfRow(Record):
    """A row under the names that the config gives its keys."""

    prompt: str
    solutions: tuple[str, ...]


def rlinf_rows(
    questions: Sequence[Question], environment: SearchEnvironment
) -> tuple[list[RlinfRow], int]:
    """Return a row for each question and the tokens of the longest prompt.

    Raise ConfigError where questions leave no room for an answer, and where the tokens of a
    prompt's text are not those that the agent's rollouts begin with.
    """
    tokenizer = environment.chat_format.tokenizer
    rows: list[RlinfRow] = []
    longest = 0

    for question, messages in zip(questions, environment.prompts(questions), strict=True):
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert isinstance(text, str)

        prompt_ids = environment.open(question).prompt_ids
        if tokenizer.encode(text) != prompt_ids:
            raise ConfigError(
                f"question {question.id}: the tokenizer reads the rendered prompt in other tokens than the agent's "
                "rollouts begin with, as one does that adds a token of its own to every text; RLinf's example cannot "
                "train such a model."
            )

        longest = max(longest, len(prompt_ids))
        rows.append(RlinfRow(prompt=text, solutions=question.golden_answers))

    return rows, longest


async def _write(arguments: argparse.Namespace) -> None:
    model: Path = arguments.model
    output: Path = arguments.output_dir
    paths = row_files(arguments.questions, output, ".jsonl")
    profile = load_profile(arguments.params)
    output.mkdir(parents=True, exist_ok=True)

    longest = 0
    async with open_environment(
        arguments.params, model=model, retrieval_url=arguments.retrieval_url
    ) as environment:
        for source, path in zip(arguments.questions, paths, strict=True):
            rows, tokens = rlinf_rows(list(read_jsonl(source, Question)), environment)
            write_jsonl(path, rows)
            longest = max(longest, tokens)

    config_path = model / "config.json"
    values = json.loads(config_path.read_text(encoding="utf-8"))
    model_type, layers = config_facts(values, config_path)
    run = RlinfRun(
        rows=paths,
        max_prompt_tokens=longest,
        model=model,
        model_type=model_type,
        layers=layers,
        megatron_model=arguments.megatron_model,
        top_k=profile.section("retrieval", RetrievalConfig).top_k,
        retrieval_url=arguments.retrieval_url,
        checkout=arguments.rlinf,
    )

    config = rlinf_config(environment.config, profile.section("rl", RlConfig), run)
    with atomic_file(output / "searchr1.yaml") as partial:
        partial.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def main() -> None:
    """Write the files, or end with one paragraph that says what is wrong."""
    parser = argparse.ArgumentParser(description="Write rows and config for RLinf's Search-R1.")
    parser.add_argument("--params", type=Path, required=True, help="sections agent, rl, retrieval")
    parser.add_argument(
        "--questions",
        type=Path,
        nargs="+",
        required=True,
        help="jsonl; the first is trained on, others are validated on",
    )
    parser.add_argument("--model", type=Path, required=True, help="folder of the start model")
    parser.add_argument("--retrieval_url", required=True, help="a running retrieval server")
    parser.add_argument(
        "--rlinf", type=Path, required=True, help="checkout of github.com/RLinf/RLinf"
    )
    parser.add_argument(
        "--megatron_model", required=True, help="name of the model in RLinf's converter to Megatron"
    )
    parser.add_argument("--output_dir", type=Path, required=True, help="where the files go")
    with exit_on_error():
        asyncio.run(_write(parser.parse_args()))


if __name__ == "__main__":
    main()
