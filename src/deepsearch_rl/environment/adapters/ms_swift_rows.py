r"""Questions as rows of ms-swift's GRPO.

    python -m deepsearch_rl.environment.adapters.ms_swift_rows --params params.yaml --questions train.jsonl \
        --model models/tiny/sft --retrieval_url http://127.0.0.1:8099 --output rows.jsonl

A row says by which params, tokenizer and retrieval server its question is played. Paths are
absolute, since the servers of ms-swift may run elsewhere.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from deepsearch_rl.chat.agent_config import FUNCTION_CALLING
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.core.files import read_jsonl, write_jsonl
from deepsearch_rl.core.outputs import require_another_file
from deepsearch_rl.core.records import Question, Record
from deepsearch_rl.environment.adapters.command_errors import exit_on_error
from deepsearch_rl.environment.blocking import shared_environment

COLUMN: Final = "deepsearch"


class PlayedQuestion(Record):
    """What plays a question, and the question as JSON."""

    params: str
    model: str
    retrieval_url: str
    question: str


class SwiftRolloutRow(Record):
    """A row of ms-swift's: the opening messages with the tools, and the column that its scheduler reads."""

    messages: list[dict[str, str]]
    tools: list[dict[str, Any]]
    deepsearch: PlayedQuestion


def swift_rows(
    questions: Path, *, params: Path, model: Path, retrieval_url: str
) -> Iterator[SwiftRolloutRow]:
    """Yield a row for each question of a file; raise ConfigError where one does not fit the context."""
    known = list(read_jsonl(questions, Question))
    params = params.absolute()
    model = model.absolute()
    environment = shared_environment(str(params), str(model), retrieval_url).environment
    tools = [RETRIEVE_TOOL] if environment.config.protocol == FUNCTION_CALLING else []

    for question, messages in zip(known, environment.prompts(known), strict=True):
        played = PlayedQuestion(
            params=str(params),
            model=str(model),
            retrieval_url=retrieval_url,
            question=question.model_dump_json(),
        )
        yield SwiftRolloutRow(messages=messages, tools=tools, deepsearch=played)


def main() -> None:
    """Write the rows, or end with one paragraph that says what is wrong."""
    parser = argparse.ArgumentParser(description="Write questions as rows of ms-swift's GRPO.")
    parser.add_argument("--params", type=Path, required=True, help="its sections agent and rl")
    parser.add_argument("--questions", type=Path, required=True, help="jsonl")
    parser.add_argument("--model", type=Path, required=True, help="folder of the start model")
    parser.add_argument("--retrieval_url", required=True, help="a running retrieval server")
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    arguments = parser.parse_args()
    rows = swift_rows(
        arguments.questions,
        params=arguments.params,
        model=arguments.model,
        retrieval_url=arguments.retrieval_url,
    )
    with exit_on_error():
        require_another_file(arguments.output, [arguments.questions])
        write_jsonl(arguments.output, rows)


if __name__ == "__main__":
    main()
