import random

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from deepsearch_rl.agent.prompts import load_prompt
from deepsearch_rl.training.pretrain.documents import Turn
from deepsearch_rl.training.pretrain.trainer import Example, Muon, batches, collate, encode, orthogonalise

CALL = {"function": {"name": "retrieve", "arguments": '{"query": "director of Silent Harbor"}'}}
TURNS: tuple[Turn, ...] = (
    {"role": "system", "content": load_prompt("tiny")},
    {"role": "user", "content": "Who is the director of Silent Harbor?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "[1] Silent Harbor\nThe director of Silent Harbor was Ada Abbott."},
    {"role": "assistant", "content": "<answer> Ada Abbott</answer>"},
)


def test_only_assistant_turns_are_trained_up_to_their_end_token(tokenizer: PreTrainedTokenizerFast) -> None:
    example = encode(tokenizer, TURNS)
    trained = tokenizer.decode([token for token, on in zip(example.tokens, example.trained, strict=True) if on])
    call = '<tool_call>\n{"name": "retrieve", "arguments": {"query": "director of Silent Harbor"}}\n</tool_call>'
    assert trained == f"{call}<|im_end|><answer> Ada Abbott</answer><|im_end|>"


def test_a_batch_predicts_each_trained_token_from_the_place_before_it() -> None:
    first = Example((5, 6, 7, 8), (False, False, True, True))
    second = Example((9, 10), (False, True))
    batch = collate([first, second], padding=0)
    assert batch.inputs_BT.tolist() == [[5, 6, 7, 8], [9, 10, 0, 0]]
    assert batch.targets_P.tolist() == [7, 8, 10]
    assert batch.inputs_BT.flatten()[batch.positions_P].tolist() == [6, 7, 9]
    assert batch.tokens == 6


def test_batches_hold_every_example_once_within_the_token_limit() -> None:
    rng = random.Random(0)
    examples = [Example((number,) * rng.randint(2, 60), (False,) + (True,) * 0) for number in range(1, 101)]
    examples = [Example(example.tokens, (True,) * len(example.tokens)) for example in examples]
    made = list(batches(examples, batch_tokens=128, pool=40, padding=0, rng=rng))
    assert sorted(row[0].item() for batch in made for row in batch.inputs_BT) == list(range(1, 101))
    assert all(batch.inputs_BT.numel() <= 128 for batch in made)
    padded = sum(batch.inputs_BT.numel() for batch in made)
    assert sum(batch.tokens for batch in made) > 0.9 * padded


def test_an_example_longer_than_a_batch_makes_a_batch_of_its_own() -> None:
    long, short = Example((1,) * 50, (True,) * 50), Example((2,) * 3, (True,) * 3)
    made = list(batches([long, short], batch_tokens=16, pool=2, padding=0, rng=random.Random(0)))
    assert sorted(batch.tokens for batch in made) == [3, 50]


@pytest.mark.parametrize("shape", [(2, 24, 36), (3, 8, 40), (3, 40, 8)])
def test_singular_values_move_close_to_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_steps_are_those_of_torch_muon_up_to_its_bfloat16() -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((16, 32), (32, 16), (16, 32))]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    muon, reference = Muon(ours), torch.optim.Muon(theirs, lr=0.02, weight_decay=0.0)
    for _ in range(3):
        for parameter, other in zip(ours, theirs, strict=True):
            parameter.grad = torch.randn_like(parameter)
            other.grad = parameter.grad.clone()
        muon.step(0.02)
        reference.step()
    for parameter, other in zip(ours, theirs, strict=True):
        assert torch.allclose(parameter, other, atol=2e-3)
        assert parameter.grad is None
