import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from deepsearch_rl.chat.prompts import load_prompt
from deepsearch_rl.toy.articles import Turn
from deepsearch_rl.toy.documents import GIVEN
from deepsearch_rl.toy.muon import Muon, orthogonalise
from deepsearch_rl.toy.pretrained_model import build_model
from deepsearch_rl.toy.pretraining import (
    IGNORED,
    PretrainConfig,
    TrainingExample,
    backward_in_threads,
    batch_parts,
    batches,
    encode,
    pretrain,
    require_finite_step,
)
from deepsearch_rl.train.finite import NotFiniteError

CALL = {"function": {"name": "retrieve", "arguments": '{"query": "director of Silent Harbor"}'}}
TURNS: tuple[Turn, ...] = (
    {"role": "system", "content": load_prompt("tiny")},
    {"role": "user", "content": "Who is the director of Silent Harbor?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "[1] Silent Harbor\nThe director of Silent Harbor was Ada Abbott."},
    {"role": "assistant", "content": "<answer> Ada Abbott</answer>"},
)


def example(tokens: list[int], trained_from: int = 0) -> TrainingExample:
    return TrainingExample(
        torch.tensor(tokens), torch.tensor([IGNORED] * trained_from + tokens[trained_from:])
    )


def test_only_assistant_turns_are_trained_up_to_their_end_token(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokens, labels = encode(tokenizer, TURNS)
    trained = tokenizer.decode(tokens[labels == tokens])
    call = '<tool_call>\n{"name": "retrieve", "arguments": {"query": "director of Silent Harbor"}}\n</tool_call>'
    assert trained == f"{call}<|im_end|><answer> Ada Abbott</answer><|im_end|>"
    assert set(labels[labels != tokens].tolist()) == {IGNORED}


def test_the_loss_of_a_batch_is_that_of_transformers_on_its_trained_tokens(
    tokenizer: PreTrainedTokenizerFast, pretrain_config: PretrainConfig
) -> None:
    model = build_model(pretrain_config.model, tokenizer, seed=0)
    texts = [example([5, 6, 7, 8], trained_from=2), example([9, 10], trained_from=1)]
    losses = [
        model(input_ids=tokens[None], labels=labels[None]).loss.item() for tokens, labels in texts
    ]
    with ThreadPoolExecutor() as pool:
        loss = backward_in_threads(model, batch_parts(texts, 1), pool).loss
        alone = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        in_two = backward_in_threads(model, batch_parts(texts, 2), pool).loss
    assert loss == pytest.approx((2 * losses[0] + losses[1]) / 3, rel=1e-5)
    assert in_two == pytest.approx(loss, rel=1e-5)
    for gradient, parameter in zip(alone, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_gradients_of_two_threads_have_the_same_bytes_every_time(
    tokenizer: PreTrainedTokenizerFast, pretrain_config: PretrainConfig
) -> None:
    model = build_model(pretrain_config.model, tokenizer, seed=0)
    rng = random.Random(0)
    texts = [
        example([rng.randrange(len(tokenizer)) for _ in range(60)], trained_from=20)
        for _ in range(7)
    ]
    gradients = []
    for _ in range(5):
        model.zero_grad()
        with ThreadPoolExecutor() as pool:
            backward_in_threads(model, batch_parts(texts, 2), pool)
        gradients.append([parameter.grad for parameter in model.parameters()])
    for other in gradients[1:]:
        assert all(
            torch.equal(first, second) for first, second in zip(gradients[0], other, strict=True)
        )


@pytest.mark.parametrize(
    "optimizer", [{"adam_learning_rate": 1e30}, {"muon_learning_rate": 1e30}], ids=str
)
def test_pretraining_that_diverges_stops_at_the_step_by_name_and_saves_nothing(
    pretrain_config: PretrainConfig, optimizer: dict[str, float], tmp_path: Path
) -> None:
    rates = pretrain_config.optimizer.model_copy(update={**optimizer, "warmup": 0.0})
    config = pretrain_config.model_copy(update={"optimizer": rates})
    with pytest.raises(
        NotFiniteError, match=r"pretraining diverged at step \d+: its loss is .* Nothing was saved"
    ):
        pretrain(config, load_prompt("tiny"), 0, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"train_log.jsonl"}


def test_a_gradient_that_is_no_number_is_named_where_the_loss_is_finite() -> None:
    parameters = [(name, torch.nn.Parameter(torch.ones(2))) for name in ("first", "second")]
    for _, weight in parameters:
        weight.grad = torch.ones(2)
    require_finite_step(1, 0.5, parameters)
    parameters[1][1].grad = torch.tensor([1.0, float("inf")])
    with pytest.raises(NotFiniteError, match=r"at step 7: its loss is 0\.5, .* is that of second"):
        require_finite_step(7, 0.5, parameters)


def test_a_given_turn_is_read_and_not_trained(tokenizer: PreTrainedTokenizerFast) -> None:
    turns = [*TURNS[:2], {**TURNS[2], GIVEN: True}, *TURNS[3:]]
    tokens, labels = encode(tokenizer, turns)
    assert torch.equal(tokens, encode(tokenizer, TURNS).tokens_T)
    assert tokenizer.decode(tokens[labels == tokens]) == "<answer> Ada Abbott</answer><|im_end|>"


def test_batches_hold_every_example_once_within_the_token_limit() -> None:
    rng = random.Random(0)
    examples = [example([number] * rng.randint(2, 60)) for number in range(1, 101)]
    made = list(batches(iter(examples), batch_tokens=128, pool=40, rng=rng))
    assert sorted(text.tokens_T[0].item() for batch in made for text in batch) == list(
        range(1, 101)
    )
    padded = [len(batch) * max(len(text.tokens_T) for text in batch) for batch in made]
    assert max(padded) <= 128
    assert sum(len(text.tokens_T) for text in examples) > 0.9 * sum(padded)


def test_an_example_longer_than_a_batch_makes_a_batch_of_its_own() -> None:
    made = list(
        batches(
            iter([example([1] * 50), example([2] * 3)]),
            batch_tokens=16,
            pool=2,
            rng=random.Random(0),
        )
    )
    assert sorted(len(text.tokens_T) for (text,) in made) == [3, 50]


@pytest.mark.parametrize("shape", [(2, 24, 36), (3, 8, 40), (3, 40, 8)])
def test_singular_values_move_close_to_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    assert values.min() > 0.3
    assert values.max() < 1.3


@pytest.mark.parametrize("passes", [1, 2])
def test_steps_are_those_of_torch_muon_up_to_its_bfloat16(passes: int) -> None:
    torch.manual_seed(0)
    names = ("layers.0.up", "layers.0.down", "layers.1.up")
    shapes = ((16, 32), (32, 16), (16, 32))
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [torch.nn.Parameter(weight.detach().clone()) for weight in ours]
    reference = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.0)

    with ThreadPoolExecutor() as pool:
        muon = Muon(list(zip(names, ours, strict=True)), 0.95, pool)
        for _ in range(3):
            gradients = [torch.randn(shape) for shape in shapes]
            # A loss with these gradients, in as many backward passes as there are parts of a batch
            muon.expect(passes)
            for _ in range(passes):
                products = [
                    (weight * gradient).sum()
                    for weight, gradient in zip(ours, gradients, strict=True)
                ]
                (sum(products, torch.zeros(())) / passes).backward()

            for other, gradient in zip(theirs, gradients, strict=True):
                other.grad = gradient
            muon.step(0.02)
            reference.step()

    for weight, other in zip(ours, theirs, strict=True):
        assert torch.allclose(weight, other, atol=2e-3)
        assert weight.grad is None


def test_the_model_has_the_same_bytes_with_one_thread_and_a_batch_of_one_in_two(
    pretrain_config: PretrainConfig, tmp_path: Path
) -> None:
    """With one conversation a batch, the second thread computes updates during the backward pass."""
    models: list[bytes] = []
    for threads in (1, 2):
        rates = pretrain_config.optimizer.model_copy(
            update={"batch_tokens": 64, "threads": threads}
        )
        folder = tmp_path / str(threads)
        folder.mkdir()
        config = pretrain_config.model_copy(update={"optimizer": rates})
        pretrain(config, load_prompt("tiny"), 0, folder)
        models.append((folder / "model.safetensors").read_bytes())

    assert models[0] == models[1]
