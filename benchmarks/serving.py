"""The CPU engine against ``transformers.generate``: CPU seconds per turn of 64 agent conversations, in one process.

    .venv/bin/python -m benchmarks.serving models/tiny/sft

Both generate the same greedy tokens for the same prompts, turn by turn (a passage of 60 tokens is added after every
answer, as a search would), in turns, so that a busy machine slows both. Prints the time of each turn and the ratio.
"""

import argparse
import os
import random
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.measure import timed
from deepsearch_rl.serving.engine import Engine, Sampling, end_ids

CONVERSATIONS, TURNS, ANSWER_TOKENS, PASSAGE_TOKENS = 64, 3, 24, 60
SYSTEM_TOKENS, QUESTION_TOKENS = 145, 20


def prompts(rng: random.Random, vocabulary: int) -> list[list[int]]:
    """Return conversations that share a system prompt and differ in their question."""
    system = _draw(rng, vocabulary, SYSTEM_TOKENS)
    return [system + _draw(rng, vocabulary, QUESTION_TOKENS) for _ in range(CONVERSATIONS)]


def _draw(rng: random.Random, vocabulary: int, count: int) -> list[int]:
    return [rng.randrange(300, vocabulary - 20) for _ in range(count)]


def with_engine(engine: Engine, conversations: list[list[int]]) -> list[list[int]]:
    """Run one turn of every conversation through the engine."""
    sampling = Sampling(temperature=0.0, max_tokens=ANSWER_TOKENS, seed=0)
    running = [engine.generate(conversation, sampling) for conversation in conversations]
    return [list(request.result().token_ids) for request in running]


def with_generate(model: PreTrainedModel, conversations: list[list[int]]) -> list[list[int]]:
    """Run the same turn as one left-padded batch of ``transformers.generate``."""
    width = max(map(len, conversations))
    padded = torch.tensor([[0] * (width - len(tokens)) + tokens for tokens in conversations])
    mask = torch.tensor([[0] * (width - len(tokens)) + [1] * len(tokens) for tokens in conversations])
    output = model.generate(padded, attention_mask=mask, max_new_tokens=ANSWER_TOKENS, do_sample=False, pad_token_id=0)
    ends = set(end_ids(model))
    return [_until_end(answer, ends) for answer in output[:, width:].tolist()]


def _until_end(tokens: list[int], ends: set[int]) -> list[int]:
    for place, token in enumerate(tokens):
        if token in ends:
            return tokens[: place + 1]
    return tokens


def main() -> None:
    """Time both and print one line per turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a merged model folder, e.g. models/tiny/sft")
    folder = parser.parse_args().model
    served, plain = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for _ in range(2))
    engine = Engine(served, slots=2 * CONVERSATIONS, context_tokens=1024)
    rng = random.Random(0)
    conversations = prompts(rng, plain.config.vocab_size)
    total = {"engine": 0.0, "generate": 0.0}
    for turn in range(TURNS):
        engine_s, answers = timed(lambda texts=conversations: with_engine(engine, texts))
        generate_s, expected = timed(lambda texts=conversations: with_generate(plain, texts))
        seconds = {"engine": engine_s, "generate": generate_s}
        equal = sum(ours == theirs for ours, theirs in zip(answers, expected, strict=True))
        total = {name: total[name] + spent for name, spent in seconds.items()}
        sys.stdout.write(
            f"turn {turn + 1}: engine {seconds['engine']:.2f} s, generate {seconds['generate']:.2f} s, "
            f"{equal}/{CONVERSATIONS} answers equal\n"
        )
        conversations = [
            [*conversation, *answer, *_draw(rng, plain.config.vocab_size, PASSAGE_TOKENS)]
            for conversation, answer in zip(conversations, answers, strict=True)
        ]
    engine.close()
    sys.stdout.write(f"all turns: generate / engine = {total['generate'] / total['engine']:.1f}\n")


if __name__ == "__main__":
    main()
