"""TRL's training as a command, with `GRPOConfig`'s own options (:mod:`deepsearch_rl.environment.adapters.trl`)."""

import importlib
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.records import Question
from deepsearch_rl.environment.adapters.command_errors import exit_on_error
from deepsearch_rl.environment.adapters.trl import TrlSearch
from deepsearch_rl.environment.blocking import BlockingEnvironment
from deepsearch_rl.environment.search_environment import open_environment


@dataclass
class SearchArguments:
    """What the agent is trained from; everything else is GRPOConfig's."""

    params: Path = field(metadata={"help": "params.yaml: its sections agent and rl"})
    questions: Path = field(metadata={"help": "jsonl of questions"})
    retrieval_url: str = field(metadata={"help": "a running retrieval server"})
    model: Path = field(metadata={"help": "folder of the start model"})


def main() -> None:
    """Train a model folder and write what TRL writes below ``--output_dir``, or end with what is wrong."""
    transformers: Any = importlib.import_module("transformers")
    trl: Any = importlib.import_module("trl")
    parser = transformers.HfArgumentParser([SearchArguments, trl.GRPOConfig])
    arguments, training = parser.parse_args_into_dataclasses()
    model = arguments.model
    url = arguments.retrieval_url
    connect = partial(open_environment, arguments.params, model=model, retrieval_url=url)

    with exit_on_error(), ExitStack() as opened:
        questions = list(read_jsonl(arguments.questions, Question))
        environment = opened.enter_context(BlockingEnvironment(connect))
        search = TrlSearch(environment, questions)
        trainer = trl.GRPOTrainer(
            model=str(model),
            args=training,
            train_dataset=search.dataset(),
            reward_funcs=search.reward,
            rollout_func=search.roll_out,
            processing_class=transformers.AutoTokenizer.from_pretrained(model),
        )
        trainer.train()
        trainer.save_model()


if __name__ == "__main__":
    main()
