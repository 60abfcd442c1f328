"""Published scores, as rows beside our own where these are of the same questions under the same setting.

``published.yaml`` holds them by task. A generated question set has no task, so no figure is ever
beside it.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, TypeAdapter

from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.evaluate.f1_row import F1TableRow, IfevalScore, Share

PUBLISHED = Path(__file__).with_name("published.yaml")


PublishedMetric = Literal["f1", "em", "acc", "prompt_strict"]
# How answers are compared. ``squad``: lower case, no punctuation, no articles.
Normalisation = Literal["squad"]


class Task(Record):
    """What a score is of; two scores stand side by side only where all of it is known and equal.

    None where a publication does not say it, or says it of no one setting.
    """

    dataset: NonEmpty
    questions: NonEmpty | None = Field(
        default=None, description="hub repository and split, `owner/name/split`; of IFEval `real`"
    )
    corpus: NonEmpty | None = None
    prompt: NonEmpty | None = None
    top_k: int | None = None
    chunk_size: int | None = None
    retriever: NonEmpty | None = None
    n: int | None = Field(default=None, ge=1, description="questions")


class Answering(Record):
    """How a publication's answers were made and compared; None where it does not say."""

    choice: NonEmpty | None = Field(
        default=None, description="which questions of the split: `all`, or `the first N`"
    )
    temperature: float | None = Field(default=None, ge=0)
    samples: int | None = Field(default=None, ge=1, description="answers per question")
    normalisation: Normalisation | None = None


class PublishedScores(Record):
    """What one publication states for one task: a block of ``published.yaml``."""

    source: NonEmpty
    metric: PublishedMetric | None = Field(description="null: the source does not name it")
    task: Task
    answering: Answering = Answering()
    scores: dict[NonEmpty, Share]


class PublishedRow(Record):
    """A published score beside the run that it is comparable with."""

    model: NonEmpty
    run: NonEmpty = Field(description="the run's name, as F1TableRow.run_name has it; ifeval")
    metric: PublishedMetric
    score: Share
    n: int = Field(ge=1, description="questions")
    source: NonEmpty


def published_rows(
    rows: Iterable[F1TableRow], ifeval: Iterable[IfevalScore], questions: Mapping[str, str]
) -> tuple[PublishedRow, ...]:
    """Return the published scores of the tasks that were answered here.

    ``questions`` names the hub repository and split of question sets, ``owner/name/split``; a set
    that is missing has no published score.
    """
    published: list[PublishedRow] = []
    for run, task in dict.fromkeys(_tasks(rows, ifeval, questions)):
        for block in read_published():
            if block.task != task or block.metric is None or task.n is None:
                continue

            for model, score in block.scores.items():
                published.append(
                    PublishedRow(
                        model=model,
                        run=run,
                        metric=block.metric,
                        score=score,
                        n=task.n,
                        source=block.source,
                    )
                )

    return tuple(published)


@cache
def read_published() -> tuple[PublishedScores, ...]:
    """Return the blocks of ``published.yaml``."""
    return TypeAdapter(tuple[PublishedScores, ...]).validate_python(
        yaml.load(PUBLISHED.read_text(encoding="utf-8"), yaml.CSafeLoader)
    )


def _tasks(
    rows: Iterable[F1TableRow], ifeval: Iterable[IfevalScore], questions: Mapping[str, str]
) -> Iterator[tuple[str, Task]]:
    for row in rows:
        if row.main and not row.generated and row.retriever and row.dataset in questions:
            key = row.model_dump(
                include={"dataset", "corpus", "prompt", "top_k", "chunk_size", "retriever", "n"}
            )
            yield row.run_name, Task(questions=questions[row.dataset], **key)

    for score in ifeval:
        if score.prompts == "real":
            yield "ifeval", Task(dataset="ifeval", questions=score.prompts, n=score.n)
