"""An adapter enlarged until its model answers differently from the base.

    python -m tools.preflight.scaled_adapter PARAMS START ADAPTER SCALED RESULT

A few steps of RL change a model by less than two engines differ by rounding: a server that ignores
such an adapter looks as right as one that applies it, and so does a merge that loses it. SCALED is
ADAPTER with its second factor times a power of two. Where RL kept its start, that factor is 0, and
random numbers take its place. RESULT is a JSON file with the power, and by how much the two models
differ in nats a token.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from deepsearch_rl.core.errors import CheckFailedError, DeepsearchError
from deepsearch_rl.core.files import write_json
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.train.merge_proof import (
    AnswerTokens,
    answer_logprobs,
    fixed_prompts,
    greedy_answers,
)
from deepsearch_rl.train.model_folder import ADAPTER_FILES
from tools.preflight.logprobs import mean_difference

PROMPTS = 4
MAX_TOKENS = 24
WANTED_NATS = 0.5
LARGEST_EXPONENT = 26


def enlarge(adapter: Path, scaled: Path, factor: float) -> None:
    """Write the adapter with its factor B, random numbers where that is 0, times ``factor``."""
    shutil.rmtree(scaled, ignore_errors=True)
    shutil.copytree(adapter, scaled)
    weights = load_file(adapter / ADAPTER_FILES[1])
    generator = torch.Generator().manual_seed(0)

    for name, weight in weights.items():
        if ".lora_B." not in name:
            continue
        if not weight.any():
            weight = 1e-3 * torch.randn(weight.shape, generator=generator).to(weight.dtype)
        weights[name] = weight * factor
    save_file(weights, scaled / ADAPTER_FILES[1], metadata={"format": "pt"})


def make(start: Path, adapter: Path, scaled: Path, dtype: torch.dtype) -> dict[str, float]:
    """Write the enlarged adapter; return the factor and the mean difference of log-probabilities to the base."""
    load: Any = AutoModelForCausalLM.from_pretrained
    device = "cuda" if torch.cuda.is_available() else "cpu"
    base = load(start, dtype=dtype).to(device)
    prompts = fixed_prompts(start, PROMPTS)
    answers = [
        AnswerTokens(*pair)
        for pair in zip(prompts, greedy_answers(base, prompts, MAX_TOKENS), strict=True)
    ]
    of_base = answer_logprobs(base, answers)

    # No larger than it must be: the rounding of a merge grows with what it adds
    for exponent in range(LARGEST_EXPONENT):
        enlarge(adapter, scaled, 2.0**exponent)
        model: Any = PeftModel.from_pretrained(load(start, dtype=dtype).to(device), scaled)
        difference = mean_difference(answer_logprobs(model, answers), of_base)
        if difference >= WANTED_NATS:
            break
    else:
        raise CheckFailedError(f"{adapter} changes nothing, however large it is made.")

    return {"factor": 2.0**exponent, "difference": difference}


def main() -> None:
    """Command line; an error ends it with status 1 and one paragraph."""
    params, start, adapter, scaled, result = map(Path, sys.argv[1:])
    dtype = getattr(torch, load_profile(params).values["unsloth_merge"]["dtype"])

    try:
        write_json(result, make(start, adapter, scaled, dtype))
    except DeepsearchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
