r"""Questions as the files that RLinf's Search-R1 example trains on.

    python -m deepsearch_rl.environment.adapters.rlinf --params params.yaml --model models/base \
        --questions train.jsonl dev.jsonl --retrieval_url http://127.0.0.1:8000 --rlinf RLinf \
        --megatron_model Qwen2.5-3B --output_dir rows

<output_dir>/<questions>.jsonl     a row for each question: {"prompt": text, "solutions": [answers]}
<output_dir>/searchr1.yaml         what params decide, over RLinf's own ``train_qwen2.5.yaml``

Hydra finds the config in the checkout that trains:

    python RLINF/examples/agent/searchr1/train.py --config-path OUTPUT --config-name searchr1

The example renders no chat template, so a row's prompt is the instruction with the question in the
start model's own template, up to where the model writes. It has one agent loop, one reward and one
training backend: :func:`rlinf_config` refuses what it would not train as params say.
"""

import argparse
import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from deepsearch_rl.agent.config import SEARCH_TAGS, AgentConfig
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import atomic_file, read_jsonl, write_jsonl
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.records import Question, Record
from deepsearch_rl.core.redaction import mask_users
from deepsearch_rl.environment.adapters.commands import exit_on_error, row_files
from deepsearch_rl.environment.search_environment import SearchEnvironment, open_environment
from deepsearch_rl.server.config import RetrievalConfig
from deepsearch_rl.train.rl.rl_config import RlConfig

EXAMPLE: Final = Path("examples/agent/searchr1/config")
EXAMPLE_CONFIG: Final = "train_qwen2.5"
# RLinf's names of architectures, by the name in a model's config.json
MODEL_TYPES: Final = {"qwen2": "qwen2.5", "qwen3": "qwen3", "qwen3_moe": "qwen3_moe"}
# RLinf's names of ours; None is the algorithm's own, which for grpo is by sequence
AGGREGATIONS: Final[Mapping[str | None, str]] = {
    None: "seq-mean-token-mean",
    "sequence": "seq-mean-token-mean",
    "token": "token-mean",
}


@dataclass(frozen=True, slots=True)
class RlinfRun:
    """What a run has beside params: its rows, the longest prompt in tokens, model, server, checkout.

    ``model_type`` and ``layers`` are those of the model's ``config.json``; ``megatron_model`` is
    the name that RLinf's converter to Megatron has for it.
    """

    rows: Sequence[Path]
    max_prompt_tokens: int
    model: Path
    model_type: str
    layers: int
    megatron_model: str
    top_k: int
    retrieval_url: str
    checkout: Path


def rlinf_config(agent: AgentConfig, rl: RlConfig, run: RlinfRun) -> dict[str, Any]:
    """Return the values of the file.

    Raise ConfigError, which names each setting that RLinf's example cannot honour, and
    ArtifactError where the checkout has no such example.
    """
    example = run.checkout.absolute() / EXAMPLE
    if not (example / f"{EXAMPLE_CONFIG}.yaml").is_file():
        raise ArtifactError(
            f"{run.checkout} has no {EXAMPLE / EXAMPLE_CONFIG}.yaml: name the folder of a checkout of "
            "github.com/RLinf/RLinf, release 0.3 or newer."
        )

    problems = list(_not_honoured(agent, rl, run))
    if problems:
        raise ConfigError("RLinf's Search-R1 example cannot honour: " + "; ".join(problems) + ".")

    return {
        "defaults": [EXAMPLE_CONFIG, {"override hydra/job_logging": "stdout"}, "_self_"],
        "hydra": {
            "run": {"dir": "."},
            "output_subdir": None,
            "searchpath": [f"file://{example}"],
        },
        **_values(agent, rl, run),
    }


def _values(agent: AgentConfig, rl: RlConfig, run: RlinfRun) -> dict[str, Any]:
    """Return the sections that params decide, under RLinf's names."""
    rows = [str(path.absolute()) for path in run.rows]
    loss = rl.loss
    return {
        "runner": {"seq_length": agent.context_tokens},
        "data": {
            # No row is longer, so that none is left out and none is cut
            "max_prompt_length": run.max_prompt_tokens,
            "rollout_batch_size": rl.groups_per_step,
            "prompt_key": "prompt",
            "answer_key": "solutions",
            "apply_chat_template": False,
            "train_data_paths": rows[:1],
            "val_data_paths": rows[1:] or None,
        },
        "algorithm": {
            "group_size": rl.group_size,
            "n_minibatches": rl.minibatches,
            "loss_agg_func": AGGREGATIONS[loss.aggregation],
            "kl_beta": loss.kl_loss,
            "kl_penalty_type": loss.kl_estimate,
            "ratio_clip_eps": loss.epsilon,
            "clip_ratio_low": loss.epsilon,
            "clip_ratio_high": loss.epsilon_high,
            "clip_ratio_c": loss.dual_clip,
            "entropy_bonus": loss.entropy_bonus,
            "sampling_params": {"temperature": rl.temperature},
        },
        "agentloop": {"max_turns": agent.max_turns},
        "tools": {"search": {"server_addr": urlsplit(run.retrieval_url).netloc, "topk": run.top_k}},
        "rollout": {
            "model": {
                "model_path": str(run.model.absolute()),
                "model_type": MODEL_TYPES[run.model_type],
            }
        },
        "actor": {
            "model": {"recompute_num_layers": run.layers},
            "optim": {
                "lr": rl.learning_rate,
                "adam_beta2": rl.optimizer.beta2,
                "weight_decay": rl.optimizer.weight_decay,
                "clip_grad": rl.optimizer.max_grad_norm,
            },
            "lr_sched": {"max_lr": rl.learning_rate},
            "megatron": {"ckpt_convertor": {"model": run.megatron_model}},
        },
    }


def _not_honoured(agent: AgentConfig, rl: RlConfig, run: RlinfRun) -> Iterator[str]:
    """Yield each setting that the example would not train as it stands, and why or what to set."""
    if agent.protocol != SEARCH_TAGS:
        yield f"agent.protocol: {agent.protocol}, since its agent loop reads tags: set {SEARCH_TAGS}"
    if rl.rewards != {"exact_match": 1.0}:
        yield "rl.rewards, since its reward is exact match: set {exact_match: 1.0}"
    if rl.loss.algorithm != "grpo":
        yield f"rl.loss.algorithm: {rl.loss.algorithm}, since it trains grpo"
    if rl.loss.aggregation not in AGGREGATIONS:
        yield f"rl.loss.aggregation: {rl.loss.aggregation}, since it has token and sequence"
    if not rl.loss.sample_std or rl.loss.unit_advantages:
        yield "rl.loss.sample_std: false or unit_advantages: true"
    if rl.loss.kl_penalty or rl.loss.truncated_importance_sampling is not None:
        yield "rl.loss.kl_penalty above 0 or truncated_importance_sampling"
    if rl.minibatches is None or rl.groups_per_step * rl.group_size % rl.minibatches:
        yield "rl.minibatches, which has to divide the rollouts of a step"
    if rl.lora is not None:
        yield "rl.lora, since it trains all weights: set null"
    if run.model_type not in MODEL_TYPES:
        yield f"the start model of type {run.model_type}, since it has {', '.join(MODEL_TYPES)}"
    if run.max_prompt_tokens >= agent.context_tokens:
        yield f"a prompt of {run.max_prompt_tokens} tokens in agent.context_tokens"
    if not _is_host_and_port(run.retrieval_url):
        yield (
            f"the address {mask_users(run.retrieval_url)}, since it asks http://HOST:PORT/retrieve, without a token"
        )


def _is_host_and_port(url: str) -> bool:
    """Return whether an address says no more than RLinf's tool takes."""
    parts = urlsplit(url)
    says_more = parts.path.strip("/") or parts.query or "@" in parts.netloc
    return parts.scheme == "http" and not says_more


def config_facts(values: Mapping[str, Any], path: Path) -> tuple[str, int]:
    """Return architecture and number of layers of a ``config.json``; raise ArtifactError without them."""
    model_type = values.get("model_type")
    layers = values.get("num_hidden_layers")
    if not isinstance(model_type, str) or not isinstance(layers, int):
        raise ArtifactError(f"{path} has no model_type or no num_hidden_layers.")
    return model_type, layers


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
