"""Whether a merged model is its start with the adapter, in a process in which nothing else has run.

    python -m tools.preflight.merge_probe PARAMS START ADAPTER MERGED RESULT

RESULT is a JSON file: the mean difference of the log-probabilities, in nats, that both give to the
greedy answers of the start with its adapter.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from deepsearch_rl.core.files import write_json
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.train.merge_proof import (
    AnswerTokens,
    answer_logprobs,
    fixed_prompts,
    greedy_answers,
)
from tools.preflight.logprobs import mean_difference

PROMPTS = 4
MAX_TOKENS = 24


def main() -> None:
    """Compare the two models in the merged model's own dtype."""
    _, start, adapter, merged, result = sys.argv[1:]
    load: Any = AutoModelForCausalLM.from_pretrained
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, load_profile(Path(sys.argv[1])).values["unsloth_merge"]["dtype"])
    prompts = fixed_prompts(Path(start), PROMPTS)
    adapted_model = PeftModel.from_pretrained(load(start, dtype=dtype), adapter).to(device)
    merged_model = load(merged, dtype=dtype).to(device)
    answers: list[AnswerTokens] = []
    for prompt, tokens in zip(
        prompts, greedy_answers(adapted_model, prompts, MAX_TOKENS), strict=True
    ):
        answers.append(AnswerTokens(prompt, tokens))

    ours = answer_logprobs(adapted_model, answers)
    theirs = answer_logprobs(merged_model, answers)
    write_json(Path(result), {"parity": mean_difference(ours, theirs)})


if __name__ == "__main__":
    main()
