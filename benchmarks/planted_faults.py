"""Runs over real question sets in which known faults are planted, to see whether `deepsearch explain` finds them again.

The agents are scripts: they search for the question, then for each gold title, and answer right
where they were shown all evidence. What goes wrong for whom is drawn before they run.

    document removed     a gold document of 37 % of the questions is not there, as in wiki-18 (arXiv 2605.27881)
    search broken        for 30 % of the questions the search returns the passages behind those that match
    index misses it      the gold documents of 30 % of the questions are there, and their words are not
    words around it      right answers of 30 % of the questions stand in a sentence
    no answer tags       right answers of 20 % of the questions stand outside the tags
"""

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepsearch_rl.chat.chat_messages import format_passages
from deepsearch_rl.core.answers import CLOSED_ANSWERS, normalise
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.core.records import (
    Chunk,
    Document,
    Message,
    Question,
    Retrieval,
    StopReason,
    Trajectory,
)
from deepsearch_rl.data.flashrag import read_documents, read_questions
from deepsearch_rl.evaluate.explain.causes import Cause
from deepsearch_rl.evaluate.explain.corpus import evidence_of
from deepsearch_rl.evaluate.explain.explanation import explain_run
from deepsearch_rl.evaluate.explain.judging import Corpus, judge_run
from deepsearch_rl.evaluate.explain.records import RunReport, Setting
from deepsearch_rl.evaluate.explain.runs import read_run
from deepsearch_rl.evaluate.score import Interval
from deepsearch_rl.search import RetrieverName
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.manifest import IndexConfig
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import Hit, Searcher, SearchesChunks, open_index

TOP_K = 5
SEED = 0
DRAWS = 500
HELD_OUT = 0.37
BROKEN = 0.3

Answers = Callable[[Question, bool], str]
"""What an agent answers to a question, given whether it was shown all evidence."""


def known_questions(folder: Path) -> list[Question]:
    """Return the questions whose gold documents the corpus beside them has."""
    known: list[Question] = []
    for question in read_questions(folder / "dev.jsonl.gz"):
        metadata = question.metadata
        in_corpus = (metadata.model_extra or {})["gold_in_corpus"] == "all"
        if in_corpus and metadata.supporting_doc_ids:
            known.append(question)

    return known


def index_config(retriever: RetrieverName) -> IndexConfig:
    """Return the settings of `deepsearch retrieve build`; BM25 alone has no encoder.

    The hybrid fuses by rank: without questions to learn from, the preset's own would be BM25.
    """
    section = load_preset("retrieve").value("index")
    values = {name: section[name] for name in IndexConfig.model_fields}
    if retriever == "bm25":
        values["encoder"] = None
    else:
        values["fusion"] = values["fusion"] | {"unlearned": "reciprocal_ranks"}
    return IndexConfig.model_validate(values)


def build(
    folder: Path, documents: Iterable[Document], retriever: RetrieverName, name: str = "index"
) -> Searcher:
    """Write a corpus and its index into a folder, and open it."""
    corpus = folder / f"{name}.jsonl"
    write_jsonl(corpus, documents)
    build_index(corpus, folder / name, index_config(retriever), SEED)
    return open_index(folder / name, retriever=retriever)


def make_rollout(
    question: Question,
    answer: str,
    searches: Sequence[tuple[str, Sequence[Chunk]]],
    sample: int = 0,
) -> Trajectory:
    """Return an answered rollout; ``searches`` are queries with the passages that they showed."""
    messages = [Message(role="user", content=question.question)]
    retrievals: list[Retrieval] = []
    for query, chunks in searches:
        messages.append(Message(role="tool", content=format_passages(chunks)))
        chunk_ids = tuple(chunk.id for chunk in chunks)
        retrievals.append(Retrieval(query=query, chunk_ids=chunk_ids))

    messages.append(Message(role="assistant", content=f"<answer>{answer}</answer>"))
    return Trajectory(
        id=f"{question.id}#{sample}",
        question_id=question.id,
        sample=sample,
        question=question.question,
        golden_answers=question.golden_answers,
        model="scripted",
        prompt="none",
        temperature=0.7,
        messages=tuple(messages),
        retrievals=tuple(retrievals),
        answer=answer,
        stop_reason=StopReason.ANSWERED,
    )


def run_agent(
    questions: Sequence[Question], searcher: SearchesChunks, answer: Answers
) -> list[Trajectory]:
    """Let a script search for every question, then for its gold titles; return its rollouts by id."""
    queries_of = [
        [question.question, *(question.metadata.supporting_titles or ())] for question in questions
    ]
    queries = [query for queries in queries_of for query in queries]
    results = iter(searcher.find_hits(queries, TOP_K))
    rollouts: list[Trajectory] = []

    for question, own_queries in zip(questions, queries_of, strict=True):
        evidence = evidence_of(question)
        assert evidence is not None
        items: set[int] = set()
        searches: list[tuple[str, list[Chunk]]] = []
        for query in own_queries:
            chunks = [hit.chunk for hit in next(results)]
            searches.append((query, chunks))
            for chunk in chunks:
                items |= evidence.found_in(chunk)

        text = answer(question, len(items) == len(evidence.items))
        rollouts.append(make_rollout(question, text, searches))

    rollouts.sort(key=lambda rollout: rollout.id)
    return rollouts


def right_with_evidence(question: Question, saw_all: bool) -> str:
    """Answer right where all evidence was shown."""
    return question.golden_answers[0] if saw_all else "something else entirely"


def explain(
    path: Path, rollouts: Iterable[Trajectory], questions: Iterable[Question], searcher: Searcher
) -> RunReport:
    """Write rollouts to a file and return where their points are lost."""
    write_jsonl(path, rollouts)
    by_id = {each.id: each for each in questions}
    corpus = Corpus(searcher.chunks, searcher)
    judged = judge_run(read_run(path), by_id, corpus, TOP_K)
    return explain_run(judged, Setting(), corpus, SEED, draws=DRAWS)


# Faults


def held_out(questions: Sequence[Question]) -> tuple[set[str], set[str]]:
    """Return documents to leave out, and the questions that need one of them: :data:`HELD_OUT` of all."""
    order = list(questions)
    random.Random(SEED).shuffle(order)
    documents: set[str] = set()
    affected: set[str] = set()

    for question in order:
        if len(affected) >= HELD_OUT * len(questions):
            break
        documents.add((question.metadata.supporting_doc_ids or ("",))[0])
        affected = {each.id for each in questions if needs(each, documents)}

    return documents, affected


def needs(question: Question, documents: Collection[str]) -> bool:
    """Return whether one of a question's gold documents is among ``documents``."""
    return not set(question.metadata.supporting_doc_ids or ()).isdisjoint(documents)


def garbled(
    questions: Sequence[Question], documents: Iterable[Document], count: int
) -> tuple[list[Document], set[str]]:
    """Return the documents, with other words in those of ``count`` questions, and who lost all of theirs."""
    chosen = random.Random(SEED).sample(questions, count)
    lost: set[str] = set()
    for question in chosen:
        lost |= set(question.metadata.supporting_doc_ids or ())

    changed: list[Document] = []
    for row, document in enumerate(documents):
        other = f"xq{row}\nzv{row} wk{row}"
        is_lost = document.id in lost
        changed.append(document.model_copy(update={"contents": other}) if is_lost else document)

    blind: set[str] = set()
    for question in questions:
        if set(question.metadata.supporting_doc_ids or ()) <= lost:
            blind.add(question.id)
    return changed, blind


@dataclass(frozen=True, slots=True)
class BrokenSearch:
    """A search that returns the passages behind those that match."""

    searcher: Searcher

    def find_hits(
        self, queries: Sequence[str], top_k: int, where: Filter | None = None
    ) -> list[list[Hit]]:
        """Return the passages some lines further on in the file."""
        chunks = self.searcher.chunks
        results: list[list[Hit]] = []
        for hits in self.searcher.find_hits(queries, top_k, where):
            rows = [(hit.row + 7) % len(chunks) for hit in hits]
            results.append([Hit(row, 0.0, chunks[row]) for row in rows])

        return results


def with_format_faults(
    rollouts: Iterable[Trajectory], rng: random.Random
) -> tuple[list[Trajectory], dict[str, int]]:
    """Return right rollouts, some of them written so that F1 misses it, and how many of each kind there are.

    A fifth of the answers is wrong.
    """
    changed: list[Trajectory] = []
    counts = {"extra words": 0, "format": 0, "wrong": 0}
    for rollout in rollouts:
        kind = rng.choices(("extra words", "format", "wrong", ""), (3, 2, 2, 3))[0]
        if kind:
            counts[kind] += 1
        changed.append(_written_as(rollout, kind))

    return changed, counts


def _written_as(rollout: Trajectory, kind: str) -> Trajectory:
    answer = rollout.answer
    match kind:
        case "extra words":
            return rollout.model_copy(update={"answer": f"The answer must be {answer}, I believe"})
        case "format":
            text = Message(role="assistant", content=f"So it is {answer} in the end.")
            ending = {"answer": "", "stop_reason": StopReason.NO_ANSWER_TAG}
            return rollout.model_copy(update={"messages": (*rollout.messages[:-1], text), **ending})
        case "wrong":
            return rollout.model_copy(update={"answer": "Xyzzy"})
        case _:
            return rollout


# The table


@dataclass(frozen=True, slots=True)
class Recovered:
    """A planted fault: how many answers have it, how many are explained by it, and the points lost to its cause."""

    fault: str
    cause: Cause
    planted: int
    answers: int
    share: float
    lost: Interval | None

    def cells(self) -> list[str]:
        """Return the fault as a line of a table."""
        lost = self.lost
        interval = f"{lost.mean:.3f} [{lost.low:.3f}, {lost.high:.3f}]" if lost else "0"
        counts = [str(self.planted), str(self.answers)]
        return [self.fault, f"`{self.cause}`", *counts, f"{self.share:.3f}", interval]


def recover(folder: Path, data: Path, retriever: RetrieverName) -> Iterator[Recovered]:
    """Plant every fault in runs over a question set, and yield what is found of it."""
    questions = known_questions(data)
    documents = list(read_documents(data / "corpus.jsonl.gz"))
    run = folder / "run.jsonl"

    removed, affected = held_out(questions)
    remaining = [each for each in documents if each.id not in removed]
    searcher = build(folder, remaining, retriever, "removed")
    rollouts = run_agent(questions, searcher, right_with_evidence)
    report = explain(run, rollouts, questions, searcher)
    yield _recovered("document removed", Cause.NOT_IN_CORPUS, len(affected), report)

    changed, blind = garbled(questions, documents, round(BROKEN * len(questions)))
    searcher = build(folder, changed, retriever, "garbled")
    rollouts = run_agent(questions, searcher, right_with_evidence)
    report = explain(run, rollouts, questions, searcher)
    yield _recovered("index misses it", Cause.INDEX_MISSES, len(blind), report)

    searcher = build(folder, documents, retriever)
    broken = random.Random(SEED).sample(questions, round(BROKEN * len(questions)))
    names = {each.id for each in broken}
    others = [each for each in questions if each.id not in names]
    rollouts = run_agent(broken, BrokenSearch(searcher), right_with_evidence)
    rollouts += run_agent(others, searcher, right_with_evidence)
    rollouts.sort(key=lambda rollout: rollout.id)
    report = explain(run, rollouts, questions, searcher)
    yield _recovered("search broken", Cause.BAD_QUERY, len(broken), report)

    # Yes and no are no words that another sentence could not have
    spoken = [each for each in questions if normalise(each.golden_answers[0]) not in CLOSED_ANSWERS]
    right = run_agent(spoken, searcher, lambda question, _: question.golden_answers[0])
    rollouts, counts = with_format_faults(right, random.Random(SEED))
    report = explain(run, rollouts, spoken, searcher)
    faults = counts["extra words"] + counts["format"]
    yield _recovered("words around it, or no tags", Cause.METRIC, faults, report)


def _recovered(fault: str, cause: Cause, planted: int, report: RunReport) -> Recovered:
    entry = report.causes.get(cause)
    return Recovered(
        fault=fault,
        cause=cause,
        planted=planted,
        answers=entry.answers if entry else 0,
        share=planted / report.answers,
        lost=entry.lost if entry else None,
    )
