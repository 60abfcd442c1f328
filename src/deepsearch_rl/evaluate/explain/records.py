"""The records of `deepsearch explain --json`; docs/evaluation.md defines every figure."""

from typing import Literal

from pydantic import Field

from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.evaluate.explain.causes import TITLES, Cause
from deepsearch_rl.evaluate.score import Interval

# Stands beside the causes: answers that lost nothing although some gold evidence was never shown
WITHOUT_EVIDENCE = "right_without_evidence"

# What the page and the table call the ceilings
CEILINGS = {
    "in_corpus": "evidence in the corpus",
    "question": "top k of the question",
    "best_query": "top k of the best single query",
    "agent": "all of the agent's searches",
}
CONTROLS = {
    "gold_passage": "F1 with gold passages",
    "random_passage": "F1 with random passages",
    "no_search": "F1 without search",
}


def title_of(cause: str) -> str:
    """Return what people call a cause, or what stands beside the causes."""
    return "right without evidence" if cause == WITHOUT_EVIDENCE else TITLES[Cause(cause)]


class Setting(Record):
    """How a run was made; None where nothing says so."""

    dataset: str = Field(default="", description="name of the question set; empty if unknown")
    split: NonEmpty | None = None
    generated: bool | None = Field(
        default=None, description="whether questions and corpus are generated, not a published set"
    )
    corpus: NonEmpty | None = None
    prompt: NonEmpty | None = None
    top_k: int | None = Field(default=None, description="passages per search")
    chunk_size: int | None = Field(
        default=None, description="tokens per passage, at most; 0: passages as they come"
    )
    retriever: NonEmpty | None = None
    temperature: float | None = None
    samples: int | None = Field(default=None, description="answers per question")


class CauseReport(Record):
    """What one cause costs."""

    lost: Interval = Field(description="lost points, as a share of all points of the run")
    answers: int = Field(ge=0, description="answers with this cause")
    details: dict[str, int] = Field(
        description="answers by stop reason, or by how a right answer lost its points"
    )
    examples: tuple[str, ...] = Field(description="up to three of these answers, by id")


class GroupReport(Record):
    """Lost points of some of the questions."""

    n: int = Field(ge=1, description="questions")
    f1: Interval
    right_without_evidence: Interval
    lost: dict[Cause, Interval]


class ExampleItem(Record):
    """A gold item of an example."""

    text: str
    shown: bool
    in_corpus: bool | None


class ExampleSearch(Record):
    """A search of an example."""

    query: str
    passages: int
    items: int = Field(description="gold items that it showed")


class Example(Record):
    """One answer to look at."""

    id: NonEmpty
    cause: str = Field(description="a cause, or right_without_evidence")
    detail: str
    question_type: str
    question: str
    golden_answers: tuple[str, ...]
    answer: str
    last_text: str
    f1: float
    stop_reason: str
    error: str
    items: tuple[ExampleItem, ...]
    searches: tuple[ExampleSearch, ...] | None


class Ceiling(Record):
    """How much of the gold evidence can be reached in one way."""

    whole: Interval = Field(description="share of questions of which every gold item is reached")
    recall: Interval = Field(description="mean share of a question's gold items")


class ControlFigure(Record):
    """F1 of the same system under another condition, beside its F1 with search on the same questions."""

    n: int = Field(ge=1, description="questions")
    f1: Interval
    searched_f1: float
    failures: dict[str, int] = Field(
        default={}, description="answers of the control that failed, by kind"
    )


class Ceilings(Record):
    """What the corpus, the index and the queries allow; None where it cannot be computed."""

    n: int = Field(ge=0, description="questions whose evidence is known")
    in_corpus: Ceiling | None = None
    question: Ceiling | None = Field(default=None, description="top k of the question itself")
    best_query: Ceiling | None = Field(
        default=None,
        description="of the question, its gold titles and the agent's queries, the single best one",
    )
    agent: Ceiling | None = Field(default=None, description="all searches of an answer together")
    controls: dict[str, ControlFigure] = Field(default_factory=dict)


class RunReport(Record):
    """Where the points of one run are lost."""

    model: NonEmpty
    dataset: str
    file: str
    setting: Setting
    n: int = Field(ge=1, description="questions")
    answers: int = Field(ge=1)
    evidence: dict[str, int] = Field(
        description="questions by what stands for their evidence: facts, documents, titles, answer, unanswerable, "
        "unknown"
    )
    passages: int | None = Field(description="passages of the corpus; null: none was given")
    top_k: int = Field(ge=0)
    f1: Interval
    right_without_evidence: CauseReport
    causes: dict[Cause, CauseReport]
    types: dict[str, GroupReport]
    hops: dict[str, GroupReport]
    ceilings: Ceilings
    stops: dict[str, int]
    examples: tuple[Example, ...]
    notes: tuple[str, ...]


class Movement(Record):
    """``model`` minus ``other``, question by question."""

    dataset: str
    model: NonEmpty
    other: NonEmpty
    n: int
    f1: Interval
    right_without_evidence: Interval
    lost: dict[Cause, Interval]


class SettingDifference(Record):
    """One thing that decides a score, here and in a publication."""

    what: NonEmpty
    here: str | None
    published: str | None
    verdict: Literal["same", "differs", "unknown"]


class Recomputed(Record):
    """The score of the run under another choice, and how far that is from the run's own."""

    what: NonEmpty
    metric: NonEmpty
    n: int = Field(ge=1, description="questions")
    score: float
    change: Interval = Field(description="that score minus the run's own F1, paired by question")


class AgainstReport(Record):
    """A run beside a published row."""

    model: NonEmpty
    dataset: str
    published_model: NonEmpty
    source: NonEmpty
    metric: str | None
    score: float
    comparable: bool = Field(description="nothing differs, and nothing is unknown")
    settings: tuple[SettingDifference, ...]
    recomputed: tuple[Recomputed, ...]
    unknown: tuple[str, ...] = Field(
        description="what differs or is unknown, and what it changes cannot be computed from this run"
    )


class ExplainReport(Record):
    """Everything that `deepsearch explain` says."""

    schema_version: Literal[1] = 1
    runs: tuple[RunReport, ...]
    movements: tuple[Movement, ...] = ()
    against: tuple[AgainstReport, ...] = ()

    def metrics(self, dataset: str) -> dict[str, dict[str, float]]:
        """Return every model's lost points on a question set for MLflow, ``lost/<cause>``, and what was right by luck.

        The causes of a model add up to 1 - F1; those that nothing was lost to are there with 0, so
        that the curves of several runs have the same names.
        """
        metrics: dict[str, dict[str, float]] = {}
        for run in self.runs:
            if run.dataset != dataset:
                continue
            values: dict[str, float] = {}
            for cause in Cause:
                entry = run.causes.get(cause)
                values[f"lost/{cause}"] = entry.lost.mean if entry else 0.0
            values[f"lost/{WITHOUT_EVIDENCE}"] = run.right_without_evidence.lost.mean
            metrics[run.model] = values

        return metrics
