"""Hidden states of some positions are those that transformers computes of all."""

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen3Config, Qwen3Model

from deepsearch_rl.toy.hidden_states import hidden_states


def test_hidden_states_and_gradients_are_those_of_the_whole_model() -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=50,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        attention_bias=True,
    )
    decoder = Qwen3Model(config)
    rows = [torch.randint(50, (length,)) for length in (17, 5, 11)]
    tokens_BT = pad_sequence(rows, batch_first=True)
    wanted_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
    # The first and the last position of a row, another number in each row, and none in one
    wanted_BT[0, [0, 3, 4, 16]] = True
    wanted_BT[2, [2, 10]] = True

    whole_PD = decoder(tokens_BT, use_cache=False).last_hidden_state[wanted_BT]
    some_PD = hidden_states(decoder, tokens_BT, wanted_BT)
    torch.testing.assert_close(some_PD, whole_PD, rtol=1e-5, atol=1e-6)

    weights_PD = torch.randn_like(whole_PD)
    gradients = [
        torch.autograd.grad((hidden_PD * weights_PD).sum(), list(decoder.parameters()))
        for hidden_PD in (some_PD, whole_PD)
    ]
    for some, whole in zip(*gradients, strict=True):
        torch.testing.assert_close(some, whole, rtol=1e-4, atol=1e-5)
