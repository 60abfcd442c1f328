"""Section ``rl`` as the Hydra overrides of veRL 0.9.1's ``ppo_trainer``; nothing is read or started here.

veRL accepts names that it does not know (``rollout.name=nope``) and ignores some of its own fields,
so :func:`require_honoured` refuses what it would not train as params say. What differs and is
accepted:

- ``loss.kl_penalty`` is taken from a token's reward (veRL's in-reward KL), not centred in the
  advantages. For algorithms that compare whole rollouts it is the rollout's sum.
- The learning rate's warm-up begins at 0 (constant) and is full after as many steps.
- ``bfloat16`` without an adapter keeps weights and moments in float32 and computes in bfloat16.
- ``gate`` is not asked, ``watchdog``'s restarts are those of the whole stage.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.train.rl.rl_config import AGENT_LOOP, AlgorithmName, RlConfig, VerlConfig

ACTOR = "actor_rollout_ref.actor"
REFERENCE = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
# veRL's name of our engine (:mod:`deepsearch_rl.train.verl.cpu`).
OWN_ROLLOUT = "deepsearch"
# A dual clip that never acts; veRL has no switch for it
NO_DUAL_CLIP = 1e9
# What Ray is told of a cpu machine: veRL's actors reserve whole cores that they hardly use
RAY_CPUS = 16


class VerlAlgorithm(NamedTuple):
    """veRL's names of an algorithm's parts, and the aggregation of its source by our name."""

    advantage: str
    loss: str
    aggregation: str


ALGORITHMS: Mapping[AlgorithmName, VerlAlgorithm] = {
    "grpo": VerlAlgorithm("grpo", "vanilla", "sequence"),
    "gspo": VerlAlgorithm("grpo", "gspo", "sequence"),
    "gspo_token": VerlAlgorithm("grpo", "gspo", "sequence"),
    "dr_grpo": VerlAlgorithm("grpo", "vanilla", "constant"),
    "rloo": VerlAlgorithm("rloo", "vanilla", "token"),
    "reinforce_pp": VerlAlgorithm("reinforce_plus_plus", "vanilla", "token"),
    "cispo": VerlAlgorithm("grpo", "cispo", "token"),
    "ppo": VerlAlgorithm("gae", "vanilla", "token"),
}
# Their advantages are divided by a standard deviation, which is always the sample's in veRL
DIVIDED_BY_STD = ("grpo", "gspo", "gspo_token", "cispo")
AGGREGATIONS = {
    "token": "token-mean",
    "sequence": "seq-mean-token-mean",
    "constant": "seq-mean-token-sum-norm",
}
KL_ESTIMATES = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}


@dataclass(frozen=True, slots=True)
class VerlRun:
    """The paths and numbers of one run: the start model, files of rows and agent, and where checkpoints go."""

    start: Path
    train: Path
    dev: Path
    agent: Path
    checkpoints: Path
    steps: int
    context_tokens: int
    seed: int


def hydra_overrides(config: RlConfig, run: VerlRun) -> list[str]:
    """Return the arguments of ``verl.trainer.main_ppo``; raise ConfigError as :func:`require_honoured`."""
    verl = require_honoured(config)
    values = {
        **_data(config, run),
        **_model(config, verl, run),
        **_algorithm(config),
        **_actor(config, verl),
        **_rollout(config, verl, run),
        **_trainer(config, verl, run),
    }
    if verl.critic:
        values |= _critic(config, verl, run)
    if verl.address is not None:
        values["+ray_kwargs.ray_init.address"] = verl.address
    if config.backend.device == "cpu":
        values["trainer.device"] = "cpu"
        # A cluster's nodes have said how many they have
        if verl.address is None:
            values["ray_kwargs.ray_init.num_cpus"] = RAY_CPUS
            values["+ray_kwargs.ray_init.num_gpus"] = verl.gpus_per_node
    return [f"{name}={hydra_value(value)}" for name, value in values.items()]


def require_honoured(config: RlConfig) -> VerlConfig:
    """Return the engine's settings; raise ConfigError, which names each field that veRL cannot honour."""
    verl = config.backend.verl
    if verl is None:
        raise ConfigError("rl.backend.engine is not verl, so there is nothing to translate.")
    problems = list(_not_honoured(config, verl))
    if problems:
        raise ConfigError("veRL cannot train what section rl says: " + "; ".join(problems) + ".")
    return verl


def _not_honoured(config: RlConfig, verl: VerlConfig) -> Iterator[str]:
    """Yield what each field that veRL cannot honour would have to be."""
    loss = config.loss
    rollouts = config.groups_per_step * config.group_size
    gpus = verl.nodes * verl.gpus_per_node

    if config.patience is not None:
        yield "rl.patience has to be null, since it trains all steps"
    if config.dev.every % (verl.save_every or config.dev.every):
        yield (
            f"rl.backend.verl.save_every has to divide rl.dev.every = {config.dev.every}, since every step that dev "
            "scores is saved"
        )
    if config.shuffle_rewards:
        yield "rl.shuffle_rewards has to be false"
    if config.minibatches is None or config.groups_per_step % config.minibatches:
        yield "rl.minibatches has to divide rl.groups_per_step, since a minibatch is whole groups"
    if config.concurrency < rollouts:
        yield f"rl.concurrency has to be {rollouts} at least, since a step's rollouts begin at once"
    if rollouts % gpus:
        yield f"the {rollouts} rollouts of a step have to be a multiple of the {gpus} GPUs"
    if config.optimizer.schedule == "linear":
        yield "rl.optimizer.schedule has to be constant or cosine"
    if config.lora and config.lora.layers is not None:
        yield "rl.lora.layers has to be null, since it names no layers"
    if config.logprob_chunk < config.max_batch_tokens:
        yield "rl.logprob_chunk has to be rl.max_batch_tokens, since it holds a batch's logits at once"
    if config.sampler.program is not None:
        yield "rl.sampler.program has to be null, since its samplers are of its own environment"
    if loss.aggregation == "sequence_art":
        yield "rl.loss.aggregation has no sequence_art"
    if loss.algorithm in DIVIDED_BY_STD and not loss.sample_std:
        yield "rl.loss.sample_std has to be true"
    if verl.critic and config.backend.device == "cuda" and verl.attention == "sdpa":
        yield "rl.backend.verl.attention has to be flash_attention_2, since its critic has no other"
    if loss.unit_advantages:
        yield "rl.loss.unit_advantages has to be false"


def _data(config: RlConfig, run: VerlRun) -> dict[str, Any]:
    """Return the overrides of data: rows are in the order of training already, no prompt is cut or left out."""
    return {
        "data.train_files": run.train,
        "data.val_files": run.dev,
        "data.train_batch_size": config.groups_per_step,
        "data.max_prompt_length": run.context_tokens,
        "data.max_response_length": run.context_tokens,
        "data.shuffle": False,
        "data.filter_overlong_prompts": False,
        "data.truncation": "error",
        "data.dataloader_num_workers": 0,
        "data.seed": run.seed,
    }


def _model(config: RlConfig, verl: VerlConfig, run: VerlRun) -> dict[str, Any]:
    without_padding = verl.attention == "flash_attention_2"
    lora = {f"{MODEL}.lora_rank": 0}
    if config.lora:
        lora = {
            f"{MODEL}.lora_rank": config.lora.rank,
            f"{MODEL}.lora_alpha": config.lora.alpha,
            f"{MODEL}.target_modules": "all-linear",
            # Our engine on a cpu serves whole models
            f"{MODEL}.lora.merge": config.backend.device == "cpu",
        }
    return {
        f"{MODEL}.path": run.start,
        f"+{MODEL}.override_config.attn_implementation": verl.attention,
        f"{MODEL}.use_remove_padding": without_padding,
        # Padded rows are budgeted by their tokens, and their logits would be held at once: these
        # kernels take log-probability and entropy by chunks
        f"{MODEL}.use_fused_kernels": config.backend.device == "cuda",
        f"{MODEL}.enable_gradient_checkpointing": config.gradient_checkpointing,
        **lora,
    }


def _algorithm(config: RlConfig) -> dict[str, Any]:
    loss = config.loss
    cap = loss.truncated_importance_sampling
    return {
        "algorithm.adv_estimator": ALGORITHMS[loss.algorithm].advantage,
        "algorithm.norm_adv_by_std_in_grpo": loss.algorithm != "dr_grpo",
        "algorithm.use_kl_in_reward": loss.kl_penalty > 0,
        "algorithm.kl_penalty": "kl",
        "algorithm.kl_ctrl.kl_coef": loss.kl_penalty,
        "algorithm.rollout_correction.rollout_is": None if cap is None else "token",
        "algorithm.rollout_correction.rollout_is_threshold": 2.0 if cap is None else cap,
    }


def _actor(config: RlConfig, verl: VerlConfig) -> dict[str, Any]:
    loss = config.loss
    algorithm = ALGORITHMS[loss.algorithm]
    assert config.minibatches is not None
    return {
        f"{ACTOR}.strategy": verl.strategy,
        f"{ACTOR}.ppo_mini_batch_size": config.groups_per_step // config.minibatches,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.ppo_max_token_len_per_gpu": config.max_batch_tokens,
        f"{ACTOR}.policy_loss.loss_mode": algorithm.loss,
        f"{ACTOR}.loss_agg_mode": AGGREGATIONS[loss.aggregation or algorithm.aggregation],
        f"{ACTOR}.loss_scale_factor": config.max_sequence_tokens,
        f"{ACTOR}.clip_ratio": loss.epsilon,
        f"{ACTOR}.clip_ratio_low": loss.epsilon,
        f"{ACTOR}.clip_ratio_high": loss.epsilon_high,
        f"{ACTOR}.clip_ratio_c": NO_DUAL_CLIP if loss.dual_clip is None else loss.dual_clip,
        f"{ACTOR}.entropy_coeff": loss.entropy_bonus,
        f"{ACTOR}.use_kl_loss": loss.kl_loss > 0,
        f"{ACTOR}.kl_loss_coef": loss.kl_loss,
        f"{ACTOR}.kl_loss_type": KL_ESTIMATES[loss.kl_estimate],
        **_optimizer(config, ACTOR, config.learning_rate, config.optimizer.warmup_steps),
        **_sharding(config, verl, f"{ACTOR}.fsdp_config"),
        f"{ACTOR}.use_torch_compile": config.backend.device == "cuda",
        **_sharding(config, verl, f"{REFERENCE}.fsdp_config"),
    }


def _optimizer(config: RlConfig, part: str, rate: float, warmup_steps: int) -> dict[str, Any]:
    return {
        f"{part}.optim.lr": rate,
        f"{part}.optim.lr_warmup_steps": warmup_steps,
        f"{part}.optim.lr_scheduler_type": config.optimizer.schedule,
        f"{part}.optim.zero_indexed_step": False,
        f"{part}.optim.betas": [0.9, config.optimizer.beta2],
        f"{part}.optim.weight_decay": config.optimizer.weight_decay,
        f"{part}.optim.clip_grad": config.optimizer.max_grad_norm,
        f"{part}.grad_clip": config.optimizer.max_grad_norm,
    }


def _sharding(config: RlConfig, verl: VerlConfig, part: str) -> dict[str, Any]:
    compute = "fp32" if config.dtype == "float32" else "bf16"
    return {
        f"{part}.param_offload": verl.param_offload,
        f"{part}.optimizer_offload": verl.optimizer_offload,
        f"{part}.model_dtype": compute if config.lora else "fp32",
        f"+{part}.mixed_precision.param_dtype": compute,
        # A sum over many GPUs would lose small gradients in bfloat16
        f"+{part}.mixed_precision.reduce_dtype": "fp32",
        f"+{part}.mixed_precision.buffer_dtype": "fp32",
        f"{part}.use_torch_compile": config.backend.device == "cuda",
    }


def _rollout(config: RlConfig, verl: VerlConfig, run: VerlRun) -> dict[str, Any]:
    dev = config.dev
    return {
        f"{ROLLOUT}.name": OWN_ROLLOUT if verl.rollout == "own" else verl.rollout,
        f"{ROLLOUT}.mode": "async",
        f"{ROLLOUT}.n": config.group_size,
        f"{ROLLOUT}.temperature": config.temperature,
        f"{ROLLOUT}.dtype": config.dtype,
        f"{ROLLOUT}.seed": run.seed,
        f"{ROLLOUT}.max_model_len": run.context_tokens,
        f"{ROLLOUT}.max_num_batched_tokens": max(config.max_batch_tokens, run.context_tokens),
        f"{ROLLOUT}.tensor_model_parallel_size": verl.tensor_parallel,
        f"{ROLLOUT}.gpu_memory_utilization": config.sampler.gpu_memory_utilization,
        f"{ROLLOUT}.enforce_eager": config.sampler.enforce_eager,
        f"{ROLLOUT}.free_cache_engine": config.sampler.sleep,
        f"{ROLLOUT}.max_num_seqs": _conversations_at_once(config),
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.agent.num_workers": verl.agent_workers,
        f"{ROLLOUT}.agent.default_agent_loop": AGENT_LOOP,
        f"{ROLLOUT}.agent.agent_loop_config_path": run.agent,
        f"{ROLLOUT}.val_kwargs.n": dev.samples,
        f"{ROLLOUT}.val_kwargs.temperature": dev.temperature,
        f"{ROLLOUT}.val_kwargs.do_sample": dev.temperature > 0,
    }


def _conversations_at_once(config: RlConfig) -> int:
    return config.sampler.slots if config.backend.device == "cpu" else config.sampler.max_num_seqs


def _trainer(config: RlConfig, verl: VerlConfig, run: VerlRun) -> dict[str, Any]:
    """Return the overrides of the trainer; every step that dev scores is saved, since any can be the best."""
    return {
        "trainer.total_training_steps": run.steps,
        # The rows hold the questions of all steps, so that one epoch is the whole training
        "trainer.total_epochs": 1,
        "trainer.nnodes": verl.nodes,
        "trainer.n_gpus_per_node": verl.gpus_per_node,
        "trainer.val_before_train": True,
        "trainer.test_freq": config.dev.every,
        "trainer.save_freq": verl.save_every or config.dev.every,
        "trainer.default_local_dir": run.checkpoints,
        "trainer.resume_mode": "auto",
        "trainer.logger": ["console", "file"],
        "trainer.project_name": "deepsearch",
        "trainer.experiment_name": "rl",
        "reward.num_workers": 1,
        "+ray_kwargs.ray_init.include_dashboard": False,
    }


def _critic(config: RlConfig, verl: VerlConfig, run: VerlRun) -> dict[str, Any]:
    critic = verl.critic
    assert critic is not None
    return {
        "algorithm.gamma": critic.gamma,
        "algorithm.lam": critic.lam,
        "critic.strategy": verl.strategy,
        "critic.model.path": run.start,
        "critic.model.use_remove_padding": verl.attention == "flash_attention_2",
        "critic.model.enable_gradient_checkpointing": config.gradient_checkpointing,
        "+critic.model.override_config.attn_implementation": verl.attention,
        "critic.ppo_max_token_len_per_gpu": config.max_batch_tokens,
        "critic.cliprange_value": critic.value_clip,
        **_optimizer(config, "critic", critic.learning_rate, critic.warmup_steps),
        **_sharding(config, verl, "critic.fsdp"),
        # veRL trains the policy from the step of this number on
        "trainer.critic_warmup": critic.alone_steps + 1,
    }


def hydra_value(value: object) -> str:
    """Return a value as Hydra's grammar of overrides reads it back."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(hydra_value, value)) + "]"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
