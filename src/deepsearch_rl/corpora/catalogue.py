"""All readable public data sets, and the formats of their files, by name."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from deepsearch_rl.corpora import flashrag, flashrag_sets, graphrag_bench, ifeval, multihoprag
from deepsearch_rl.corpora.card import DatasetCard
from deepsearch_rl.records import Document, Question

_CARDS = (multihoprag.CARD, *flashrag_sets.QUESTION_SETS, graphrag_bench.CARD, flashrag_sets.WIKI18, ifeval.CARD)
CARDS: Mapping[str, DatasetCard] = {card.name: card for card in _CARDS}
CORPUS_FORMATS: Mapping[str, Callable[[Path], Iterable[Document]]] = {
    "flashrag": flashrag.read_documents,
    **{card.name: card.read_documents for card in _CARDS if card.read_documents},
    "musique_paragraphs": flashrag_sets.read_musique_paragraphs,
    "hotpotqa_paragraphs": flashrag_sets.read_hotpotqa_paragraphs,
    "2wikimultihopqa_paragraphs": flashrag_sets.read_hotpotqa_paragraphs,
}
QUESTION_FORMATS: Mapping[str, Callable[[Path], Iterable[Question]]] = {
    "flashrag": flashrag.read_questions,
    **{card.name: card.read_questions for card in _CARDS if card.read_questions},
}
