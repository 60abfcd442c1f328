import copy
import random
import threading
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from deepsearch_rl.serve import engine as engine_module
from deepsearch_rl.serve.engine import (
    Engine,
    EngineStoppedError,
    Generation,
    NonFiniteLogitsError,
    SamplingParams,
)
from deepsearch_rl.serve.packing import forward
from deepsearch_rl.serve.slots import SlotTable
from tests.policies import CONTEXT_TOKENS

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, seed=0)


def prompts(count: int, shared: int = 20) -> list[list[int]]:
    """Prompts of different lengths with a common beginning."""
    rng = random.Random(0)
    beginning = [rng.randrange(10, 900) for _ in range(shared)]
    return [
        beginning + [rng.randrange(10, 900) for _ in range(5 + 7 * number)]
        for number in range(count)
    ]


def answer(engine: Engine, prompt: list[int], sampling: SamplingParams) -> Generation:
    return engine.generate(prompt, sampling).result(timeout=30)


def reference(model: PreTrainedModel, prompt: list[int], tokens: int) -> list[int]:
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),
        max_new_tokens=tokens,
        do_sample=False,
    )
    return output[0, len(prompt) :].tolist()


@pytest.mark.slow
def test_a_batch_of_prompts_gets_the_greedy_tokens_of_transformers_generate(
    engine: Engine, model: PreTrainedModel
) -> None:
    running = [engine.generate(prompt, GREEDY) for prompt in prompts(12)]
    answers = [list(request.result(timeout=30).token_ids) for request in running]
    assert answers == [reference(model, prompt, GREEDY.max_tokens) for prompt in prompts(12)]


def test_reported_logprobs_are_those_of_one_forward_pass_over_the_whole_text(
    engine: Engine, model: PreTrainedModel
) -> None:
    prompt = prompts(3)[2]
    drawn = answer(engine, prompt, SamplingParams(temperature=1.0, max_tokens=12, seed=3))
    with torch.no_grad():
        logprobs = torch.log_softmax(
            model(torch.tensor([[*prompt, *drawn.token_ids]])).logits[0], dim=-1
        )
    expected = [
        float(logprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(drawn.token_ids)
    ]
    assert drawn.logprobs == pytest.approx(expected, abs=1e-4)


def test_rollouts_of_one_question_differ_by_their_seeds(engine: Engine) -> None:
    running = [engine.generate(prompts(1)[0], SamplingParams(1.0, 12, seed)) for seed in range(8)]
    assert len({request.result(timeout=30).token_ids for request in running}) > 4


def test_a_continued_conversation_gets_the_answer_of_one_computed_from_its_first_token(
    engine: Engine, model: PreTrainedModel
) -> None:
    conversation = prompts(1)[0]
    for turn in range(3):
        conversation = [
            *conversation,
            *answer(engine, conversation, GREEDY).token_ids,
            *prompts(4)[turn],
        ]
    assert list(answer(engine, conversation, GREEDY).token_ids) == reference(
        model, conversation, GREEDY.max_tokens
    )


def test_after_forget_nothing_computed_with_old_weights_is_used(
    engine: Engine, model: PreTrainedModel
) -> None:
    prompt = prompts(2)[1]
    before = answer(engine, prompt, GREEDY)
    with torch.no_grad():
        engine._model.model.layers[0].self_attn.v_proj.weight.neg_()
    engine.forget()
    after = answer(engine, prompt, GREEDY)
    assert after.token_ids != before.token_ids
    changed = copy.deepcopy(model)
    changed.load_state_dict(engine._model.state_dict())
    with torch.no_grad():
        logprobs = torch.log_softmax(
            changed(torch.tensor([prompt]), use_cache=False).logits[0, -1], -1
        )
    assert after.logprobs[0] == pytest.approx(float(logprobs.max()), abs=1e-4)


def test_a_prompt_that_does_not_fit_the_context_is_refused_with_both_numbers(
    engine: Engine,
) -> None:
    with pytest.raises(ValueError, match=f"510 tokens and max_tokens is 12.*{CONTEXT_TOKENS}"):
        engine.generate([5] * 510, GREEDY)


@pytest.mark.slow
def test_a_cancelled_request_leaves_the_engine_running_and_its_slot_free(engine: Engine) -> None:
    reached = threading.Event()
    go_on = threading.Event()

    def wait(_token: int, _logprob: float) -> bool:
        reached.set()
        return not go_on.wait(10)

    running = [engine.generate(prompt, GREEDY, wait) for prompt in prompts(8)]
    assert reached.wait(10)
    waiting = engine.generate(prompts(9)[8], GREEDY)
    for request in (*running, waiting):
        assert request.cancel()
    go_on.set()
    assert [len(answer(engine, prompt, GREEDY).token_ids) for prompt in prompts(12)]


def test_logits_that_are_no_numbers_fail_their_request_by_name_and_spoil_no_later_one(
    engine: Engine, model: PreTrainedModel
) -> None:
    weight = engine._model.model.layers[0].self_attn.v_proj.weight
    before = weight.detach().clone()
    for value in (float("nan"), float("inf")):
        with torch.no_grad():
            weight.fill_(value)
        running = [
            engine.generate(prompt, SamplingParams(1.0, 12, seed))
            for seed, prompt in enumerate(prompts(10))
        ]
        for request in running:
            with pytest.raises(NonFiniteLogitsError, match="hold NaN or infinity"):
                request.result(timeout=30)
        with torch.no_grad():
            weight.copy_(before)
        engine.forget()
        prompt = prompts(2)[1]
        assert list(answer(engine, prompt, GREEDY).token_ids) == reference(
            model, prompt, GREEDY.max_tokens
        )


@pytest.mark.parametrize("faulty", ["acquire", "line_up", "append"])
def test_a_fault_of_the_loop_fails_all_requests_at_once_and_none_that_comes_later(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, faulty: str
) -> None:
    def fail(*_arguments: object) -> None:
        raise IndexError("a fault in the table")

    with monkeypatch.context() as fault:
        fault.setattr(SlotTable, faulty, fail)
        running = [engine.generate(prompt, GREEDY) for prompt in prompts(12)]
        for request in running:
            with pytest.raises(IndexError, match="a fault in the table"):
                request.result(timeout=5)
    assert answer(engine, prompts(1)[0], GREEDY).token_ids


def test_a_callers_failing_function_fails_its_own_request_alone(engine: Engine) -> None:
    def fail(_token: int, _logprob: float) -> bool:
        raise KeyError("mine")

    failing = engine.generate(prompts(1)[0], GREEDY, fail)
    assert answer(engine, prompts(2)[1], GREEDY).token_ids
    with pytest.raises(KeyError, match="mine"):
        failing.result(timeout=5)


def test_a_closed_engine_refuses_requests(engine: Engine) -> None:
    engine.close()
    with pytest.raises(EngineStoppedError, match="start the server again"):
        engine.generate(prompts(1)[0], GREEDY)


def test_a_cold_burst_computes_its_common_beginning_once_and_in_passes_of_bounded_size(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []

    def counted(*arguments: Any) -> torch.Tensor:
        passes.append(sum(map(len, arguments[-1])))
        return forward(*arguments)

    monkeypatch.setattr(engine_module, "forward", counted)
    shared, rest = 300, 40
    rng = random.Random(2)
    beginning = [rng.randrange(10, 900) for _ in range(shared)]
    burst = [[*beginning, *(rng.randrange(10, 900) for _ in range(rest))] for _ in range(24)]
    once = SamplingParams(0.0, 1, 0)
    running = [engine.generate(prompt, once) for prompt in burst]
    for request in running:
        request.result(timeout=60)

    assert sum(passes) <= shared + 24 * rest
    assert max(passes) <= engine._shapes.max_tokens


def test_answers_go_on_while_a_long_prompt_is_computed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_shapes", engine._shapes._replace(max_tokens=64))
    queued = threading.Event()
    tokens: list[int] = []

    def watch(token: int, _logprob: float) -> bool:
        tokens.append(token)
        return not queued.wait(10)

    running = engine.generate(prompts(1)[0], SamplingParams(1.0, 40, 0), watch)
    rng = random.Random(3)
    long = engine.generate([rng.randrange(10, 900) for _ in range(480)], SamplingParams(0.0, 1, 0))
    queued.set()
    long.result(timeout=30)
    assert len(tokens) >= 480 // 64
    running.result(timeout=30)
