"""Training of the base model on generated conversations: Muon on matrices, AdamW on the rest, a curriculum.

Batches are right-padded conversations of similar lengths, with the loss on assistant tokens alone.

Source of Muon: Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024),
https://kellerjordan.github.io/posts/muon/. ``torch.optim.Muon`` is the same algorithm in bfloat16; on a CPU without
bfloat16 instructions it takes 290 ms a step for this model where this float32 version takes 15 ms.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
from transformers.utils.chat_template_utils import render_jinja_template

from deepsearch_rl.agent.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.agent.prompts import load_prompt
from deepsearch_rl.corpora.world.grammar import IN_DOMAIN, OUT_OF_DOMAIN
from deepsearch_rl.files import AppendLog
from deepsearch_rl.progress import ProgressBar
from deepsearch_rl.records import NonEmpty, Record
from deepsearch_rl.training.pretrain.documents import CurriculumStage, DocumentConfig, DocumentGenerator, Turn
from deepsearch_rl.training.pretrain.model import (
    END_OF_TEXT,
    TURN_END,
    TURN_START,
    ModelConfig,
    build_model,
    world_tokenizer,
)
from deepsearch_rl.training.pretrain.passage_set import Names, strange_words

TRAIN_LOG = "train_log.jsonl"
LOG_EVERY = 25
"""Steps between two lines of the training log."""
_A, _B, _C = 3.4445, -4.7750, 2.0315  # Muon's quintic iteration with the steepest slope at zero
_NEWTON_SCHULZ_STEPS = 5
_MOMENTUM = 0.95  # share of the old direction that a step of Muon keeps


class OptimizerConfig(Record):
    """How the weights are moved."""

    muon_learning_rate: float = Field(gt=0, description="of matrices")
    adam_learning_rate: float = Field(gt=0, description="of embeddings and norms")
    batch_tokens: int = Field(ge=64, description="tokens of a batch, padding included")
    pool: int = Field(ge=1, description="documents that are sorted by length before they are cut into batches")
    warmup: float = Field(ge=0, le=1, description="share of training over which the rates rise from zero")
    decay: float = Field(ge=0, le=1, description="share of training over which they fall to a tenth, at the end")


class PretrainConfig(Record):
    """A model trained from scratch on generated conversations."""

    prompt: NonEmpty = Field(description="name of the system prompt in agent/prompts that documents open with")
    subwords: int = Field(ge=256, description="tokens learned by BPE, the 256 bytes included; whole words come on top")
    model: ModelConfig
    documents: DocumentConfig
    curriculum: tuple[CurriculumStage, ...] = Field(min_length=1, description="easiest stage first")
    optimizer: OptimizerConfig


class PretrainStep(Record):
    """One line of ``train_log.jsonl``: means over the steps since the line before."""

    step: int
    tokens: int
    level: int = Field(description="number of the curriculum stage")
    loss: float
    accuracy: float
    rate: float


def pretrain(config: PretrainConfig, seed: int, folder: Path) -> None:
    """Train tokenizer and model from scratch and save both, with the training log, to an existing empty folder."""
    prompt = load_prompt(config.prompt)
    tokenizer = world_tokenizer(prompt, config.subwords, config.model.context_tokens)
    model = build_model(config.model, tokenizer, seed)
    names = Names(strange_words(OUT_OF_DOMAIN), config.documents.strange_names)
    generator = DocumentGenerator(IN_DOMAIN, names, prompt, config.documents)
    with AppendLog(folder / TRAIN_LOG) as log:
        for line in train(model, tokenizer, generator, config, seed):
            log.append(line)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    generator: DocumentGenerator,
    config: PretrainConfig,
    seed: int,
) -> Iterator[PretrainStep]:
    """Train a float32 model in place through the curriculum; yield a record every ``LOG_EVERY`` steps."""
    rates, padding = config.optimizer, tokenizer.get_vocab()[END_OF_TEXT]
    parameters = list(model.named_parameters())
    muon = Muon(weight for name, weight in parameters if weight.ndim == 2 and "embed" not in name)
    others = [weight for name, weight in parameters if weight.ndim != 2 or "embed" in name]
    adam = torch.optim.AdamW(others, lr=rates.adam_learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    document_rng, batch_rng = random.Random(seed), random.Random(seed)
    total = sum(stage.tokens for stage in config.curriculum)
    step = done = 0
    window: list[tuple[float, float]] = []
    model.train()
    with ProgressBar("pretrain", total, "tokens") as bar:
        for level, stage in enumerate(config.curriculum):
            end = done + stage.tokens
            examples = (encode(tokenizer, turns) for turns in generator.documents(stage, document_rng))
            stream = batches(examples, rates.batch_tokens, rates.pool, padding, batch_rng)
            while done < end:
                batch, rate = next(stream), rate_at(done / total, rates)
                window.append(_backward(model, batch))
                muon.step(rates.muon_learning_rate * rate)
                adam.param_groups[0]["lr"] = rates.adam_learning_rate * rate
                adam.step()
                adam.zero_grad()
                step, done = step + 1, done + batch.tokens
                bar.advance(batch.tokens, f"loss {window[-1][0]:.2f}")
                if step % LOG_EVERY == 0:
                    loss, accuracy = (round(sum(values) / len(window), 5) for values in zip(*window, strict=True))
                    scores = {"loss": loss, "accuracy": accuracy, "rate": round(rate, 5)}
                    yield PretrainStep(step=step, tokens=done, level=level, **scores)
                    window.clear()


def rate_at(progress: float, config: OptimizerConfig) -> float:
    """Return the factor of the learning rates at ``progress`` (0 to 1): a trapezoid from 0 over 1 to 0.1."""
    if progress < config.warmup:
        return progress / config.warmup
    if progress > 1 - config.decay:
        return 1 - 0.9 * (progress - (1 - config.decay)) / config.decay
    return 1.0


@dataclass(frozen=True, slots=True)
class Example:
    """One conversation's tokens; ``trained[i]`` says whether token i is one that the model must predict."""

    tokens: tuple[int, ...]
    trained: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """``inputs_BT`` padded on the right; ``positions_P`` are the flat places whose next token is ``targets_P``."""

    inputs_BT: Tensor
    positions_P: Tensor
    targets_P: Tensor
    tokens: int
    """Number of tokens that are not padding."""


def encode(tokenizer: PreTrainedTokenizerFast, turns: Sequence[Turn]) -> Example:
    """Render and tokenise a conversation; assistant turns are trained from their first token to their end token.

    Conversations with a system prompt have the search tool.
    """
    texts, _ = render_jinja_template(
        [list(turns)],
        tools=[RETRIEVE_TOOL] if turns[0]["role"] == "system" else None,
        chat_template=str(tokenizer.chat_template),
    )
    tokens = tokenizer.encode(texts[0], add_special_tokens=False)
    opening = tokenizer.encode(f"{TURN_START}assistant\n", add_special_tokens=False)
    end, width = tokenizer.convert_tokens_to_ids(TURN_END), len(opening)
    trained, inside = [], False
    for place, token in enumerate(tokens):
        inside = inside or (place >= width and tokens[place - width : place] == opening)
        trained.append(inside)
        inside = inside and token != end
    return Example(tuple(tokens), tuple(trained))


def batches(
    examples: Iterable[Example], batch_tokens: int, pool: int, padding: int, rng: random.Random
) -> Iterator[Batch]:
    """Yield batches of at most ``batch_tokens`` padded tokens (one example at least).

    Every ``pool`` examples are sorted by length and cut into batches, which come in random order: padding stays under
    a few per cent, and a batch holds conversations of one size but of every kind.
    """
    stream = iter(examples)
    while pooled := list(itertools.islice(stream, pool)):
        pooled.sort(key=lambda example: len(example.tokens))
        groups: list[list[Example]] = [[]]
        for example in pooled:
            if groups[-1] and (len(groups[-1]) + 1) * len(example.tokens) > batch_tokens:
                groups.append([])
            groups[-1].append(example)
        rng.shuffle(groups)
        for group in groups:
            yield collate(group, padding)


def collate(examples: Sequence[Example], padding: int) -> Batch:
    """Return one batch of the given examples."""
    width = max(len(example.tokens) for example in examples)
    inputs_BT = torch.full((len(examples), width), padding)
    trained_BT = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        inputs_BT[row, : len(example.tokens)] = torch.tensor(example.tokens)
        trained_BT[row, : len(example.tokens)] = torch.tensor(example.trained)
    places_P = trained_BT.flatten().nonzero().squeeze(1)
    tokens = sum(len(example.tokens) for example in examples)
    return Batch(inputs_BT, places_P - 1, inputs_BT.flatten()[places_P], tokens)


def _backward(model: Qwen3ForCausalLM, batch: Batch) -> tuple[float, float]:
    """Compute the gradients; return the loss and the share of trained tokens that were predicted right."""
    # No attention mask: padding stands on the right, where a causal model cannot see it from any trained token.
    hidden_BTD = model.model(input_ids=batch.inputs_BT, use_cache=False).last_hidden_state
    # Logits of trained positions alone: eight of nine tokens are read, not written.
    logits_PV = model.lm_head(hidden_BTD.flatten(0, 1)[batch.positions_P])
    loss = functional.cross_entropy(logits_PV, batch.targets_P)
    loss.backward()
    return loss.item(), (logits_PV.argmax(-1) == batch.targets_P).float().mean().item()


def orthogonalise(matrices_NRC: Tensor) -> Tensor:
    """Move the singular values of N matrices of R rows and C columns to about 1 (0.7 to 1.2) by Newton-Schulz."""
    if matrices_NRC.size(-2) > matrices_NRC.size(-1):
        return orthogonalise(matrices_NRC.mT).mT
    x = matrices_NRC / (matrices_NRC.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x


class Muon:
    """Optimizer of weight matrices by orthogonalised momentum: every direction of a matrix learns at the same speed.

    Matrices of one shape are stepped together.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        by_shape = itertools.groupby(sorted(parameters, key=lambda p: tuple(p.shape)), key=lambda p: tuple(p.shape))
        self._groups = [list(group) for _, group in by_shape]
        self._momenta_NRC = [torch.zeros(len(group), *group[0].shape) for group in self._groups]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Move every matrix against its (Nesterov) momentum and drop its gradient."""
        for group, momenta in zip(self._groups, self._momenta_NRC, strict=True):
            gradients = torch.stack([parameter.grad for parameter in group if parameter.grad is not None])
            momenta.lerp_(gradients, 1 - _MOMENTUM)
            updates = orthogonalise(gradients.lerp(momenta, _MOMENTUM))
            scale = max(1.0, updates.size(-2) / updates.size(-1)) ** 0.5
            for parameter, update in zip(group, updates, strict=True):
                parameter.sub_(update, alpha=learning_rate * scale)
                parameter.grad = None
