"""What an evaluation runs: question sets, conditions, temperatures, and how many questions of each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from deepsearch_rl.agent.rollout import AgentConfig
from deepsearch_rl.evaluation.rows import Condition, Control, run_file
from deepsearch_rl.files import sha256_json
from deepsearch_rl.records import NonEmpty, Question, Record
from deepsearch_rl.retrieval.quality import DatasetConfig
from deepsearch_rl.retrieval.server.launch import RetrievalConfig
from deepsearch_rl.serving.launch import ServingConfig

CONTROLS: tuple[Control, ...] = ("no_search", "gold_passage")


class SetPlan(Record):
    """How much of one question set is answered."""

    questions: int | None = Field(ge=1, description="the first so many of the split; null for all")
    samples: int = Field(ge=1, description="answers per question at the sampling temperature")
    greedy: int = Field(ge=0, description="the first so many of them once more at temperature 0")
    controls: int = Field(ge=0, description="the first so many of them once per control")


class EvaluateConfig(Record):
    """Section ``evaluate``."""

    split: NonEmpty = Field(description="questions of this split are answered")
    temperature: float = Field(gt=0, description="of the main figure")
    sets: dict[str, SetPlan] = Field(min_length=1, description="question sets, by the name they have in datasets")
    draws: int = Field(ge=100, description="bootstrap resamples per interval")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything that decides how a model is evaluated; the params sections of these names."""

    evaluate: EvaluateConfig
    agent: AgentConfig
    retrieval: RetrievalConfig
    serving: ServingConfig
    datasets: Mapping[str, DatasetConfig]
    chunk_size: int
    seed: int

    def digest(self) -> str:
        """SHA-256 of all of it."""
        sections = (self.evaluate, self.agent, self.retrieval, self.serving, *self.datasets.values())
        return sha256_json(
            [
                list(self.datasets),
                self.chunk_size,
                self.seed,
                *(section.model_dump(mode="json") for section in sections),
            ]
        )


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over the questions of a set under one condition."""

    dataset: str
    condition: Condition
    temperature: float
    samples: int
    questions: tuple[Question, ...]

    @property
    def file(self) -> str:
        """Name of the file that its rollouts go to."""
        return run_file(self.dataset, self.condition, self.temperature)


def plan_runs(dataset: str, questions: Sequence[Question], plan: SetPlan, temperature: float) -> Iterator[Run]:
    """The runs over one set. The gold-passage control is left out where no question's evidence is known."""
    asked = tuple(questions[: plan.questions])
    yield Run(dataset, "search", temperature, plan.samples, asked)
    if plan.greedy:
        yield Run(dataset, "search", 0.0, 1, asked[: plan.greedy])
    for control in CONTROLS if plan.controls else ():
        chosen = asked[: plan.controls]
        if control == "no_search" or any(question.metadata.evidence_list is not None for question in chosen):
            yield Run(dataset, control, temperature, 1, chosen)
