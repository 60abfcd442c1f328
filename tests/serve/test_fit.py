"""What the CPU engine serves, and the sentences for what it does not."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import write_json
from deepsearch_rl.serve import fit
from deepsearch_rl.serve.engine import Engine, SamplingParams
from deepsearch_rl.serve.fit import SUPPORTED, Room, require_fit

FIELDS = ("serving.cpu.slots", "serving.cpu.context_tokens", "serving.cpu.dtype")
LLAMA = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
}


def room(**changes: Any) -> Room:
    return Room(192, 1024, "float32", 1, *FIELDS)._replace(**changes)


def config_folder(folder: Path, **changes: Any) -> Path:
    write_json(folder / "config.json", LLAMA | changes)
    return folder


def random_model(model_type: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Return an untrained model of a family."""
    sizes: dict[str, Any] = {
        "vocab_size": 647,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "initializer_range": 0.15,
        "eos_token_id": 3,
        "pad_token_id": 0,
        "bos_token_id": 1,
    }
    if model_type == "mistral":
        sizes["sliding_window"] = None
    if model_type == "qwen3_moe":
        sizes |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def check_logprobs(model: PreTrainedModel, tolerance: float) -> None:
    """Compare the log-probabilities of tokens drawn together with those of transformers."""
    rng = random.Random(0)
    prompts = [[rng.randrange(10, 640) for _ in range(length)] for length in (150, 1, 240, 30)]
    engine = Engine(copy.deepcopy(model), slots=8, context_tokens=256)
    requests = [engine.generate(prompt, SamplingParams(1.0, 8, 0)) for prompt in prompts]
    answers = [request.result(timeout=60) for request in requests]
    engine.close()

    for prompt, drawn in zip(prompts, answers, strict=True):
        with torch.no_grad():
            text = torch.tensor([[*prompt, *drawn.token_ids]])
            logits = model(text, use_cache=False).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        expected = [float(row[token]) for row, token in zip(logprobs, drawn.token_ids, strict=True)]
        assert drawn.logprobs == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_a_supported_architecture_answers_as_transformers_does(model_type: str) -> None:
    check_logprobs(random_model(model_type), 1e-4)


def test_in_bfloat16_log_probabilities_are_those_of_transformers_up_to_its_rounding() -> None:
    check_logprobs(random_model("llama", torch.bfloat16), 0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma3_text"}, r"a gemma3_text model, and the CPU engine serves llama, "),
        ({"model_type": "granite"}, "a granite model"),
        ({"model_type": "t5"}, "a t5 model"),
        (
            {"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]},
            "layers of sliding_attention",
        ),
        ({"model_type": "mistral", "sliding_window": 512}, "a sliding window of 512"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "depend on the text's length"),
        ({"max_position_embeddings": 512}, r"serving\.cpu\.context_tokens is 1024, and .* 512"),
    ],
)
def test_what_the_engine_would_serve_wrongly_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        require_fit(config_folder(tmp_path, **changes), room())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": False},
        {"model_type": "mistral", "sliding_window": 4096},
    ],
)
def test_windows_that_no_text_reaches_are_none(tmp_path: Path, changes: dict[str, Any]) -> None:
    require_fit(config_folder(tmp_path, **changes), room(slots=2))


def test_slots_that_do_not_fit_say_what_one_costs_and_how_many_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "free_memory_bytes", lambda: 8 * 2**30)
    # 30 layers x 3 heads x 64 numbers, for keys and for values
    with pytest.raises(
        ConfigError,
        match=r"serving\.cpu\.slots is 192, and 182 fit: a slot of 1024 tokens takes 45\.0 MiB in "
        r"float32 \(45\.0 KiB a token\).*8\.0 GiB that are free.*Lower serving\.cpu\.slots or "
        r"serving\.cpu\.context_tokens, or set serving\.cpu\.dtype: bfloat16",
    ):
        require_fit(config_folder(tmp_path), room())
    require_fit(tmp_path, room(dtype="bfloat16"))
    with pytest.raises(ConfigError, match=r"91 fit.*each of 2 servers can have 4"):
        require_fit(tmp_path, room(servers=2))
