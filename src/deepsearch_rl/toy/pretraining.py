"""Training of the base model on generated conversations: Muon on matrices, AdamW on the rest, a curriculum.

Batches are right-padded conversations of similar lengths, with the loss only on assistant tokens.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, cast

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.chat.prompts import (
    MANIFEST,
    TRAINED_WITH,
    PromptDigests,
    served_with,
    tools_text,
)
from deepsearch_rl.core.files import AppendLog, write_json
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import Record
from deepsearch_rl.toy.articles import Turn
from deepsearch_rl.toy.curriculum import CurriculumStage, DocumentConfig
from deepsearch_rl.toy.documents import GIVEN, DocumentGenerator
from deepsearch_rl.toy.hidden_states import hidden_states
from deepsearch_rl.toy.muon import Muon
from deepsearch_rl.toy.pretrained_model import (
    TURN_END,
    TURN_START,
    ModelShape,
    build_model,
    world_tokenizer,
)
from deepsearch_rl.train.curves import record_step
from deepsearch_rl.train.finite import require_finite_update

TRAIN_LOG = "train_log.jsonl"
# Steps between two lines of the training log
LOG_EVERY = 25
# Label of a token without loss, as transformers has it
IGNORED = -100

_Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


class PretrainOptimizerConfig(Record):
    """How the weights are moved."""

    muon_learning_rate: float = Field(gt=0, description="of matrices")
    muon_momentum: _Share = Field(
        description="share of the old direction that a step of Muon keeps"
    )
    adam_learning_rate: float = Field(gt=0, description="of embeddings and norms")
    adam_betas: tuple[_Share, _Share] = Field(
        description="shares of the old means of gradients and of their squares that a step of Adam keeps"
    )
    adam_epsilon: float = Field(
        gt=0, description="added to the root of squares; large: words not in a batch stay put"
    )
    batch_tokens: int = Field(
        ge=64, description="tokens of a batch, padding included; twice as many need twice the rates"
    )
    threads: int = Field(
        ge=1,
        le=2,
        description="that share a batch; the model's bytes do not depend on which ends first",
    )
    pool: int = Field(
        ge=1, description="documents that are sorted by length before they are cut into batches"
    )
    warmup: float = Field(
        ge=0, le=1, description="share of training over which the rates rise from zero"
    )
    decay: float = Field(
        ge=0, le=1, description="share of training over which they fall to a tenth, at the end"
    )


class PretrainConfig(Record):
    """A model trained from scratch on generated conversations."""

    subwords: int = Field(
        ge=256, description="tokens learned by BPE, the 256 bytes included; whole words come on top"
    )
    model: ModelShape
    documents: DocumentConfig
    curriculum: tuple[CurriculumStage, ...] = Field(min_length=1, description="easiest stage first")
    optimizer: PretrainOptimizerConfig


class PretrainStep(Record):
    """One line of ``train_log.jsonl``: means over the steps since the line before."""

    step: int
    tokens: int
    level: int = Field(description="number of the curriculum stage")
    loss: float
    accuracy: float
    rate: float


def pretrain(config: PretrainConfig, prompt: str, seed: int, folder: Path) -> None:
    """Train tokenizer and model from scratch and save both to an existing empty folder.

    ``prompt`` is the text that documents with a system block open with. The training log is beside
    the model, and a manifest that says what it was trained with. Raises NotFiniteError at a loss or
    a gradient that is NaN or infinite.
    """
    tokenizer = world_tokenizer(prompt, config.subwords, config.model.context_tokens)
    model = build_model(config.model, tokenizer, seed).train()
    rates = config.optimizer
    parameters = list(model.named_parameters())
    pool = ThreadPoolExecutor(rates.threads)
    muon, adam = _optimizers(parameters, rates, pool)
    total = sum(stage.tokens for stage in config.curriculum)
    done = 0
    window: list[Scores] = []
    bar = ProgressBar("pretrain", total, "tokens")

    with AppendLog(folder / TRAIN_LOG) as log, bar, pool:
        for step, (level, examples) in enumerate(_curriculum(config, prompt, tokenizer, seed), 1):
            parts = batch_parts(examples, rates.threads)
            muon.expect(len(parts))
            window.append(backward_in_threads(model, parts, pool))
            # Before the weights are moved: what was trained until here stays good
            require_finite_step(step, window[-1].loss, parameters)
            # The rates rise from 0 to 1, stay there and fall to 0.1
            progress = done / total
            rate = progress / rates.warmup if progress < rates.warmup else 1.0
            if progress > 1 - rates.decay:
                rate = 1 - 0.9 * (progress - (1 - rates.decay)) / rates.decay
            muon.step(rates.muon_learning_rate * rate)
            adam.param_groups[0]["lr"] = rates.adam_learning_rate * rate
            adam.step()
            adam.zero_grad()
            tokens = sum(len(example.tokens_T) for example in examples)
            done += tokens
            bar.advance(tokens, f"loss {window[-1].loss:.2f}")

            if step % LOG_EVERY == 0:
                losses, accuracies = zip(*window, strict=True)
                line = PretrainStep(
                    step=step,
                    tokens=done,
                    level=level,
                    loss=round(sum(losses) / len(window), 5),
                    accuracy=round(sum(accuracies) / len(window), 5),
                    rate=round(rate, 5),
                )
                log.append(line)
                record_step(line.model_dump())
                window.clear()

    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    trained_with = served_with(folder, PromptDigests.of(prompt, tools_text(RETRIEVE_TOOL)))
    write_json(folder / MANIFEST, {TRAINED_WITH: trained_with.model_dump()})


def _optimizers(
    parameters: Sequence[tuple[str, torch.nn.Parameter]],
    rates: PretrainOptimizerConfig,
    pool: Executor,
) -> tuple[Muon, torch.optim.AdamW]:
    """Return Muon for the matrices, and AdamW for embeddings and norms."""
    matrices: list[tuple[str, torch.nn.Parameter]] = []
    others: list[torch.nn.Parameter] = []
    for name, weight in parameters:
        # A row of the embeddings is a word's own: Muon would mix the words
        if weight.ndim == 2 and "embed" not in name:
            matrices.append((name, weight))
        else:
            others.append(weight)

    adam = torch.optim.AdamW(
        others,
        rates.adam_learning_rate,
        betas=rates.adam_betas,
        eps=rates.adam_epsilon,
        weight_decay=0.0,
        fused=True,
    )
    return Muon(matrices, rates.muon_momentum, pool), adam


def require_finite_step(
    step: int, loss: float, parameters: Sequence[tuple[str, torch.nn.Parameter]]
) -> None:
    """Raise NotFiniteError, before a step is applied, if its loss or a gradient is NaN or infinite."""
    gradients = [weight.grad for _, weight in parameters if weight.grad is not None]
    require_finite_update(
        f"pretraining diverged at step {step}",
        loss,
        torch.nn.utils.get_total_norm(gradients),
        parameters,
        "Nothing was saved. Lower muon_learning_rate or adam_learning_rate of "
        "prepare_model.pretrain.optimizer.",
    )


class Scores(NamedTuple):
    """Mean loss of a batch and the share of its trained tokens that were predicted right."""

    loss: float
    accuracy: float


class TrainingExample(NamedTuple):
    """One conversation; ``labels_T`` are its tokens where the model must predict them, elsewhere ``IGNORED``."""

    tokens_T: Tensor
    labels_T: Tensor


def _curriculum(
    config: PretrainConfig, prompt: str, tokenizer: PreTrainedTokenizerFast, seed: int
) -> Iterator[tuple[int, list[TrainingExample]]]:
    """Yield batches, each with the number of its stage, until every stage has had its tokens."""
    generator = DocumentGenerator(prompt, config.documents)
    document_rng = random.Random(seed)
    batch_rng = random.Random(seed)

    for level, stage in enumerate(config.curriculum):
        examples = (encode(tokenizer, turns) for turns in generator.documents(stage, document_rng))
        stream = batches(examples, config.optimizer.batch_tokens, config.optimizer.pool, batch_rng)
        left = stage.tokens

        while left > 0:
            batch = next(stream)
            yield level, batch
            left -= sum(len(example.tokens_T) for example in batch)


def encode(tokenizer: PreTrainedTokenizerFast, turns: Sequence[Turn]) -> TrainingExample:
    """Render and tokenise a conversation; assistant turns are trained from their first token to their end token.

    Conversations with a system prompt have the search tool. A turn that is ``GIVEN`` is not
    trained.
    """
    conversation: list[Any] = list(turns)
    tools: list[Any] | None = [RETRIEVE_TOOL] if turns[0]["role"] == "system" else None
    tokens = cast(
        list[int], tokenizer.apply_chat_template(conversation, tools=tools, return_dict=False)
    )
    # Turns are found in the tokens: the template says nowhere which message a token is of
    opening = tokenizer.encode(f"{TURN_START}assistant\n", add_special_tokens=False)
    end = tokenizer.convert_tokens_to_ids(TURN_END)
    assistant_turns = iter([turn for turn in turns if turn["role"] == "assistant"])
    labels = []
    inside = False
    learn = False

    for place, token in enumerate(tokens):
        if not inside and tokens[place - len(opening) : place] == opening:
            inside = True
            learn = not next(assistant_turns).get(GIVEN)

        labels.append(token if inside and learn else IGNORED)
        inside = inside and token != end

    return TrainingExample(torch.tensor(tokens), torch.tensor(labels))


def batches(
    examples: Iterator[TrainingExample], batch_tokens: int, pool: int, rng: random.Random
) -> Iterator[list[TrainingExample]]:
    """Yield batches of at most ``batch_tokens`` padded tokens (one example at least).

    Every ``pool`` examples are sorted by length and cut into batches, which come in random order:
    padding stays under a few per cent, and a batch holds conversations of one size but of every
    kind.
    """
    while pooled := list(itertools.islice(examples, pool)):
        pooled.sort(key=lambda example: len(example.tokens_T))
        groups: list[list[TrainingExample]] = [[]]
        for example in pooled:
            # The longest of a batch comes last, and all others are padded to it
            if groups[-1] and (len(groups[-1]) + 1) * len(example.tokens_T) > batch_tokens:
                groups.append([])
            groups[-1].append(example)

        rng.shuffle(groups)
        yield from groups


def backward(
    model: Qwen3ForCausalLM, examples: Sequence[TrainingExample], trained_tokens: int
) -> tuple[float, int]:
    """Add a part's gradients to those of its batch, which trains ``trained_tokens``.

    Return the part's share of the batch's mean loss, and how many trained tokens were predicted
    right.
    """
    tokens, labels = zip(*examples, strict=True)
    inputs_BT = pad_sequence(list(tokens), batch_first=True)
    labels_BT = pad_sequence(list(labels), batch_first=True, padding_value=IGNORED)
    # A label belongs to the position before it
    next_BT = functional.pad(labels_BT[:, 1:], (0, 1), value=IGNORED)
    is_trained_BT = next_BT != IGNORED
    logits_PV = model.lm_head(hidden_states(model.model, inputs_BT, is_trained_BT))
    targets_P = next_BT[is_trained_BT]
    loss = functional.cross_entropy(logits_PV, targets_P, reduction="sum") / trained_tokens
    loss.backward()
    return loss.item(), int((logits_PV.argmax(-1) == targets_P).sum())


def batch_parts(
    examples: Sequence[TrainingExample], threads: int
) -> list[Sequence[TrainingExample]]:
    """Return a batch in a part for each thread; a batch of one has one part."""
    # Every second example, so that both threads have long and short ones
    return [examples[first::threads] for first in range(min(threads, len(examples)))]


def backward_in_threads(
    model: Qwen3ForCausalLM, parts: Sequence[Sequence[TrainingExample]], pool: Executor
) -> Scores:
    """Compute a batch's gradients, each part in a thread; return the loss and the share of right predictions."""
    trained_tokens = 0
    for example in itertools.chain.from_iterable(parts):
        trained_tokens += int((example.labels_T != IGNORED).sum())

    results = pool.map(lambda part: backward(model, part, trained_tokens), parts)
    losses, right = zip(*results, strict=True)
    return Scores(sum(losses), sum(right) / trained_tokens)
