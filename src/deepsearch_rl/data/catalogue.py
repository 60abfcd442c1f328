"""The readers of all formats of corpora and question sets, by name; :mod:`.card` describes the public data sets."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from deepsearch_rl.core.records import Document, Question
from deepsearch_rl.data import flashrag, flashrag_sets, graphrag_bench, multihoprag
from deepsearch_rl.data.document_folder import DocumentFolder

CORPUS_FORMATS: Mapping[str, Callable[[Path], Iterable[Document]]] = {
    "flashrag": flashrag.read_documents,
    "multihoprag": multihoprag.read_documents,
    "graphrag_bench": graphrag_bench.read_documents,
    "wiki18": flashrag.read_documents,
    "musique_paragraphs": flashrag_sets.read_musique_paragraphs,
    "hotpotqa_paragraphs": flashrag_sets.read_hotpotqa_paragraphs,
    "2wikimultihopqa_paragraphs": flashrag_sets.read_hotpotqa_paragraphs,
    "documents": DocumentFolder,
}
QUESTION_FORMATS: Mapping[str, Callable[[Path], Iterable[Question]]] = {
    "flashrag": flashrag.read_questions,
    "multihoprag": multihoprag.read_questions,
    "musique": flashrag_sets.read_musique,
    "2wikimultihopqa": flashrag_sets.read_hotpotqa,
    "hotpotqa": flashrag_sets.read_hotpotqa,
    **dict.fromkeys(("nq", "triviaqa", "popqa"), partial(flashrag_sets.read_typed, "1_hop")),
    "bamboogle": partial(flashrag_sets.read_typed, "2_hop"),
    "graphrag_bench": graphrag_bench.read_questions,
}
