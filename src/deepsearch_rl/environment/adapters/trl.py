r"""TRL: `GRPOTrainer` samples the agent's turns, and the environment does everything around them.

    python -m deepsearch_rl.environment.adapters.trl --params params.yaml --questions train.jsonl \
        --retrieval_url http://127.0.0.1:8099 --model models/tiny/sft --output_dir out [GRPOConfig's own options]

:class:`TrlSearch` has the three parts that a `GRPOTrainer` takes: ``dataset`` (``train_dataset``),
``roll_out`` (``rollout_func``, which takes token ids and a mask) and ``reward`` (``reward_funcs``).
TRL's tools and environments render a schema of their own: a model would read other prompts than
those that it was trained on.

``max_completion_length`` of GRPOConfig is a turn's limit here, and has to be ``agent.max_tokens``.
"""

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.version import Version

from deepsearch_rl.core.errors import ConfigError, UnavailableError
from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.records import Question, StopReason
from deepsearch_rl.environment.adapters.commands import exit_on_error
from deepsearch_rl.environment.blocking import BlockingEnvironment
from deepsearch_rl.environment.episode import Episode
from deepsearch_rl.environment.search_environment import open_environment

OLDEST = Version("1.16.0")
Prompt = Sequence[Mapping[str, str]]


class TrlSearch:
    """The questions of a training run, and how TRL rolls them out."""

    def __init__(self, environment: BlockingEnvironment, questions: Sequence[Question]) -> None:
        """Check TRL and the questions.

        Raises:
            UnavailableError: the installed TRL is older than the one that this was written for.
            ConfigError: a question does not fit the context, or two with one text have other answers.
        """
        if Version(installed := version("trl")) < OLDEST:
            raise UnavailableError(
                f"TRL {installed} is installed and calls rollout_func in another way: install {OLDEST} "
                f"in an environment of its own (`pip install trl=={OLDEST}`; docs/trainers.md, TRL)."
            )
        self._environment = environment
        self._prompts: list[Prompt] = []
        self._questions: dict[str, Question] = {}
        self._samples: Counter[str] = Counter()

        # TRL hands a prompt back as its text alone: questions with one text are one question
        prompts = environment.environment.prompts(questions)
        for question, prompt in zip(questions, prompts, strict=True):
            if _key(prompt) not in self._questions:
                self._prompts.append(prompt)
            known = self._questions.setdefault(_key(prompt), question)

            if known.golden_answers != question.golden_answers:
                same = f"the questions {known.id} and {question.id} have one text and different golden answers"
                raise ConfigError(
                    f"{same}: leave one of them out, because TRL knows a prompt by its text alone."
                )

    def dataset(self) -> Any:
        """Return the prompts as a `datasets.Dataset`, one row for each distinct question."""
        datasets: Any = importlib.import_module("datasets")
        return datasets.Dataset.from_list([{"prompt": prompt} for prompt in self._prompts])

    def roll_out(self, prompts: Sequence[Prompt], trainer: Any) -> dict[str, Any]:
        """Return an episode for each prompt, with the reward that :meth:`reward` gives; TRL's ``rollout_func``."""
        self._check(trainer.args)
        episodes = [self._open(prompt) for prompt in prompts]
        running = list(episodes)

        while running:
            prompt_ids = [episode.prompt_ids for episode in running]
            turns, logprobs = trainer._generate_single_turn(prompt_ids, None, {}, 1)
            self._environment.step(running, turns, logprobs)
            running = [episode for episode in running if episode.outcome is None]

        # Column by column, as TRL's rollout function returns them
        columns: dict[str, list[Any]] = {}
        for episode in episodes:
            for name, value in _row(episode).items():
                columns.setdefault(name, []).append(value)

        has_logprobs = columns["logprobs"][0] is not None
        return {**columns, "logprobs": columns["logprobs"] if has_logprobs else None}

    def reward(self, *, search_reward: list[float | None], **columns: Any) -> list[float | None]:
        """Return the rewards of a batch; None, which TRL leaves out, where a search failed; for ``reward_funcs``."""
        log = columns["log_metric"]
        parts: list[dict[str, float]] = columns["search_parts"]
        for name in parts[0]:
            log(f"search/{name}", sum(part[name] for part in parts) / len(parts))
        stops = Counter(trajectory.stop_reason for trajectory in columns["search_trajectory"])
        # All of them each time: TRL averages a figure over the steps that have it
        for reason in StopReason:
            log(f"search/{reason}", stops[reason] / len(parts))
        return search_reward

    def _open(self, prompt: Prompt) -> Episode:
        question = self._questions[_key(prompt)]
        # TRL repeats a prompt for each sample of its group
        self._samples[question.id] += 1
        return self._environment.open(question, self._samples[question.id] - 1)

    def _check(self, args: Any) -> None:
        """Raise ConfigError where the trainer's options do not fit the agent's settings."""
        config = self._environment.environment.config
        if args.max_completion_length != config.max_tokens:
            limit = (
                f"max_completion_length is {args.max_completion_length} and limits one turn here"
            )
            raise ConfigError(f"{limit}: set it to agent.max_tokens, which is {config.max_tokens}.")

        if args.mask_truncated_completions and config.protocol == "search_tags":
            problem = "mask_truncated_completions leaves out every rollout in tags, which have no end token"
            raise ConfigError(f"{problem}: set it to false.")


def _row(episode: Episode) -> dict[str, Any]:
    """Return what TRL keeps of an ended episode; names with ``search_`` come back as arguments of the reward."""
    outcome = episode.outcome
    assert outcome is not None
    row = episode.row
    return {
        "prompt_ids": row.prompt_ids,
        "completion_ids": row.completion_ids,
        "env_mask": row.completion_mask,
        "logprobs": row.completion_logprobs,
        # TRL leaves out what has no reward
        "search_reward": None if outcome.is_server_failure else outcome.reward,
        "search_parts": outcome.parts,
        "search_trajectory": outcome.trajectory,
    }


def _key(prompt: Prompt) -> str:
    return "\n".join(message["content"] for message in prompt)


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
