"""From a run to a cause for every answer: what its searches showed, and what other queries would have found."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deepsearch_rl.core.answers import normalise
from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.records import Chunk, Question
from deepsearch_rl.evaluate.explain.causes import Cause, Findings, find_cause, lost_to_metric
from deepsearch_rl.evaluate.explain.corpus import (
    AnswerEvidence,
    CorpusScan,
    evidence_of,
    gold_documents,
    gold_titles,
    is_unanswerable,
    scan_corpus,
)
from deepsearch_rl.evaluate.explain.runs import NAMELESS, Answer, Run, Search
from deepsearch_rl.search.gold import Gold, without_space

if TYPE_CHECKING:
    from deepsearch_rl.search.searcher import SearchesChunks

QUERIES_AT_ONCE = 256
# Of a run, to see whether the index is the one that it searched
TRIED_QUERIES = 200
# Positions of gold items
Items = frozenset[int]


@dataclass(frozen=True, slots=True)
class QuestionFacts:
    """What is known about a question, whoever answers it.

    ``in_corpus`` holds the gold items that the corpus has, None without a corpus. ``by_query``
    holds, for the question itself and for each gold title as the query, the items that its top k
    hold; it is empty without an index.
    """

    question: Question
    evidence: Gold | AnswerEvidence | None
    in_corpus: Items | None
    by_query: Mapping[str, Items]

    @property
    def findable(self) -> bool | None:
        """Whether the question or a gold title finds any item; None without an index."""
        return any(self.by_query.values()) if self.by_query else None

    @property
    def is_covered(self) -> bool:
        """Whether the corpus is known to have all the evidence."""
        if self.evidence is None or self.in_corpus is None:
            return False
        return len(self.in_corpus) == len(self.evidence.items)


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """An answer with its cause, and the items that each of its searches showed."""

    answer: Answer
    findings: Findings
    cause: Cause | None
    by_search: tuple[Items, ...] | None

    @property
    def name(self) -> str:
        """``<question id>#<sample>``, as a trajectory's id."""
        return f"{self.answer.question_id}#{self.answer.sample}"

    @property
    def shown_items(self) -> Items:
        """The items that all searches together showed."""
        return frozenset[int]().union(*self.by_search or ())

    @property
    def detail(self) -> str:
        """How a right answer lost its points, or how the rollout ended without one."""
        if self.cause is Cause.METRIC:
            return lost_to_metric(self.findings)
        return "" if self.answer.stop == "answered" else self.answer.stop


@dataclass(slots=True)
class Corpus:
    """Where a run's passages come from; ``searcher`` is None where there is no index."""

    chunks: Sequence[Chunk]
    searcher: "SearchesChunks | None" = None
    # How many there are, known after they were read
    passages: int = 0
    # Of how many of the run's queries the index returns other passages than the run shows, and how
    # many were tried
    other_results: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class JudgedRun:
    """All answers of a run with their causes."""

    run: Run
    answers: list[JudgedAnswer] = field(default_factory=list)
    facts: dict[str, QuestionFacts] = field(default_factory=dict)
    top_k: int = 0


def judge_run(
    run: Run, questions: Mapping[str, Question], corpus: Corpus | None, top_k: int
) -> JudgedRun:
    """Return the cause of every answer of a run.

    ``questions`` know the gold evidence of the run's questions, by id. Raise ArtifactError where
    the run answers another question, or shows a passage that the corpus does not have.
    """
    run_questions = _questions_of(run, questions)
    ids_known = corpus is not None and _documents_known(run, run_questions, corpus.chunks)
    evidence: dict[str, Gold | AnswerEvidence] = {}
    for name, question in run_questions.items():
        gold = evidence_of(question, ids_known)
        if gold is not None:
            evidence[name] = gold

    scan = None
    if corpus is not None:
        documents: list[str] = []
        for question in run_questions.values():
            documents += gold_documents(question)

        wanted = run.shown_ids()
        if ids_known:
            wanted |= run.texts_alone().keys()
        scan = scan_corpus(corpus.chunks, evidence, wanted, documents)
        corpus.passages = scan.passages
        _require_passages(run, scan)

    searcher = corpus.searcher if corpus else None
    if corpus is not None:
        corpus.other_results = _count_other_results(run, searcher, top_k)
    facts = _question_facts(run_questions, evidence, scan, searcher, top_k)
    judged = [_judge(answer, facts[answer.question_id], scan) for answer in run.answers]
    return JudgedRun(run, judged, facts, top_k)


def _questions_of(run: Run, questions: Mapping[str, Question]) -> dict[str, Question]:
    """Return the questions that the run answers, in the order of ``questions``; without any, as the run has them."""
    if not questions:
        return dict(run.questions)

    # A run of other questions would be explained by evidence that is not theirs
    unknown = sorted(run.questions.keys() - questions.keys())
    if unknown:
        names = ", ".join(unknown[:3])
        raise ArtifactError(
            f"{run.path} answers {len(unknown)} questions that are not in the question file "
            f"({names}); give the file whose questions were answered (--questions)."
        )

    run_questions: dict[str, Question] = {}
    for name, question in questions.items():
        answered = run.questions.get(name)
        if answered is None:
            continue

        # Many sets begin their ids anew: dev_0
        has_text = answered.question != answered.id
        if has_text and normalise(answered.question) != normalise(question.question):
            raise ArtifactError(
                f"{run.path} asks {answered.question!r} under the id {name!r}, and the question file asks "
                f"{question.question!r}: they are of different sets, or splits (--questions)."
            )
        # The score is of the run's golden answers
        run_questions[name] = question.model_copy(
            update={"golden_answers": answered.golden_answers}
        )

    return run_questions


def _documents_known(run: Run, questions: Mapping[str, Question], chunks: Iterable[Chunk]) -> bool:
    """Return whether questions name documents of a corpus, and it is known of which the passages of a run are.

    A text alone is of none. One with an id is of the document of the corpus's passage with that id,
    if this holds it: the ids of another corpus may be the same numbers.
    """
    if not any(question.metadata.supporting_doc_ids for question in questions.values()):
        return False

    texts = run.texts_alone()
    if NAMELESS in texts:
        return False
    for chunk in chunks if texts else ():
        text = texts.pop(chunk.id, None)
        if text is not None and without_space(text) not in without_space(chunk.contents):
            return False
        if not texts:
            break

    return not texts


def _require_passages(run: Run, scan: CorpusScan) -> None:
    missing = sorted(run.shown_ids() - scan.chunks_by_id.keys())
    if missing:
        raise ArtifactError(
            f"{run.path} shows {len(missing)} passages that are not in the corpus "
            f"({', '.join(missing[:3])}); give the corpus, or the index, that the run searched."
        )


def _question_facts(
    questions: Mapping[str, Question],
    evidence: Mapping[str, Gold | AnswerEvidence],
    scan: CorpusScan | None,
    searcher: "SearchesChunks | None",
    top_k: int,
) -> dict[str, QuestionFacts]:
    queries: dict[str, list[str]] = {}
    if searcher is not None and top_k > 0:
        titles = scan.titles if scan else {}
        for name in evidence:
            queries[name] = _queries(questions[name], titles)

    hits = _search(searcher, queries, top_k)
    facts: dict[str, QuestionFacts] = {}
    for name, question in questions.items():
        gold = evidence.get(name)
        by_query: dict[str, Items] = {}
        if gold is not None:
            by_query = {query: items_in(gold, hits[query]) for query in queries.get(name, ())}

        covered = frozenset(scan.covered[name]) if scan and gold else None
        facts[name] = QuestionFacts(question, gold, covered, by_query)

    return facts


def _queries(question: Question, titles: Mapping[str, str]) -> list[str]:
    """Return the question and its gold titles, as the question or else the corpus names them."""
    known = list(gold_titles(question))
    if not known:
        for name in gold_documents(question):
            if titles.get(name):
                known.append(titles[name])

    return list(dict.fromkeys([question.question, *known]))


def _search(
    searcher: "SearchesChunks | None", queries: Mapping[str, Sequence[str]], top_k: int
) -> dict[str, list[Chunk]]:
    """Return the passages that each distinct query finds, best first."""
    hits: dict[str, list[Chunk]] = {}
    if searcher is None:
        return hits

    distinct = list(dict.fromkeys(itertools.chain.from_iterable(queries.values())))
    for start in range(0, len(distinct), QUERIES_AT_ONCE):
        batch = distinct[start : start + QUERIES_AT_ONCE]
        for query, result in zip(batch, searcher.find_hits(batch, top_k), strict=True):
            hits[query] = [hit.chunk for hit in result]

    return hits


def items_in(evidence: Gold | AnswerEvidence, chunks: Iterable[Chunk]) -> Items:
    """Return the gold items that passages hold together."""
    items: set[int] = set()
    for chunk in chunks:
        items |= evidence.found_in(chunk)
    return frozenset(items)


def _count_other_results(
    run: Run, searcher: "SearchesChunks | None", top_k: int
) -> tuple[int, int]:
    """Return of how many of some queries of the run the index returns other passages, and how many these are.

    The run may show fewer passages than were found, where they were too long.
    """
    if searcher is None or top_k == 0:
        return 0, 0

    ids_by_query: dict[str, tuple[str, ...]] = {}
    for answer in run.answers:
        for search in answer.searches or ():
            if search.query and search.chunk_ids:
                ids_by_query[search.query] = search.chunk_ids

    # Spread over the whole run; to search for all again would take as long as the run did
    queries = list(ids_by_query)[:: max(1, len(ids_by_query) // TRIED_QUERIES)]
    hits = _search(searcher, {"": queries}, top_k)
    other = 0
    for query in queries:
        ids = ids_by_query[query]
        other += tuple(chunk.id for chunk in hits[query][: len(ids)]) != ids
    return other, len(queries)


def _judge(answer: Answer, facts: QuestionFacts, scan: CorpusScan | None) -> JudgedAnswer:
    evidence = facts.evidence
    by_search = None
    if evidence is not None and answer.searches is not None:
        by_search = tuple(items_in(evidence, _passages(search, scan)) for search in answer.searches)

    shown_items = None if by_search is None else len(frozenset[int]().union(*by_search))
    findings = Findings(
        pred=answer.pred,
        last_text=answer.last_text,
        golds=facts.question.golden_answers,
        scores=answer.scores,
        stop=answer.stop,
        unanswerable=is_unanswerable(facts.question),
        searches=None if answer.searches is None else len(answer.searches),
        items=None if evidence is None else len(evidence.items),
        in_corpus=None if facts.in_corpus is None else len(facts.in_corpus),
        shown_items=shown_items,
        findable=facts.findable,
    )
    return JudgedAnswer(answer, findings, find_cause(findings), by_search)


def _passages(search: Search, scan: CorpusScan | None) -> Iterable[Chunk]:
    """Return the passages of a search as the corpus has them, or else as the run shows them."""
    if scan is None:
        return search.passages
    if search.chunk_ids:
        return [scan.chunks_by_id[name] for name in search.chunk_ids]

    # A run's own text counts, and the document that the corpus knows it to be of
    passages: list[Chunk] = []
    for passage in search.passages:
        same = scan.chunks_by_id.get(passage.id)
        metadata = same.metadata if same else passage.metadata
        passages.append(passage.model_copy(update={"metadata": metadata}))
    return passages
