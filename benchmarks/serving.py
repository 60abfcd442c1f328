"""The CPU engine against ``transformers.generate``: CPU seconds per turn of 64 agent conversations, in one process.

    .venv/bin/python -m benchmarks.serving --model models/tiny/sft

Both generate the same greedy tokens for the same prompts, turn by turn (a passage of 60 tokens is
added after every answer, as a search would), in turns, so that a busy machine slows both. Prints
the time of each turn and the ratio.
"""

import os
import random
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.measure import parse_options, timed
from deepsearch_rl.serve.engine import Engine, SamplingParams, end_ids

CONVERSATIONS = 64
TURNS = 3
ANSWER_TOKENS = 24
PASSAGE_TOKENS = 60
SYSTEM_TOKENS = 145
QUESTION_TOKENS = 20


def _draw(rng: random.Random, vocabulary: int, count: int) -> list[int]:
    return [rng.randrange(300, vocabulary - 20) for _ in range(count)]


def _with_engine(engine: Engine, conversations: list[list[int]]) -> list[list[int]]:
    """Run one turn of every conversation through the engine."""
    sampling = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, seed=0)
    running = [engine.generate(conversation, sampling) for conversation in conversations]
    return [list(request.result().token_ids) for request in running]


def _with_generate(model: PreTrainedModel, conversations: list[list[int]]) -> list[list[int]]:
    """Run the same turn as one left-padded batch of ``transformers.generate``."""
    width = max(map(len, conversations))
    tokens_BS = torch.zeros(len(conversations), width, dtype=torch.long)
    mask_BS = torch.zeros_like(tokens_BS)
    for row, tokens in enumerate(conversations):
        tokens_BS[row, width - len(tokens) :] = torch.tensor(tokens)
        mask_BS[row, width - len(tokens) :] = 1

    output = model.generate(
        tokens_BS,
        attention_mask=mask_BS,
        max_new_tokens=ANSWER_TOKENS,
        do_sample=False,
        pad_token_id=0,
    )
    ends = set(end_ids(model))
    return [_up_to_end(answer, ends) for answer in output[:, width:].tolist()]


def _up_to_end(answer: list[int], ends: set[int]) -> list[int]:
    """Return an answer up to its first end token: ``generate`` goes on until all of a batch have one."""
    for place, token in enumerate(answer, 1):
        if token in ends:
            return answer[:place]

    return answer


def main() -> None:
    """Time both and print one line per turn."""
    folder = parse_options(__doc__, model=(Path("models/tiny/sft"), "a merged model folder")).model
    served = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    engine = Engine(served, slots=2 * CONVERSATIONS, context_tokens=1024)
    rng = random.Random(0)
    vocabulary = plain.config.vocab_size
    system = _draw(rng, vocabulary, SYSTEM_TOKENS)
    conversations = [system + _draw(rng, vocabulary, QUESTION_TOKENS) for _ in range(CONVERSATIONS)]
    all_engine_s = all_generate_s = 0.0

    for turn in range(1, TURNS + 1):
        engine_s, answers = timed(lambda texts=conversations: _with_engine(engine, texts))
        generate_s, expected = timed(lambda texts=conversations: _with_generate(plain, texts))
        equal = sum(ours == theirs for ours, theirs in zip(answers, expected, strict=True))
        all_engine_s = all_engine_s + engine_s
        all_generate_s = all_generate_s + generate_s
        sys.stdout.write(
            f"turn {turn}: engine {engine_s:.2f} s, generate {generate_s:.2f} s, "
            f"{equal}/{CONVERSATIONS} answers equal\n"
        )
        for conversation, answer in zip(conversations, answers, strict=True):
            conversation += [*answer, *_draw(rng, vocabulary, PASSAGE_TOKENS)]

    engine.close()
    sys.stdout.write(f"all turns: generate / engine = {all_generate_s / all_engine_s:.1f}\n")


if __name__ == "__main__":
    main()
