"""Whether a merged model is its start with the adapter, in a process in which nothing else has run.

    python -m scripts.preflight.merge_probe PARAMS START ADAPTER MERGED RESULT

RESULT is a JSON file: the largest difference of two logits at the tokens that the merged model writes greedily, and
whether both write the same tokens.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from deepsearch_rl.files import write_json
from deepsearch_rl.profile import load_profile
from deepsearch_rl.training.merge import fixed_prompts, greedy_answers

PROMPTS, MAX_TOKENS = 4, 24


def main() -> None:
    """Compare the two models in the merged model's own dtype."""
    _, start, adapter, merged, result = sys.argv[1:]
    load: Any = AutoModelForCausalLM.from_pretrained
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, load_profile(Path(sys.argv[1])).values["unsloth_merge"]["dtype"])
    base, whole = (load(folder, dtype=dtype) for folder in (start, merged))
    prompts = fixed_prompts(Path(start), PROMPTS)
    models = (PeftModel.from_pretrained(base, adapter), whole)
    ours, theirs = (greedy_answers(model.to(device), prompts, MAX_TOKENS) for model in models)
    pairs = list(zip(ours, theirs, strict=True))
    differences = [float((own.logits_TV[0] - other.logits_TV[0]).abs().max()) for own, other in pairs]
    equal = sum(own.tokens == other.tokens for own, other in pairs)
    write_json(Path(result), {"parity": max(differences), "equal_answers": equal / len(pairs)})


if __name__ == "__main__":
    main()
