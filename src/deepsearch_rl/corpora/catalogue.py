"""Every public data set that can be read, by the name of its format."""

from collections.abc import Mapping

from deepsearch_rl.corpora import (
    bamboogle,
    graphrag_bench,
    hotpotqa,
    ifeval,
    multihoprag,
    musique,
    nq,
    popqa,
    triviaqa,
    twowiki,
    wiki18,
)
from deepsearch_rl.corpora.card import DatasetCard
from deepsearch_rl.errors import UnknownNameError

MODULES = (multihoprag, musique, twowiki, hotpotqa, nq, triviaqa, popqa, bamboogle, graphrag_bench, wiki18, ifeval)
CARDS: Mapping[str, DatasetCard] = {module.CARD.name: module.CARD for module in MODULES}


def find_card(name: str) -> DatasetCard:
    """The card of a data set.

    Raises:
        UnknownNameError: there is no such data set.
    """
    if name not in CARDS:
        raise UnknownNameError("data set", name, CARDS)
    return CARDS[name]
