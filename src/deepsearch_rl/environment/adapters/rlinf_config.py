"""Section ``rl`` and the agent as a config of RLinf's Search-R1 example, which it extends.

The file holds what params decide. Everything else is RLinf's own ``train_qwen2.5.yaml``: epochs,
warm-up of the learning rate, saving and the placement on GPUs. Hydra finds it in the checkout that
trains:

    python RLINF/examples/agent/searchr1/train.py --config-path OUTPUT --config-name searchr1

RLinf has one agent loop, one reward and one training backend for this example, so
:func:`rlinf_config` refuses what it would not train as params say.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from deepsearch_rl.chat.agent_config import SEARCH_TAGS, AgentConfig
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.redaction import mask_users
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
