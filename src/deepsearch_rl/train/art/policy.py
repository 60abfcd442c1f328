"""A policy in training on any device: an adapter or all weights, AdamW, and forward passes in batches by tokens.

Rollouts of a step are rows. Batches are made of rows of similar length, each padded to its own
longest row, so that at most ``rl.max_batch_tokens`` go through the model at once. Logits are
computed only for tokens that carry loss, in float32, and in chunks of ``rl.logprob_chunk``, whose
gradient is recomputed.

On a CPU with ``rl.threads: 1`` two batches are computed at the same time, each by one thread, since a
product of a small model is too small for two threads. Results are added in the order of the batches, so their bytes
are those of one thread.

There is one way to a log-probability. A row is scored in the batch in which it is trained on, by
the same operations, so that the ratio of new to old policy is 1 until the first weight changes. With
one optimizer step (``rl.minibatches: 1``) it is scored by the forward pass that trains on it.
Batches of another shape round in another way, and in bfloat16 that is more than a clip range of
3e-4: most rollouts would teach nothing.

Shapes: N rows of a step, B rows of a forward pass, S tokens (padded on the right), P positions that
carry loss, E hidden size, V vocabulary. Log-probabilities, masks and weights [B, S] have at
position ``t`` what belongs to token ``t + 1`` given the tokens up to ``t``; ART's packed tensors
have it at ``t + 1``.
"""

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import peft
import torch
from art.loss import shift_tensor
from peft.tuners.lora import Linear
from torch.utils.checkpoint import checkpoint as recomputed
from transformers import AutoModelForCausalLM, PreTrainedModel

from deepsearch_rl.core.errors import ArtifactError, CheckFailedError, StalePolicyError
from deepsearch_rl.core.files import atomic_directory, read_json, write_json
from deepsearch_rl.train.art.rows import (
    OPTIMIZER_FILE,
    Rows,
    clipped,
    log_softmax_of,
    mean_kl,
    seal,
    token_losses,
)
from deepsearch_rl.train.finite import (
    NotFiniteError,
    require_finite_tensors,
    require_finite_update,
)
from deepsearch_rl.train.model_folder import ADAPTER_FILES, layers_pattern
from deepsearch_rl.train.rl.agreement import agreement, require_unclipped
from deepsearch_rl.train.rl.policy_loss import kl_advantages
from deepsearch_rl.train.rl.rl_config import RlConfig

# Batches that are computed at the same time on a CPU, by one thread each; each holds its activations
SIDE_BY_SIDE = 2
# Where no KL is in the loss, the start model scores one batch of four, and so many rollouts at least:
# the error of a share served is estimated from as many
REFERENCE_STRIDE = 4
REFERENCE_ROLLOUTS = 8
ResultT = TypeVar("ResultT")


class Part(NamedTuple):
    """What one batch adds to an update: metrics, gradients, and the policy's log-probabilities, [B, S]."""

    metrics: dict[str, float]
    gradients: tuple[torch.Tensor, ...]
    logprobs_BS: torch.Tensor


class Policy:
    """A start model in training, resumed from a checkpoint with its optimizer if there is one.

    Raises ArtifactError if the checkpoint's weights do not fit the start model.
    """

    def __init__(self, start: Path, config: RlConfig, seed: int, checkpoint: Path | None) -> None:
        self.config = config
        self._device = config.backend.device
        self._threads = (
            ThreadPoolExecutor(SIDE_BY_SIDE, "policy")
            if self._device == "cpu" and config.threads == 1
            else None
        )
        # Since the rows were scored; nothing is scored yet
        self._has_moved = True
        torch.manual_seed(seed)
        self._adapter: peft.PeftModel | None = None
        # Of an adapter: the model without it
        self._reference: PreTrainedModel | None = None
        if config.lora is None:
            self.model = self._load(checkpoint or start, torch.float32)
            # With all weights trained, nothing can be switched off to get the start model back
            self._reference = self._load(start, getattr(torch, config.dtype)).requires_grad_(False)
            self._trained: PreTrainedModel | peft.PeftModel = self.model
        else:
            self.model = self._load(start, getattr(torch, config.dtype))
            self._trained = self._adapter = with_adapter(self.model, config, checkpoint)

        if config.gradient_checkpointing:
            self.model.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
            # The embeddings are frozen under an adapter, and a checkpointed block whose input needs
            # no gradient gives none
            self.model.enable_input_require_grads()

        self._trained.train()
        self._parameters = [weight for weight in self._trained.parameters() if weight.requires_grad]
        optimizer = config.optimizer
        betas = (0.9, optimizer.beta2)
        settings = {
            "lr": config.learning_rate,
            "betas": betas,
            "weight_decay": optimizer.weight_decay,
        }
        self.optimizer = torch.optim.AdamW(self._parameters, **settings)

        if checkpoint is not None:
            state = torch.load(
                checkpoint / OPTIMIZER_FILE, map_location=self._device, weights_only=True
            )
            self.optimizer.load_state_dict(state)

    def _load(self, folder: Path, dtype: torch.dtype) -> PreTrainedModel:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        return model.to(self._device)

    def write_into(self, served: PreTrainedModel) -> None:
        """Write the trained weights, ``base + scale * B A`` where there is an adapter, into a model of equal shape."""
        with torch.no_grad():
            if self._adapter is None:
                served.load_state_dict(self.model.state_dict())
                return

            for name, layer in self._adapter.base_model.model.named_modules():
                if isinstance(layer, Linear):
                    base = cast(torch.nn.Linear, layer.get_base_layer())
                    weight = base.weight + layer.get_delta_weight("default")
                    served.get_parameter(f"{name}.weight").copy_(weight)

    def save(self, folder: Path, start: str) -> None:
        """Write weights and optimizer and seal them; ``folder`` appears by one rename."""
        with atomic_directory(folder) as partial:
            weights = self._trained.named_parameters()
            trained = [(name, weight) for name, weight in weights if weight.requires_grad]
            # A checkpoint with NaN would be served, and every later start would go on from it
            require_finite_tensors("the trained weight", trained)
            self._trained.save_pretrained(str(partial))

            # PEFT writes a set, whose order changes from process to process
            if self._adapter is not None:
                settings = read_json(partial / ADAPTER_FILES[0])
                if isinstance(settings["target_modules"], list):
                    settings["target_modules"].sort()
                write_json(partial / ADAPTER_FILES[0], settings)

            torch.save(self.optimizer.state_dict(), partial / OPTIMIZER_FILE)
            seal(partial, start)

    def score(self, rows: Rows, minibatches: Sequence[torch.Tensor]) -> dict[str, float]:
        """Give the rows the log-probabilities of this policy and of the start model; return the metrics of both.

        ``minibatches`` are the row numbers of each update to come: rows are scored in the batches
        of these updates. The policy's own log-probabilities become ``logprobs``, the old policy of
        ratio and clip. The sampler's become ``original_logprobs``, which truncated importance
        sampling compares them with.

        Raises StalePolicyError and NotFiniteError.
        """
        batches: list[torch.Tensor] = []
        for chosen in minibatches:
            batches += rows.batches(chosen, self.config.max_batch_tokens)

        tensors = rows.tensors
        own_NS = self._logprobs_by("the policy", self.model, rows, batches)
        self._has_moved = False
        self._score_by_reference(rows, batches)
        metrics = self._agreement(rows, own_NS)

        tensors["original_logprobs"] = tensors["logprobs"]
        tensors["logprobs"] = own_NS.roll(1, dims=1).where(
            ~tensors["logprobs"].isnan(), float("nan")
        )
        mask_NS = rows.mask(torch.arange(len(own_NS)))
        penalty_NS = kl_advantages(
            self.config.loss.kl_penalty, own_NS, tensors["reference_logprobs"], mask_NS
        )
        tensors["advantages"] = tensors["advantages"] + penalty_NS.roll(1, dims=1)
        return metrics

    def _score_by_reference(self, rows: Rows, batches: Sequence[torch.Tensor]) -> None:
        """Give the rows the log-probabilities of the start model, ``reference_logprobs`` [N, S].

        Where it is not part of the loss, it scores one batch of four or more of them, for the
        metrics alone, and those of the other rows are NaN. Raises NotFiniteError.
        """
        loss = self.config.loss
        is_in_loss = loss.kl_loss > 0 or loss.kl_penalty > 0
        stride = min(REFERENCE_STRIDE, len(rows.lengths_N) // REFERENCE_ROLLOUTS)
        scored = batches if is_in_loss else batches[:: max(1, stride)]
        with self._adapter.disable_adapter() if self._adapter else contextlib.nullcontext():
            reference = self._reference or self.model
            rows.tensors["reference_logprobs"] = self._logprobs_by(
                "the start model", reference, rows, scored
            )

    def _agreement(self, rows: Rows, own_NS: torch.Tensor) -> dict[str, float]:
        """Return the metrics of sampler, policy (log-probabilities [N, S]) and start model; raise StalePolicyError."""
        tensors = rows.tensors
        reference_NS = tensors["reference_logprobs"]
        mask_NS = rows.mask(torch.arange(len(own_NS)))
        sampled_NS = shift_tensor(tensors["logprobs"], float("nan")).where(mask_NS, float("nan"))
        advantages_N = tensors["advantages"].sum(dim=1)
        metrics = agreement(
            sampled_NS,
            own_NS,
            reference_NS,
            advantages_N,
            self.config.loss,
            self.config.max_mismatch,
        )

        is_better_NS = mask_NS & (advantages_N > 0)[:, None]
        if is_better_NS.any():
            metrics["logprob_positive"] = float(own_NS[is_better_NS].mean())
        compared_NS = mask_NS & ~reference_NS.isnan()
        return {**metrics, "kl": mean_kl(own_NS[compared_NS], reference_NS[compared_NS])}

    def _logprobs_by(
        self, name: str, model: PreTrainedModel, rows: Rows, batches: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Return a model's log-probabilities [N, S] of the rows of all batches, NaN for other rows.

        Raises NotFiniteError, which calls the model by ``name``.
        """

        def logprobs_of(rows_B: torch.Tensor) -> torch.Tensor:
            inputs = rows.take(rows_B, self._device)
            with torch.no_grad():
                return self.token_statistics(inputs, model, with_entropy=False)[0].cpu()

        bad = 0
        logprobs_NS = torch.full_like(rows.tensors["logprobs"], math.nan)
        for rows_B, logprobs_BS in zip(batches, self._each(logprobs_of, batches), strict=True):
            bad += int((~logprobs_BS.isfinite()).any(dim=1).sum())
            logprobs_NS[rows_B] = 0.0
            logprobs_NS[rows_B, : logprobs_BS.shape[1]] = logprobs_BS

        _require_finite_rows(name, bad, sum(map(len, batches)))
        return logprobs_NS

    def _each(
        self, compute: Callable[[torch.Tensor], ResultT], batches: Sequence[torch.Tensor]
    ) -> Iterator[ResultT]:
        """Yield what is computed of each batch, in their order."""
        each = map if self._threads is None else self._threads.map
        return iter(each(compute, batches))

    def update_once(self, rows: Rows) -> dict[str, float]:
        """Make the only optimizer step over the rows, scored as they are trained on; return metrics as both.

        The policy has not moved since it sampled them, so that its log-probabilities on the way
        are the old policy's: :meth:`score` and :meth:`update` of one minibatch give the same
        weights, a forward pass later. A penalty in the advantages needs them before
        (``rl.loss.kl_penalty``).

        Raises as :meth:`score` and :meth:`update`, before a weight has changed.
        """
        everything = torch.arange(len(rows.lengths_N))
        self._score_by_reference(rows, rows.batches(everything, self.config.max_batch_tokens))
        totals, own_NS = self._backward(rows, everything, is_scored=False)
        try:
            bad = int((~own_NS.isfinite()).any(dim=1).sum())
            _require_finite_rows("the policy", bad, len(own_NS))
            metrics = self._agreement(rows, own_NS)
        except (NotFiniteError, StalePolicyError):
            # Or they would be added to those of the next update
            self.optimizer.zero_grad(set_to_none=True)
            raise
        return {**metrics, **self._step(totals)}

    def update(self, rows: Rows, chosen: torch.Tensor) -> dict[str, float]:
        """Make one optimizer step over the chosen rows, a minibatch of :meth:`score`; return metrics by ART's names.

        Raises, before a weight has changed: NotFiniteError: the loss or a gradient is not finite.
            CheckFailedError: a token of the first update after :meth:`score` is outside the clip
            range.
        """
        return self._step(self.backward(rows, chosen))

    def _step(self, totals: dict[str, float]) -> dict[str, float]:
        """Apply the gradient; return the metrics."""
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.config.optimizer.max_grad_norm)

        try:
            require_finite_update(
                "the update was not applied",
                totals["loss/train"],
                norm,
                self.model.named_parameters(),
            )
            if not self._has_moved:
                require_unclipped(totals["loss/clip_fraction"])
        except (NotFiniteError, CheckFailedError):
            # Or they would be added to those of the next update
            self.optimizer.zero_grad(set_to_none=True)
            raise

        self.optimizer.step()
        self._has_moved = True
        self.optimizer.zero_grad(set_to_none=True)
        return {
            **totals,
            "loss/grad_norm": float(norm),
            "loss/learning_rate": self.optimizer.param_groups[0]["lr"],
        }

    def backward(self, rows: Rows, chosen: torch.Tensor) -> dict[str, float]:
        """Compute the gradient of the chosen rows, a minibatch; return the means over their tokens."""
        return self._backward(rows, chosen, is_scored=True)[0]

    def _backward(
        self, rows: Rows, chosen: torch.Tensor, *, is_scored: bool
    ) -> tuple[dict[str, float], torch.Tensor]:
        """Compute a gradient; return the means over the tokens and the policy's log-probabilities, [N, S]."""
        trained_tokens = float(rows.mask(chosen).sum())
        rows.weigh(chosen, self.config.loss, self.config.max_sequence_tokens)
        batches = rows.batches(chosen, self.config.max_batch_tokens)
        totals: dict[str, float] = defaultdict(float)
        own_NS = torch.zeros_like(rows.tensors["logprobs"])

        def part_of(rows_B: torch.Tensor) -> Part:
            inputs = rows.take(rows_B, self._device)
            return self._part(inputs, trained_tokens, is_scored=is_scored)

        for rows_B, part in zip(batches, self._each(part_of, batches), strict=True):
            own_NS[rows_B, : part.logprobs_BS.shape[1]] = part.logprobs_BS
            for name, value in part.metrics.items():
                totals[name] += value
            for parameter, gradient in zip(self._parameters, part.gradients, strict=True):
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

        return totals, own_NS

    def _part(
        self, inputs: dict[str, torch.Tensor], trained_tokens: float, *, is_scored: bool
    ) -> Part:
        """Return one batch's share of the step's mean metrics and gradient; rows not scored are so on the way."""
        logprobs_BS, entropy_BS = self.token_statistics(inputs)
        own_BS = logprobs_BS.detach()
        if not is_scored:
            sampled_BS = inputs["logprobs"]
            inputs["original_logprobs"] = sampled_BS
            inputs["logprobs"] = own_BS.roll(1, dims=1).where(~sampled_BS.isnan(), float("nan"))

        loss = (
            token_losses(inputs, logprobs_BS, entropy_BS, self.config.loss)
            * inputs["token_weights"]
        ).sum()
        # Returned and not added: two batches may be computed at the same time
        gradients = torch.autograd.grad(loss, self._parameters, materialize_grads=True)

        share_BS = shift_tensor(inputs["assistant_mask"], False).float() / trained_tokens
        metrics = {
            "loss/train": loss.item(),
            "loss/entropy": float((entropy_BS.detach() * share_BS).sum()),
            "loss/clip_fraction": float(
                (clipped(inputs, own_BS, self.config.loss) * share_BS).sum()
            ),
        }
        return Part(metrics, gradients, own_BS.cpu())

    def token_statistics(
        self,
        inputs: dict[str, torch.Tensor],
        model: PreTrainedModel | None = None,
        *,
        with_entropy: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probability and entropy (nats) of every next token that carries loss, each [B, S].

        Both are zero elsewhere; the entropy has a gradient only for ``rl.loss.entropy_bonus``, and
        is zero everywhere without ``with_entropy``, which saves a pass over all logits.
        ``inputs`` are ART's ``tokens``, ``group_ids`` (-1 is padding) and ``assistant_mask``;
        ``model`` is the policy's own if none is given.
        """
        mask_BS = shift_tensor(inputs["assistant_mask"], False)
        next_P = shift_tensor(inputs["tokens"], 0)[mask_BS]
        model = model or self.model
        config = self.config

        with torch.autocast(self._device, torch.bfloat16, enabled=config.dtype == "bfloat16"):
            decoder: Any = model.get_decoder()
            attention_BS = (inputs["group_ids"] != -1).long()
            hidden_BSE = decoder(
                inputs["tokens"], attention_mask=attention_BS, use_cache=False
            ).last_hidden_state

        # Most tokens are read and not written: their logits would fill the memory
        hidden_PE = hidden_BSE[mask_BS]

        head = cast(torch.nn.Linear, model.get_output_embeddings())
        has_bonus = config.loss.entropy_bonus > 0
        settings = (head, config.temperature, with_entropy, has_bonus)

        if len(hidden_PE) <= config.logprob_chunk:
            logprobs_P, entropy_P = log_softmax_of(hidden_PE, next_P, *settings)
        else:
            # The gradient of a chunk is recomputed, so that no more than one has its logits in
            # memory.
            logprobs: list[torch.Tensor] = []
            entropies: list[torch.Tensor] = []
            hidden_chunks = hidden_PE.split(config.logprob_chunk)
            token_chunks = next_P.split(config.logprob_chunk)

            for hidden, tokens in zip(hidden_chunks, token_chunks, strict=True):
                chunk = recomputed(log_softmax_of, hidden, tokens, *settings, use_reentrant=False)
                logprobs.append(chunk[0])
                entropies.append(chunk[1])

            logprobs_P = torch.cat(logprobs)
            entropy_P = torch.cat(entropies)

        zeros_BS = torch.zeros(mask_BS.shape, device=mask_BS.device)
        return zeros_BS.masked_scatter(mask_BS, logprobs_P), zeros_BS.masked_scatter(
            mask_BS, entropy_P
        )


def _require_finite_rows(name: str, bad: int, rows: int) -> None:
    """Raise NotFiniteError if a model, called by ``name``, has log-probabilities that are no numbers in some rows."""
    if bad:
        raise NotFiniteError(
            f"the log-probabilities of {name} are not finite (NaN or infinite) in {bad} of {rows} "
            "rollouts. Nothing of this step is kept."
        )


def with_adapter(
    model: PreTrainedModel, config: RlConfig, checkpoint: Path | None
) -> peft.PeftModel:
    """Return the model with an adapter on every linear layer of ``rl.lora.layers``: a new one, or a checkpoint's.

    Raises ArtifactError if the checkpoint does not fit the model.
    """
    assert config.lora is not None
    layers = config.lora.layers
    if checkpoint is None:
        settings = peft.LoraConfig(
            r=config.lora.rank,
            lora_alpha=config.lora.alpha,
            target_modules="all-linear"
            if layers is None
            else layers_pattern(layers, model.config.num_hidden_layers),
            task_type="CAUSAL_LM",
        )
        return cast(peft.PeftModel, peft.get_peft_model(model, settings))

    try:
        return peft.PeftModel.from_pretrained(model, checkpoint, is_trainable=True)
    except (RuntimeError, ValueError) as error:
        raise ArtifactError(
            f"the adapter of {checkpoint} does not fit the model that rl starts from, a "
            f"{model.config.model_type} with {model.config.num_hidden_layers} layers of size "
            f"{model.config.hidden_size}: {str(error).splitlines()[0]} Start from the model that "
            "the adapter was trained on."
        ) from error
