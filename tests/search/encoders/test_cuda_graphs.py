"""Batches in the shapes of CUDA graphs, and the graphs themselves where there is a GPU."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from deepsearch_rl.search.encoders import cuda_graphs
from deepsearch_rl.search.encoders.cuda_graphs import (
    GRAPH_LENGTHS,
    GRAPH_TOKENS,
    WARM_UPS,
    GraphedModel,
    graph_shape,
    pad_features,
)
from deepsearch_rl.search.encoders.transformer import TransformersEncoder
from tests.search.encoders.folders import (
    transformers_config,
    write_qwen3_embedding,
    write_sentence_bert,
)

TEXTS = ["comet", "a lander on a river on a comet on a river", "river", "the probes on the city"]

Write = Callable[[Path], Path]
MODELS = [
    (write_sentence_bert, "right"),
    (write_qwen3_embedding, "right"),
    (write_qwen3_embedding, "left"),
]


def write_padding(write: Write, folder: Path, side: str) -> Path:
    """A folder whose tokenizer pads on one side."""
    path = write(folder) / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "padding_side": side}))
    return folder


@pytest.mark.parametrize(
    ("texts", "tokens", "shape"),
    [
        (1, 3, (1, 16)),
        (1, 17, (1, 32)),
        (3, 16, (4, 16)),
        (64, 40, (64, 64)),
        (65, 64, (128, 64)),
        # No longer than what the model reads, and no more tokens than a graph has
        (2, 70, (2, 100)),
        (2, 101, None),
        (129, 64, None),
        (1, 129, None),
    ],
)
def test_a_batch_is_padded_to_the_next_of_a_few_shapes(
    texts: int, tokens: int, shape: tuple[int, int] | None
) -> None:
    assert graph_shape(texts, tokens, max_tokens=100) == shape


@pytest.mark.parametrize("tokens", [1, 16, 17, 64, 100, max(GRAPH_LENGTHS)])
def test_a_shape_holds_the_batch_and_is_never_larger_than_a_graph(tokens: int) -> None:
    for texts in range(1, 600):
        shape = graph_shape(texts, tokens, max_tokens=512)
        if shape is not None:
            assert shape[0] >= texts
            assert shape[1] >= tokens
            assert shape[0] * shape[1] <= GRAPH_TOKENS


@pytest.mark.parametrize(("write", "side"), MODELS)
def test_padding_to_a_shape_changes_no_vector(write: Write, side: str, tmp_path: Path) -> None:
    folder = write_padding(write, tmp_path, side)
    model = SentenceTransformer(str(folder), device="cpu").eval()
    features = model.preprocess(TEXTS, prompt="query: ")
    padded = pad_features(features, (8, 32), pad_id=0)

    with torch.inference_mode():
        vectors_ND = model(dict(features))["sentence_embedding"]
        padded_ND = model(dict(padded))["sentence_embedding"]

    # The first text is shorter than the second
    assert features["attention_mask"][0, 0] == (side == "right")
    assert padded["input_ids"].shape == (8, 32)
    assert padded_ND[: len(TEXTS)].numpy() == pytest.approx(vectors_ND.numpy(), abs=1e-5)
    assert padded_ND.isfinite().all()


def test_padding_takes_the_models_own_number_and_leaves_what_is_no_tensor() -> None:
    ids_BT = torch.tensor([[5, 6], [7, 1]])
    mask_BT = torch.tensor([[1, 1], [1, 0]])
    features = {"input_ids": ids_BT, "attention_mask": mask_BT, "prompt_length": 1}

    padded = pad_features(features, (4, 3), pad_id=1)

    assert padded["input_ids"].tolist() == [[5, 6, 1], [7, 1, 1], [5, 6, 1], [5, 6, 1]]
    assert padded["attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0]]
    assert padded["prompt_length"] == 1


# --- On a GPU ---


def encode_plainly(encoder: TransformersEncoder, texts: list[str]) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graphs, "GRAPH_TOKENS", 0)
        return encoder.encode(texts, "query")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("write", "side"), MODELS)
def test_recorded_passes_of_any_size_give_the_vectors_of_plain_ones(
    write: Write, side: str, dtype: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_padding(write, tmp_path, side)
    # Each folder says how it pools
    config = transformers_config(
        folder, device="cuda", dtype=dtype, max_tokens=60, batch_tokens=None, pooling=None
    )
    encoder = TransformersEncoder(config)
    noise = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2}[dtype]

    for size in (1, 2, 3, 5, 8, 40, 7, 1):
        texts = [f"{text} {'on a river ' * (size % 5)}" for text in (TEXTS * size)[:size]]
        expected_ND = encode_plainly(encoder, texts)
        # When the shape is recorded, and from the recording
        for _ in range(2):
            assert encoder.encode(texts, "query") == pytest.approx(expected_ND, abs=noise)

    assert "cannot be recorded" not in caplog.text


@pytest.fixture
def on_gpu(tmp_path: Path) -> TransformersEncoder:
    folder = write_sentence_bert(tmp_path)
    return TransformersEncoder(transformers_config(folder, device="cuda", max_tokens=60))


@pytest.mark.gpu
def test_a_recording_reads_each_batch_anew(on_gpu: TransformersEncoder) -> None:
    comet_ND, river_ND, again_ND = (
        on_gpu.encode([text], "query") for text in ("comet", "river", "comet")
    )
    assert not np.allclose(comet_ND, river_ND, atol=1e-2)
    assert np.array_equal(comet_ND, again_ND)


@pytest.mark.gpu
def test_threads_that_encode_at_once_get_their_own_vectors(tmp_path: Path) -> None:
    config = transformers_config(write_sentence_bert(tmp_path), device="cuda", max_tokens=60)
    batches = [(TEXTS * size)[:size] for size in (1, 2, 3, 6, 12)]
    other = TransformersEncoder(config)
    expected = [encode_plainly(other, batch) for batch in batches]
    encoders = [other, TransformersEncoder(config)]

    def encode(number: int) -> np.ndarray:
        # Both encoders record while others run
        return encoders[number % 2].encode(batches[number % len(batches)], "query")

    with ThreadPoolExecutor(8) as pool:
        for number, vectors_ND in enumerate(pool.map(encode, range(400))):
            assert vectors_ND == pytest.approx(expected[number % len(batches)], abs=1e-4)


class Sums:
    """A model whose vectors are sums, and how often it was asked in Python."""

    def __init__(self) -> None:
        self.passes = 0

    def __call__(self, features: dict[str, Any]) -> torch.Tensor:
        self.passes += 1
        return features["input_ids"].cuda().sum(dim=1, keepdim=True).float()


def batch_of(texts: int, tokens: int) -> dict[str, Any]:
    ids_BT = torch.arange(texts * tokens).reshape(texts, tokens)
    return {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT)}


@pytest.mark.gpu
def test_a_shape_is_recorded_once_and_a_large_batch_never() -> None:
    sums = Sums()
    model = GraphedModel(sums, max_tokens=512, pad_id=0)

    for texts in (3, 4, 3):
        features = batch_of(texts, 9)
        assert model(features).tolist() == features["input_ids"].sum(1, keepdim=True).tolist()
    assert sums.passes == WARM_UPS + 1

    for _ in range(2):
        model(batch_of(2, max(GRAPH_LENGTHS) + 1))
    assert sums.passes == WARM_UPS + 3


def divide_by_sum(features: dict[str, Any]) -> torch.Tensor:
    """A pass that asks the GPU for a number in its middle."""
    mask_BT = features["attention_mask"].cuda().float()
    return mask_BT / mask_BT.sum().item()


@pytest.mark.gpu
def test_a_model_that_cannot_be_recorded_runs_as_it_is_and_leaves_the_others_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waiting = GraphedModel(divide_by_sum, max_tokens=32, pad_id=0)
    for _ in range(2):
        assert waiting(batch_of(2, 5)).numpy() == pytest.approx(np.full((2, 5), 0.1))
    assert caplog.text.count("cannot be recorded") == 1

    # Memory can be freed, and another model recorded
    torch.cuda.empty_cache()
    sums = Sums()
    model = GraphedModel(sums, max_tokens=32, pad_id=0)
    for _ in range(2):
        assert model(batch_of(1, 3)).tolist() == [[3.0]]
    assert sums.passes == WARM_UPS + 1
    assert caplog.text.count("cannot be recorded") == 1
