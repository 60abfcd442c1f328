"""Scores of one question's ranking, as MultiHop-RAG's official script defines them (Tang and Yang 2024).

An item is whatever a question's gold evidence consists of (:mod:`.gold`): a fact, or a document. Added to the official
figures: evidence recall, the share of a question's items that the top k hold.
"""

from collections.abc import Sequence

RANKED = 10
"""Depth of MRR@10 and MAP@10."""


def score_facts(found_by_rank: Sequence[set[int]], facts: int, cutoffs: Sequence[int]) -> dict[str, float]:
    """Scores of a question whose ranked chunks hold the given items (by position, of ``facts`` in all).

    MAP@10 is the sum over ranks of newly found items / rank, divided by min(facts, 10). All scores are in [0, 1], but
    this one can pass 1 where a question has more than 10 items and a chunk holds several.
    """
    scores: dict[str, float] = {}
    for cutoff in cutoffs:
        seen = set().union(*found_by_rank[:cutoff])
        scores[f"hits@{cutoff}"] = float(bool(seen))
        scores[f"evidence_recall@{cutoff}"] = len(seen) / facts
    relevant = [rank for rank, found in enumerate(found_by_rank[:RANKED], 1) if found]
    scores[f"mrr@{RANKED}"] = 1 / relevant[0] if relevant else 0.0
    seen, gain = set[int](), 0.0
    for rank, found in enumerate(found_by_rank[:RANKED], 1):
        gain += len(found - seen) / rank
        seen |= found
    scores[f"map@{RANKED}"] = gain / min(facts, RANKED)
    return scores
