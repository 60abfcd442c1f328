"""Packed linear layers compute what torch's own do."""

from pathlib import Path

import pytest
import torch

from deepsearch_rl.search.encoders.packing import PackedLinear, pack_linear_layers
from deepsearch_rl.search.encoders.transformer import TransformersEncoder
from tests.search.encoders.folders import transformers_config, write_bert

WORDS = ["comet", "lander", "river", "city", "probe"]


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 48), (7, 48), (3, 5, 48), (2, 1, 4, 48)])
def test_a_packed_layer_gives_the_same_numbers(has_bias: bool, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(48, 33, bias=has_bias)
    packed = PackedLinear(layer)
    inputs = torch.randn(shape)
    with torch.inference_mode():
        torch.testing.assert_close(packed(inputs), layer(inputs), rtol=1e-5, atol=1e-5)

    assert torch.equal(packed.weight, layer.weight)


def test_layers_are_packed_wherever_they_are_and_other_kinds_are_left() -> None:
    class Own(torch.nn.Linear):
        """Computes something else, perhaps."""

    inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), Own(4, 4))
    model = torch.nn.Sequential(inner, torch.nn.Linear(4, 2, dtype=torch.bfloat16))
    pack_linear_layers(model)
    assert [type(module) for module in inner] == [PackedLinear, torch.nn.LayerNorm, Own]
    assert type(model[1]) is torch.nn.Linear


def test_an_encoder_gives_the_same_vectors_on_any_number_of_threads(tmp_path: Path) -> None:
    folder = write_bert(tmp_path)
    texts: list[str] = []
    for row in range(60):
        texts.append(" ".join(WORDS[(row + word) % len(WORDS)] for word in range(1 + row % 8)))

    config = transformers_config(folder, batch_tokens=None)
    alone, together, again = (
        TransformersEncoder(config.model_copy(update={"threads": threads})).encode(texts, "query")
        for threads in (1, 3, 3)
    )
    assert together == pytest.approx(alone, abs=1e-5)
    assert together.tobytes() == again.tobytes()
