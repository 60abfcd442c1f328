"""An answer and its log-probabilities are the same bytes whatever the engine computes beside them or before them."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from deepsearch_rl.serve.engine import Engine, Generation, SamplingParams
from deepsearch_rl.serve.packing import ATTENTION
from deepsearch_rl.serve.rounding import CANDIDATES, rounds_alike
from tests.conftest import ROOT

VOCABULARY, CONTEXT_TOKENS = 647, 700
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
Request = tuple[list[int], SamplingParams]


@cache
def random_model() -> PreTrainedModel:
    """Return an untrained model with the shapes of the tiny profile's."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=256,
        initializer_range=0.15,
        eos_token_id=3,
    )
    return Qwen3ForCausalLM(config).eval()


@contextmanager
def engine(slots: int) -> Iterator[Engine]:
    engine = Engine(random_model(), slots, CONTEXT_TOKENS)
    yield engine
    engine.close()


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(4, VOCABULARY) for _ in range(count)]


def first_turns(count: int) -> list[Request]:
    """Return prompts of 1 to 560 tokens; two thirds share a beginning, and some are equal but for their seeds."""
    rng = random.Random(0)
    beginning = tokens(rng, 90)
    prompts = [
        beginning * bool(number % 3) + tokens(rng, rng.choice([1, 2, 5, 17, 60, 200, 470]))
        for number in range(count)
    ]
    prompts[-3:] = [prompts[0]] * 3
    return [
        (prompt, SamplingParams(rng.choice([0.0, 0.7, 1.0]), rng.randrange(1, 20), seed))
        for seed, prompt in enumerate(prompts)
    ]


def second_turns(requests: list[Request], answers: list[Generation]) -> list[Request]:
    """Return the conversations with a passage after each answer."""
    rng = random.Random(1)
    return [
        ([*prompt, *answer.token_ids, *tokens(rng, rng.randrange(1, 40))], sampling)
        for (prompt, sampling), answer in zip(requests, answers, strict=True)
    ]


def alone(requests: list[Request]) -> list[Generation]:
    """Return the answers of an engine that computes one request at a time, each from its first token."""
    answers = []
    with engine(slots=2) as lonely:
        for prompt, sampling in requests:
            lonely.forget()
            answers.append(lonely.generate(prompt, sampling).result(timeout=300))
    return answers


def together(crowd: Engine, requests: list[Request], order_seed: int) -> list[Generation]:
    """Return the answers to requests that arrive at once in a random order."""
    order = random.Random(order_seed).sample(range(len(requests)), len(requests))
    futures = {number: crowd.generate(*requests[number]) for number in order}
    return [futures[number].result(timeout=300) for number in range(len(requests))]


def check_invariance(count: int, scarce_slots: tuple[int, ...] = (16, 6)) -> None:
    """Compare answers of two turns computed alone, among all others, and where slots are short and are reused."""
    first = first_turns(count)
    expected_first = alone(first)
    second = second_turns(first, expected_first)
    expected_second = alone(second)
    for slots in (2 * count, *scarce_slots):
        with engine(slots) as crowd:
            assert together(crowd, first, slots) == expected_first
            assert together(crowd, second, slots) == expected_second
            assert together(crowd, first, slots + 1) == expected_first


@pytest.mark.slow
def test_answers_are_the_same_bytes_alone_and_among_others() -> None:
    check_invariance(12, scarce_slots=(5,))


@pytest.mark.slow
def test_a_request_that_joins_late_changes_nothing() -> None:
    first, late = first_turns(12)[:6], first_turns(12)[6:]
    with engine(slots=24) as crowd:
        early = [crowd.generate(*request) for request in first]
        early[0].result(timeout=300)
        answers = together(crowd, late, 0)
        assert [future.result(timeout=300) for future in early] + answers == alone(first + late)


@pytest.mark.slow
def test_sizes_that_round_alike_are_found_by_trying_them() -> None:
    model = random_model()
    model.config._attn_implementation = ATTENTION
    assert any(rounds_alike(model, shapes) for shapes in CANDIDATES)
    # A row alone is a matrix times a vector
    assert not rounds_alike(model, CANDIDATES[0]._replace(tokens=1))
    # Tried with the first layers alone, which leaves the model as it was
    assert model.config.num_hidden_layers == len(model.model.layers)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "environment",
    [{"OMP_NUM_THREADS": "1", **AVX2}, {"OMP_NUM_THREADS": "1"}],
    ids=["avx2", "native"],
)
def test_answers_are_the_same_bytes_for_other_instructions(environment: dict[str, str]) -> None:
    script = "from tests.serve.test_batch_invariance import check_invariance; check_invariance(96)"
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode and "No sizes of matrix products round alike" in result.stderr:
        pytest.skip("the engine promises nothing here, and says so")
    assert result.returncode == 0, result.stderr
