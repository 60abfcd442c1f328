"""`deepsearch explain`: its time on a run of the size of an evaluation, and what it finds of planted faults.

    .venv/bin/python -m benchmarks.explain
    .venv/bin/python -m benchmarks.explain --tables faults

The corpus is generated: passages of a hundred words in which some words are rare. A question's gold
facts are sentences of two passages; an answer searches with words of them, with words of the
question, or not at all, and shows the top five of BM25. Times are of the whole command but for
reading its modules: files, corpus, BM25 with ``--corpus``, causes, a thousand resamples, and the
page. Facts are the slowest kind of evidence. The faults are those of
:mod:`benchmarks.planted_faults`, over the real question sets.
"""

import argparse
import random
import tempfile
import time
from pathlib import Path

from benchmarks.data import DATA
from benchmarks.measure import parse_options, publish, restart_peak, status_kb, verdict
from benchmarks.planted_faults import make_rollout, recover
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.core.records import (
    Chunk,
    Document,
    Evidence,
    Question,
    QuestionMetadata,
    Trajectory,
)
from deepsearch_rl.evaluate.explain.explain import Options, explain_paths, report_of
from deepsearch_rl.evaluate.report.page import render_explanation
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.manifest import IndexConfig
from deepsearch_rl.search.searcher import Searcher, open_index

TARGET_S = 60
TOP_K = 5

# Of a passage, and of a sentence: a hundred words, as in a chunk of wiki-18
SENTENCES = 8
WORDS = 12
SYLLABLES = ("ka", "lo", "mi", "ren", "tas", "vel", "dor", "qui", "bur", "ny", "sha", "tol")


def make_corpus(passages: int, seed: int) -> list[Document]:
    """Passages whose words are drawn so that half of them are frequent."""
    rng = random.Random(seed)
    frequent = [_word(rng) for _ in range(300)]
    rare = [_word(rng) + _word(rng) for _ in range(passages)]

    def sentence() -> str:
        words = [rng.choice(frequent if rng.random() < 0.5 else rare) for _ in range(WORDS)]
        return f"{' '.join(words).capitalize()}."

    documents: list[Document] = []
    for number in range(passages):
        text = " ".join(sentence() for _ in range(SENTENCES))
        title = f"{rng.choice(rare)} {rng.choice(rare)}".title()
        documents.append(Document(id=f"d{number}", contents=f"{title}\n{text}"))

    return documents


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(SYLLABLES, k=2))


def make_questions(documents: list[Document], questions: int, seed: int) -> list[Question]:
    """Questions with a fact of each of two passages; one in twenty asks for what no passage says."""
    rng = random.Random(seed)
    result: list[Question] = []
    for number in range(questions):
        gold = rng.sample(documents, 2)
        facts = [rng.choice(each.text.split(". ")).rstrip(".") for each in gold]
        if number % 20 == 0:
            facts[1] = f"{facts[1]} which no passage says"

        evidence: list[Evidence] = []
        for fact, document in zip(facts, gold, strict=True):
            evidence.append(Evidence(fact=fact, doc_id=document.id, title=document.title))
        words = facts[0].split()[:5] + facts[1].split()[:2]
        result.append(
            Question(
                id=f"q{number:05}",
                question=f"What about {' '.join(words)}?",
                golden_answers=(" ".join(facts[1].split()[-2:]),),
                metadata=QuestionMetadata(question_type="bridge", evidence_list=tuple(evidence)),
            )
        )

    return result


def make_rollouts(
    questions: list[Question], searcher: Searcher, samples: int, seed: int
) -> list[Trajectory]:
    """Answers after up to three searches; a third of them is right."""
    rng = random.Random(seed)
    rollouts: list[Trajectory] = []
    for question in questions:
        facts = [each.fact for each in question.metadata.evidence_list or ()]
        for sample in range(samples):
            queries = [" ".join(rng.sample(fact.split(), 4)) for fact in facts]
            queries = [*queries, question.question][: rng.randint(0, 3)]
            searches: list[tuple[str, list[Chunk]]] = []
            for query, hits in zip(queries, searcher.find_hits(queries, TOP_K), strict=True):
                searches.append((query, [hit.chunk for hit in hits]))

            answer = question.golden_answers[0] if rng.random() < 1 / 3 else "Nobody knows"
            rollouts.append(make_rollout(question, answer, searches, sample))

    return rollouts


def write_run(folder: Path, passages: int, questions: int, samples: int) -> None:
    """Write ``corpus.jsonl``, ``questions.jsonl``, ``run.jsonl`` and ``index`` to a folder."""
    section = load_preset("retrieve").value("index")
    values = {name: section[name] for name in IndexConfig.model_fields}
    documents = make_corpus(passages, seed=0)
    write_jsonl(folder / "corpus.jsonl", documents)
    config = IndexConfig.model_validate(values | {"encoder": None})
    build_index(folder / "corpus.jsonl", folder / "index", config, seed=0)
    question_set = make_questions(documents, questions, seed=1)
    write_jsonl(folder / "questions.jsonl", question_set)
    searcher = open_index(folder / "index")
    write_jsonl(folder / "run.jsonl", make_rollouts(question_set, searcher, samples, seed=2))


def measure(folder: Path, options: Options) -> tuple[float, float]:
    """Return the seconds that a run takes to be explained, with its page, and the peak memory, MB."""
    before_kb = restart_peak()
    started_s = time.perf_counter()
    report = report_of(explain_paths([folder / "run.jsonl"], options), options)
    render_explanation(report)
    return time.perf_counter() - started_s, (status_kb("VmHWM") - before_kb) / 1024


def main() -> None:
    """Print the tables."""
    options = parse_options(
        __doc__,
        tables=(["time"], "time, faults"),
        passages=(20_000, "of the corpus"),
        questions=(400, "of the run"),
        samples=(3, "answers per question"),
        data=(DATA, "folder of the real data"),
        sets=(["musique", "2wikimultihopqa", "hotpotqa"], "question sets with faults"),
        retrievers=(["bm25", "hybrid"], "how their passages are found"),
    )
    if "time" in options.tables:
        _publish_time(options)
    if "faults" in options.tables:
        _publish_faults(options)


def _publish_time(options: argparse.Namespace) -> None:
    lines: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_run(folder, options.passages, options.questions, options.samples)
        questions = folder / "questions.jsonl"
        ways = {
            "--index": Options(questions=questions, index=folder / "index"),
            "--corpus": Options(questions=questions, corpus=folder / "corpus.jsonl"),
        }

        for way, each in ways.items():
            seconds, memory_mb = measure(folder, each)
            reached = verdict(seconds <= TARGET_S)
            lines.append(
                [f"`deepsearch explain {way}`", f"{seconds:.1f}", f"{memory_mb:.0f}", reached]
            )

    rollouts = options.questions * options.samples
    header = [
        f"{rollouts:,} rollouts, {options.passages:,} passages",
        "s",
        "MB",
        f"target: {TARGET_S} s",
    ]
    publish(options, "explain", header, lines)


def _publish_faults(options: argparse.Namespace) -> None:
    lines: list[list[str]] = []
    for name in options.sets:
        for retriever in options.retrievers:
            with tempfile.TemporaryDirectory() as folder:
                for each in recover(Path(folder), options.data / name, retriever):
                    lines.append([name, retriever, *each.cells()])

    header = ["set", "retriever", "fault", "cause", "planted", "found", "share", "lost points"]
    publish(options, "explain faults", header, lines)


if __name__ == "__main__":
    main()
