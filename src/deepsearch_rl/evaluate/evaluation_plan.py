"""Plan of an evaluation: question sets, conditions, temperatures, variants, and how many questions of each."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field, JsonValue

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.files import sha256_json
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import NonEmpty, Question, QuestionMetadata, Record
from deepsearch_rl.data.chunking import ChunkConfig
from deepsearch_rl.evaluate.f1_row import Condition
from deepsearch_rl.search.quality import DatasetConfig
from deepsearch_rl.serve.launch import ServingConfig
from deepsearch_rl.server.launch import RetrievalConfig

_LOG = logging.getLogger(__name__)


def _not_reserved(name: str) -> str:
    if name == "greedy":
        raise ValueError(
            f"{name!r} is what the row at temperature 0 is called; give the variant another name"
        )

    return name


# Part of file names and of metric names
VariantName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]*$"), AfterValidator(_not_reserved)]


class SetPlan(Record):
    """How much of one question set is answered."""

    questions: int | None = Field(ge=1, description="the first so many of the split; null for all")
    samples: int = Field(ge=1, description="answers per question at the sampling temperature")
    greedy: int = Field(ge=0, description="the first so many of them once more at temperature 0")
    controls: int = Field(ge=0, description="the first so many of them once per control")


class VariantPlan(Record):
    """A set answered once more under another setting, for additional rows; null keeps the profile's value."""

    models: tuple[str, ...] | None = Field(description="models that answer; null: every model")
    dataset: NonEmpty = Field(description="a set of section datasets")
    prompt: str | None = Field(description="name or path of a prompt, as agent.prompt")
    top_k: int | None = Field(ge=1, description="passages per search")
    corpus: str | None = Field(description="another corpus, such as one of chunk.variants")
    questions: int | None = Field(ge=1, description="the first so many of the split; null for all")
    samples: int = Field(ge=1, description="answers per question at the sampling temperature")


class EvaluateConfig(Record):
    """Section ``evaluate``."""

    split: NonEmpty = Field(description="questions of this split are answered")
    temperature: float = Field(
        ge=0,
        description="of the main figure; 0: greedy answers alone, one per question, whatever samples and greedy say",
    )
    random_passages: bool = Field(
        exclude_if=lambda is_asked: not is_asked,
        description="whether a third control answers with random passages of the corpus",
    )
    agent: dict[str, JsonValue] = Field(
        description="fields of section agent that have other values in evaluation"
    )
    sets: dict[str, SetPlan] = Field(
        min_length=1, description="question sets, by the name they have in datasets"
    )
    variants: dict[VariantName, VariantPlan] = Field(
        description="rows beside the main ones, by their name"
    )
    draws: int = Field(ge=100, description="bootstrap resamples per interval")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything that decides how a model is evaluated: the params sections of these names.

    ``agent`` has the values that ``evaluate.agent`` gives it. ``variant`` is the name of a variant,
    empty for the profile's own setting.
    """

    evaluate: EvaluateConfig
    agent: AgentConfig
    retrieval: RetrievalConfig
    serving: ServingConfig
    datasets: Mapping[str, DatasetConfig]
    chunk: ChunkConfig
    seed: int
    variant: str = ""

    @classmethod
    def of(cls, profile: Profile) -> "Evaluation":
        """Read the sections of a profile; :class:`ConfigError` if one is missing or does not fit."""
        evaluate = profile.section("evaluate", EvaluateConfig)
        changed = profile.with_overrides(
            {f"agent.{name}": value for name, value in evaluate.agent.items()}
        )
        return cls(
            evaluate=evaluate,
            agent=changed.section("agent", AgentConfig),
            retrieval=profile.section("retrieval", RetrievalConfig),
            serving=profile.section("serving", ServingConfig),
            datasets=profile.mapping("datasets", DatasetConfig),
            chunk=profile.section("chunk", ChunkConfig),
            seed=profile.value("seed"),
        )

    def digest(self) -> str:
        """Return the SHA-256 of all settings."""
        sections = (
            self.evaluate,
            self.agent,
            self.retrieval,
            self.serving,
            self.chunk,
            *self.datasets.values(),
        )
        return sha256_json(
            [
                list(self.datasets),
                self.seed,
                self.variant,
                *(section.model_dump(mode="json") for section in sections),
            ]
        )

    def rollout_fingerprint(self, dataset: str, served_here: bool) -> str:
        """Return the SHA-256 of the settings that decide a rollout on a set, given model, questions, chunks and index.

        The number of questions, the concurrency and the scoring are not among them, so that
        finished rollouts stay valid when those change. Section ``serving`` counts where the model
        is ``served_here``, from weights.
        """
        served = self.serving.digest_of_answers() if served_here else None
        search = self.retrieval.for_dataset(dataset, self.datasets).search_fingerprint()
        return sha256_json([self.seed, self.agent.rollout_fingerprint(), search, served])

    def corpus_of(self, dataset: str) -> str:
        """Return the corpus of a question set; :class:`UnknownNameError` if section ``datasets`` has no such set."""
        return look_up("dataset", dataset, self.datasets).corpus


def settings_of(setting: Evaluation, model: str) -> Iterator[Evaluation]:
    """Yield the profile's own setting, then every variant that the model answers, each as an evaluation by itself.

    Raise UnknownNameError where a variant names a set or a prompt that does not exist.
    """
    own = replace(setting, evaluate=setting.evaluate.model_copy(update={"variants": {}}))
    yield own

    for name, plan in setting.evaluate.variants.items():
        if plan.models is not None and model not in plan.models:
            continue
        set_plan = SetPlan(questions=plan.questions, samples=plan.samples, greedy=0, controls=0)
        prompt = {"prompt": plan.prompt or own.agent.prompt}
        retrieval = own.retrieval.for_dataset(plan.dataset, own.datasets)
        yield replace(
            own,
            evaluate=own.evaluate.model_copy(update={"sets": {plan.dataset: set_plan}}),
            # A copy would not check the prompt
            agent=AgentConfig.model_validate(own.agent.model_dump() | prompt),
            retrieval=retrieval.model_copy(update={"top_k": plan.top_k or own.retrieval.top_k}),
            datasets={
                plan.dataset: DatasetConfig(corpus=plan.corpus or own.corpus_of(plan.dataset))
            },
            variant=name,
        )


class PlannedRun(NamedTuple):
    """One pass over the questions of a set under one condition."""

    dataset: str
    condition: Condition
    temperature: float
    samples: int
    questions: tuple[Question, ...]
    variant: str


def plan_runs(
    dataset: str, questions: Sequence[Question], evaluate: EvaluateConfig, variant: str
) -> Iterator[PlannedRun]:
    """Yield the runs over one set, without the gold-passage control where no question has facts or document ids.

    Titles alone stand for whole articles, and name no passages.
    """
    plan = evaluate.sets[dataset]
    temperature = evaluate.temperature
    planned = tuple(questions[: plan.questions])
    # Greedy answers to one question are equal
    samples = plan.samples if temperature else 1
    yield PlannedRun(dataset, "search", temperature, samples, planned, variant)
    if plan.greedy and temperature:
        yield PlannedRun(dataset, "search", 0.0, 1, planned[: plan.greedy], variant)
    controlled = planned[: plan.controls]
    if controlled:
        yield PlannedRun(dataset, "no_search", temperature, 1, controlled, variant)
    if controlled and evaluate.random_passages:
        yield PlannedRun(dataset, "random_passage", temperature, 1, controlled, variant)
    if any(_names_passages(question.metadata) for question in controlled):
        yield PlannedRun(dataset, "gold_passage", temperature, 1, controlled, variant)
    elif controlled:
        _LOG.warning(
            "%s: there is no control with gold passages, because no question has evidence_list or supporting_doc_ids",
            dataset,
        )


def _names_passages(metadata: QuestionMetadata) -> bool:
    return metadata.evidence_list is not None or bool(metadata.supporting_doc_ids)
