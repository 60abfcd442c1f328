"""What logs and probes of the phases say, as figures by name; and the longest row that a phase trains on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

Figures: TypeAlias = Mapping[str, float]


def steps_of(log: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a running RL's log after that of step 0."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines[1:] if line.endswith("\n")]


def rl_figures(steps: list[dict[str, Any]]) -> Figures:
    """Return what the lines of an RL log say of all steps."""
    figures: dict[str, float] = {"trained_tokens": 0}
    for step in steps:
        figures["trained_tokens"] += step.get("trained_tokens", 0)
        # The worst step, and the newest weights; a step without trained tokens has neither
        if "mismatch_mean" in step:
            figures["parity"] = max(step["mismatch_mean"], figures.get("parity", 0.0))
        if "served_share" in step:
            figures["served_share"] = step["served_share"]
            figures["served_share_se"] = step["served_share_se"]

    return figures


def last_summary(log: Path) -> dict[str, Any]:
    """Return the summary that ms-swift writes into its log at the end of a run."""
    lines = map(json.loads, reversed(log.read_text(encoding="utf-8").splitlines()))
    # The last one: a resumed run has a summary of each start
    return next(line for line in lines if "train_runtime" in line)


def long_row(lines: list[str], tokens: float, max_tokens: int) -> str:
    """Return the first row with a search, its passages repeated up to about nine tenths of ``max_tokens``.

    ``tokens`` is how many all ``lines`` have.
    """
    row = next(json.loads(line) for line in lines if '"tool_response"' in line)
    # In characters, by the share of characters and tokens in all lines; a tenth for its error
    size = 0.9 * max_tokens / tokens * sum(map(len, lines)) - len(json.dumps(row))
    answer = next(message for message in row["messages"] if message["role"] == "tool_response")
    answer["content"] *= max(1, int(size / len(answer["content"])))
    return json.dumps(row, ensure_ascii=False)


def serve_figures(probe: Any) -> Figures:
    """Return the figures of a server's probe."""
    return {name: probe[name] for name in ("tokens_per_s", "parity", "second_turns", "other_turns")}


def difference(ours: list[Any], theirs: list[Any]) -> float:
    """Return the mean difference of two servers' log-probabilities over the tokens that both wrote."""
    differences: list[float] = []
    for own, other in zip(ours, theirs, strict=True):
        token_pairs = zip(own["tokens"], other["tokens"], strict=False)
        logprob_pairs = zip(own["logprobs"], other["logprobs"], strict=False)
        for tokens, logprobs in zip(token_pairs, logprob_pairs, strict=False):
            # Behind the first other token, the two stand after other texts
            if tokens[0] != tokens[1]:
                break
            differences.append(abs(logprobs[0] - logprobs[1]))

    return sum(differences) / max(1, len(differences))
