"""A training step of RL's own service against ART's way, on this CPU in one process: tokens trained per CPU second.

    .venv/bin/python -m benchmarks.rl_step [--params params.yaml]

Both train the same 32 random rollouts with the tiny profile's model, untrained, and score them with
the trainer before they train. ART's way pads every rollout to ``rl.max_sequence_tokens``, computes
the logits of all its positions and makes an optimizer step for each (``art.unsloth.train``, whose
functions do it here). A rollout fills .27 of the padded length on average, as 2,200 of 8,192 tokens
do in the published setting. The two run in turns, so that a busy machine slows both. The last line
compares the gradients of all rollouts together, where both mean the same.
"""

import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from art import Trajectory
from art.loss import loss_fn, shift_tensor
from art.preprocessing.pack import PackedTensors, packed_tensors_from_tokenized_results
from art.preprocessing.tokenize import TokenizedResult
from art.unsloth.train import _calculate_logprobs, calculate_attn_bias

from benchmarks.measure import median_seconds, parse_options
from deepsearch_rl.chat.prompts import load_prompt
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.toy.pretrained_model import ModelShape, build_model, world_tokenizer
from deepsearch_rl.train.art.policy import Policy
from deepsearch_rl.train.art.rows import Rows
from deepsearch_rl.train.rl.rl_config import RlConfig

ROLLOUTS = 32
ROUNDS = 3
FILLED = (0.1, 0.44)
"""Shortest and longest rollout, as shares of the padded length."""
LOSS: Any = {
    "ppo": True,
    "importance_sampling_level": "sequence",
    "epsilon": 0.2,
    "epsilon_high": 0.3,
}
LOSS |= {"truncated_importance_sampling": 2.0}
SAMPLER = 1.1
"""The sampler's log-probabilities over the old policy's, where gradients are compared: some weights reach the cap."""


def random_rollouts(
    rng: random.Random, lengths: list[int], vocabulary: int, width: int
) -> PackedTensors:
    """Return rollouts as ART packs them, one a row of ``width`` tokens; a third of each was sampled."""
    results = []
    for number, length in enumerate(lengths):
        mask = [int(place % 60 >= 40) for place in range(length)]
        logprobs = [rng.uniform(-8, -6) if sampled else float("nan") for sampled in mask]
        tokens = [rng.randrange(vocabulary) for _ in range(length)]
        advantage = rng.uniform(0.5, 2) * (-1) ** number
        parts: Any = (advantage, "", tokens, list(range(length)), mask, logprobs, None, None)
        trajectory = Trajectory(messages_and_choices=[], reward=0.0)
        results.append(
            TokenizedResult(*parts, trajectory, [], {}, cast(Any, None), weight=1 / sum(mask))
        )

    return packed_tensors_from_tokenized_results(
        results, width, pad_token_id=0, pack_results=False, verbosity=0
    )


def arts_logprobs(model: Any, packed: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the log-probability of every next token of padded rows by ART's functions, [B, S]."""
    tokens_BS = packed["tokens"]
    bias = calculate_attn_bias(
        *tokens_BS.shape, tokens_BS.device, packed["group_ids"], packed["parent_ids"], torch.float32
    )
    hidden_BSE = model.get_decoder()(
        tokens_BS, attention_mask=bias[:, None], use_cache=False
    ).last_hidden_state
    head = model.get_output_embeddings().weight.t()
    return _calculate_logprobs(head, hidden_BSE, shift_tensor(tokens_BS, 0), chunk_size=1024)[0]


def rows_of(packed: PackedTensors) -> list[dict[str, torch.Tensor]]:
    """Return each row's tensors, padded as they are."""
    rows: list[dict[str, torch.Tensor]] = []
    for number in range(len(packed["tokens"])):
        row: dict[str, torch.Tensor] = {}
        for name, tensor in packed.items():
            if isinstance(tensor, torch.Tensor):
                row[name] = tensor[number : number + 1]
        rows.append(row)

    return rows


def arts_step(model: Any, optimizer: torch.optim.Optimizer, packed: PackedTensors) -> None:
    """Score every padded rollout, then make an optimizer step for each."""
    rows = rows_of(packed)
    for row in rows:
        with torch.no_grad():
            row["original_logprobs"] = row["logprobs"]
            row["logprobs"] = arts_logprobs(model, row).roll(1, dims=1)

    for row in rows:
        loss_fn(cast(Any, row), arts_logprobs(model, row), None, None, LOSS).policy_loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def arts_gradients(model: Any, packed: PackedTensors) -> None:
    """Add up the gradients of all padded rollouts, of the mean over sampled tokens that our service takes."""
    total = float(shift_tensor(packed["assistant_mask"], False).sum())
    for row in rows_of(packed):
        row["original_logprobs"] = row["logprobs"] * SAMPLER
        loss = loss_fn(cast(Any, row), arts_logprobs(model, row), None, None, LOSS, reduction="sum")
        (loss.policy_loss / total).backward()


def gradients(model: Any) -> torch.Tensor:
    """Return all gradients of a model as one vector."""
    parts: list[torch.Tensor] = []
    for parameter in model.parameters():
        if parameter.grad is not None:
            parts.append(parameter.grad.flatten())

    return torch.cat(parts)


def own_gradients(policy: Policy, packed: PackedTensors) -> None:
    """Add up the same gradients as our service does, in batches by tokens."""
    rows = Rows(packed)
    rows.tensors["original_logprobs"] = rows.tensors["logprobs"] * SAMPLER
    policy.backward(rows, torch.arange(len(rows.lengths_N)))


def own_step(policy: Policy, packed: PackedTensors) -> None:
    """Score and train as our service does."""
    rows = Rows(packed)
    everything = torch.arange(len(rows.lengths_N))
    policy.score(rows, [everything], is_ahead=True)  # rollouts of no policy at all
    policy.update(rows, everything)


def disturb(model: torch.nn.Module) -> None:
    """Move an adapter away from its start, where half of its gradients are zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))


def main() -> None:
    """Time both in turns and print tokens per CPU second, their ratio and the difference of gradients."""
    profile = load_profile(
        parse_options(__doc__, params=(Path("params.yaml"), "the profile's params")).params
    )
    config = profile.section("rl", RlConfig)
    loss = config.loss.model_copy(update={"kl_loss": 0.0})  # ART's loss has none
    config = config.model_copy(update={"max_mismatch": 100.0, "loss": loss})
    settings = profile.value("prepare_model")["pretrain"]
    rng = random.Random(0)
    width = config.max_sequence_tokens

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = world_tokenizer(
            load_prompt(profile.value("agent.prompt")), settings["subwords"], 2048
        )
        model = build_model(ModelShape.model_validate(settings["model"]), tokenizer, seed=0)
        model.save_pretrained(folder)
        own = Policy(Path(folder), config, 0, None)
        other = Policy(Path(folder), config, 0, None)

    lengths = [round(rng.uniform(*FILLED) * width) for _ in range(ROLLOUTS)]
    packed = random_rollouts(rng, lengths, model.config.vocab_size, width)
    for policy in (own, other):
        disturb(policy.model)
    own_gradients(own, packed)
    arts_gradients(other.model, packed)
    ours = gradients(own.model)
    arts = gradients(other.model)
    difference = float((ours - arts).abs().max() / arts.abs().max())
    works = {
        "own": lambda: own_step(own, packed),
        "ART's": lambda: arts_step(other.model, other.optimizer, packed),
    }
    seconds = median_seconds(works, ROUNDS)
    trained = int(packed["assistant_mask"].sum())

    for name, cpu_s in seconds.items():
        sys.stdout.write(
            f"{name} way: {cpu_s:.2f} CPU s a step, {trained / cpu_s:.0f} tokens trained per CPU second\n"
        )

    ratio = seconds["ART's"] / seconds["own"]
    sys.stdout.write(f"own / ART's = {ratio:.1f}\n")
    sys.stdout.write(f"gradients differ by {difference:.0e} of the largest at most\n")


if __name__ == "__main__":
    main()
