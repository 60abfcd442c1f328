"""Records of an evaluation: rows of the F1 table, IFEval scores, and what they were made of."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from deepsearch_rl.chat.prompts import PromptPart, parts_text
from deepsearch_rl.core.records import NonEmpty, Record

# Six decimals, so that equal results have equal files
Rounded = Annotated[float, AfterValidator(lambda value: round(value, 6))]
# A score in [0, 1]
Share = Rounded
Control = Literal["no_search", "random_passage", "gold_passage"]
# How a question was answered: by the agent with its search tool, without it, or with passages
# given. The given passages are random ones, or those with the gold evidence.
Condition = Literal["search", "no_search", "random_passage", "gold_passage"]


AskedAgain = Annotated[
    int,
    Field(
        ge=0,
        exclude_if=lambda count: count == 0,
        description="rollouts that stand in place of an earlier one which a server had failed; written where above 0",
    ),
]


def run_file(dataset: str, condition: Condition, temperature: float, variant: str = "") -> str:
    """Return the name of the file that holds the rollouts of one run, e.g. ``musique.search.t0.7.jsonl``.

    The name of a variant comes before the suffix: ``musique.search.t0.7.top5.jsonl``.
    """
    return f"{dataset}.{condition}.t{temperature:g}{f'.{variant}' if variant else ''}.jsonl"


def counts_text(counts: Mapping[str, int]) -> str:
    """Return counts of rollouts by kind as readers see them: ``2 deadline, 48 tool_call_unparsable``, or ``none``."""
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"


class ConstantScore(Record):
    """The constant answer: the golden answer that scores best when it is given to every question of a set."""

    answer: str
    f1: float
    em: float


class F1Score(Record):
    """Mean F1, with its interval, and exact match of some questions."""

    n: int = Field(ge=1, description="questions")
    em: Share
    f1: Share
    f1_low: Share = Field(description="lower end of the 95 % bootstrap interval over questions")
    f1_high: Share


class TypeScore(F1Score):
    """Scores of the questions of one type."""

    mean_tool_calls: Rounded
    constant: ConstantScore


class ControlScore(F1Score):
    """Scores of the same model on the first ``n`` questions of the set under other conditions."""

    temperature: float
    samples: int
    searched_f1: Share = Field(
        description="F1 with search on the same questions, for a fair comparison"
    )
    failures: dict[str, int] = Field(
        description="rollouts that did not end in an answer, by stop reason"
    )
    asked_again: AskedAgain = 0


class RowKey(Record):
    """What identifies a row: the model, the question set and the setting."""

    model: NonEmpty
    checkpoint: NonEmpty = Field(
        description="weights: the folder, and the step that was kept where there were several"
    )
    dataset: NonEmpty
    corpus: NonEmpty
    prompt: NonEmpty
    top_k: int = Field(description="passages per search")
    chunk_size: int = Field(
        ge=0, description="tokens per passage, at most; 0: passages as they come"
    )
    retriever: str = Field(
        default="",
        description="how passages are found: bm25 | dense | hybrid_rrf | hybrid_learned | online, with +rerank; empty "
        "where it is not known",
    )
    temperature: float
    temperature_sent: bool = Field(
        default=True,
        exclude_if=lambda is_sent: is_sent,
        description="false: the requests leave it out (temperature: omit), and the provider's own counts; written "
        "where false",
    )
    greedy_only: bool = Field(
        default=False,
        exclude_if=lambda is_greedy: not is_greedy,
        description="the main figure is of greedy answers (evaluate.temperature: 0); written where true",
    )
    samples: int = Field(
        ge=1, description="answers per question, averaged per question before anything else"
    )
    seed: int
    variant: str = Field(
        default="", description="name in evaluate.variants; empty under the profile's own setting"
    )
    trained_with_other: tuple[PromptPart, ...] | None = Field(
        default=None,
        description="what the model was trained with in another form than it answered with; null: not known",
    )


class F1TableRow(F1Score, RowKey):
    """One model on one question set under one setting."""

    acc: Share
    precision: Share
    recall: Share
    mean_rounds: Rounded = Field(description="assistant turns per rollout")
    mean_tool_calls: Rounded = Field(description="searches asked for per rollout")
    failures: dict[str, int] = Field(
        description="rollouts that did not end in an answer, by stop reason"
    )
    asked_again: AskedAgain = 0
    pass_at: dict[int, Share] = Field(
        description="pass@k by k: 1, and the largest power of two among the samples"
    )
    generated: bool = Field(
        description="the questions and their corpus are generated, not a published set"
    )
    constant: ConstantScore
    types: dict[str, TypeScore]
    controls: dict[Control, ControlScore] = Field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """``failures`` by kind, and ``asked_again`` where there are any, as tables show them."""
        again = {"asked_again": self.asked_again} if self.asked_again else {}
        return {**self.failures, **again}

    @property
    def main(self) -> bool:
        """Whether this is the main figure of its setting, not that of greedy answers beside sampled ones."""
        return self.temperature > 0 or self.greedy_only

    @property
    def pass_scores(self) -> dict[str, float]:
        """Every pass@k by its name in flat tables and in MLflow, ``pass_at_<k>``."""
        return {f"pass_at_{k}": value for k, value in self.pass_at.items()}

    @property
    def temperature_text(self) -> str:
        """The temperature as tables show it; ``own`` is the provider's."""
        return "own" if self.sent_temperature is None else f"{self.sent_temperature:g}"

    @property
    def sent_temperature(self) -> float | None:
        """The temperature that the requests had; None where they had none."""
        return self.temperature if self.temperature_sent else None

    @property
    def kind(self) -> str:
        """What distinguishes the row from its model's main row on the set: a variant's name, ``greedy``, or nothing."""
        return self.variant or ("" if self.main else "greedy")

    @property
    def training_note(self) -> str:
        """What the model was trained with in another form, ``another system prompt``; empty where nothing is known."""
        return f"another {parts_text(self.trained_with_other)}" if self.trained_with_other else ""

    @property
    def flat_trained_with_other(self) -> str:
        """The parts in a flat table, with semicolons between; ``none`` or ``unknown`` where there are none."""
        if self.trained_with_other is None:
            return "unknown"
        return ";".join(self.trained_with_other) or "none"

    @property
    def run_name(self) -> str:
        """The question set and the kind, e.g. ``multihoprag`` or ``multihoprag, greedy``."""
        return f"{self.dataset}, {self.kind}" if self.kind else self.dataset

    @property
    def passage_length(self) -> str:
        """How long a passage is, e.g. ``of at most 256 tokens``."""
        return f"of at most {self.chunk_size} tokens" if self.chunk_size else "as they come"

    @property
    def rollouts_file(self) -> str:
        """Name of the file, in the model's evaluation folder, that holds the rollouts behind the row."""
        return run_file(self.dataset, "search", self.temperature, self.variant)

    @property
    def sort_key(self) -> tuple[str, str, str, float, str, int]:
        """Canonical order of rows: a model's variants after its own."""
        return (self.dataset, self.model, self.variant, -self.temperature, self.prompt, self.top_k)

    @property
    def setting_text(self) -> str:
        """The prompt, and what a search shows, ``prompt `x`, top-3 passages of at most 256 tokens by hybrid_rrf``."""
        by = f" by {self.retriever}" if self.retriever else ""
        return f"prompt `{self.prompt}`, top-{self.top_k} passages {self.passage_length}{by}"

    def setting_from(self, own: "F1TableRow") -> str:
        """Return how the setting differs from that of ``own``, e.g. ``top 5, retriever bm25``; empty if it does not."""
        changes: list[str] = []
        if self.prompt != own.prompt:
            changes.append(f"prompt “{self.prompt}”")
        if self.top_k != own.top_k:
            changes.append(f"top {self.top_k}")
        if self.chunk_size != own.chunk_size:
            chunks = f"{self.chunk_size}-token chunks"
            changes.append(chunks if self.chunk_size else "passages as they come")
        if self.retriever != own.retriever:
            changes.append(f"retriever {self.retriever or 'not known'}")
        if self.corpus != own.corpus:
            changes.append(f"corpus {self.corpus}")

        return ", ".join(changes)

    def changes_from(self, own: "F1TableRow") -> str:
        """Return how a variant differs from the profile's ``own`` row, e.g. ``top 5, 400-token chunks``."""
        changes: list[str] = []
        setting = self.setting_from(own)
        if setting:
            changes.append(setting)
        if self.n != own.n:
            changes.append(f"{self.n} questions")
        if self.samples != own.samples:
            answers = "answer" if self.samples == 1 else "answers"
            changes.append(f"{self.samples} {answers} each")

        return ", ".join(changes) or "the same setting"


class ModelEvaluation(Record):
    """``rows.json`` of one evaluated model."""

    schema_version: Literal[1] = 1
    model: NonEmpty
    seed: int
    settings_sha256: NonEmpty = Field(
        description="of the params sections that decide how models are evaluated"
    )
    inputs: dict[str, str] = Field(
        description="the model and what it was evaluated against: artifact -> sha256"
    )
    rows: tuple[F1TableRow, ...]


class IfevalScore(Record):
    """``scores.json`` of one model's IFEval run; accuracies as the official scorer defines them."""

    schema_version: Literal[1] = 1
    model: NonEmpty
    prompts: Literal["generated", "real"]
    n: int = Field(ge=1, description="prompts asked, and scored")
    instructions: int = Field(ge=1, description="instructions over all prompts")
    instruction_ids: int = Field(ge=1, description="distinct kinds of instruction")
    prompt_strict: Share
    prompt_loose: Share
    inst_strict: Share
    inst_loose: Share
