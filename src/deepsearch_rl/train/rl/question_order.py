"""In which order the questions of a training are rolled out."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from deepsearch_rl.core.records import Question
from deepsearch_rl.train.rl.rl_trainer import RlTask


def batch(task: RlTask, type_shares: Mapping[str, float], first: int, size: int) -> list[Question]:
    """Return ``size`` train questions from number ``first`` on, counted from 0.

    Every epoch has an order of its own. With shares every type has its own epochs, and the next
    question is of the type that is furthest below its share.
    """
    return list(islice(_without_end(task, type_shares or {"": 1.0}), first, first + size))


def _without_end(task: RlTask, shares: Mapping[str, float]) -> Iterator[Question]:
    orders: dict[str, Iterator[Question]] = {}
    for name in shares:
        of_type = [q for q in task.train if name in ("", q.metadata.question_type)]
        orders[name] = _epochs(of_type, task.seed)

    drawn = Counter[str]()
    while True:
        # The question that is drawn now counts already
        share_drawn = (drawn.total() + 1) / sum(shares.values())
        name = max(shares, key=lambda name: shares[name] * share_drawn - drawn[name])
        drawn[name] += 1
        yield next(orders[name])


def _epochs(questions: Sequence[Question], seed: int) -> Iterator[Question]:
    for epoch in itertools.count():
        yield from random.Random(f"{seed}/{epoch}").sample(questions, len(questions))
