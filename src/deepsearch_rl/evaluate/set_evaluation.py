"""One question set under one setting: the runs that answer it, and the rows of the F1 table that they give."""

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from deepsearch_rl.agent.collect import Agent, BulkRun, MakeAgent, TrajectoryFile
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.chat.prompts import PromptPart, read_trained_with, served_with
from deepsearch_rl.core.records import Question
from deepsearch_rl.evaluate.controls import (
    ControlAgent,
    GivenPassages,
    GoldPassages,
    RandomPassages,
)
from deepsearch_rl.evaluate.evaluation_plan import Evaluation, PlannedRun, plan_runs
from deepsearch_rl.evaluate.f1_row import ControlScore, F1TableRow, RowKey, run_file
from deepsearch_rl.evaluate.score import build_control, build_row
from deepsearch_rl.search.manifest import ROWS_FOLDER, read_manifest
from deepsearch_rl.search.rows import ChunkStore
from deepsearch_rl.search.searcher import ranking_of
from deepsearch_rl.serve.adapters import tokenizer_folder
from deepsearch_rl.server.config import RetrievalConfig

# The names in tables of both halves together; a hybrid that is one half is called as that half is
_HYBRIDS = {"learned": "hybrid_learned", "reciprocal_ranks": "hybrid_rrf"}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is evaluated, and the servers that answer as it, which share the rollouts.

    ``checkpoint`` names the weights of its ``folder`` in tables, ``name_in_rollouts`` the model in
    rollouts.
    """

    name: str
    folder: Path
    checkpoint: str
    name_in_rollouts: str
    endpoints: Sequence[Endpoint]


@dataclass(frozen=True)
class SetEvaluation:
    """The evaluation of a model on a question set under one setting.

    ``data`` holds the profile's chunks and indexes. Running answers are logged in the folder
    ``log``, finished ones written into ``out``.
    """

    model: ServedModel
    setting: Evaluation
    dataset: str
    questions: Sequence[Question]
    data: Path
    log: Path
    out: Path

    @cached_property
    def corpus(self) -> str:
        """The corpus that is searched."""
        return self.setting.corpus_of(self.dataset)

    @cached_property
    def retrieval(self) -> RetrievalConfig:
        """How it is searched."""
        return self.setting.retrieval.for_dataset(self.dataset, self.setting.datasets)

    @cached_property
    def retriever(self) -> str:
        """How passages are found, as tables name it: what ranks, also under the name ``hybrid``, and a reranker."""
        retrieval = self.retrieval
        name: str = retrieval.retriever

        if retrieval.online is not None:
            name = "online"
        elif name == "hybrid":
            built = read_manifest(self.data / "index" / self.corpus)
            ranking = ranking_of(built.config, built.fusion_weights, name)
            name = _HYBRIDS.get(ranking, ranking)

        return f"{name}+rerank" if retrieval.reranker is not None else name

    @cached_property
    def planned(self) -> tuple[PlannedRun, ...]:
        """The runs over the set; the main one is the first."""
        setting = self.setting
        return tuple(plan_runs(self.dataset, self.questions, setting.evaluate, setting.variant))

    def runs(self, retrieval_url: str, gold: Future[GoldPassages]) -> Iterator[BulkRun]:
        """Yield every planned run with the agents that answer it, its log and its artifact."""
        for run in self.planned:
            make_agents: list[MakeAgent] = []
            for endpoint in self.model.endpoints:
                make_agents.append(
                    functools.partial(self._open_agent, run, endpoint, retrieval_url, gold)
                )

            file = run_file(run.dataset, run.condition, run.temperature, run.variant)
            condition = run.variant or run.condition
            yield BulkRun(
                run.questions,
                samples=run.samples,
                make_agents=make_agents,
                log=self.log / file,
                label=f"{self.model.name} {run.dataset} {condition} T={run.temperature:g}",
                out=self.out / file,
            )

    def rows(self, answered: Sequence[TrajectoryFile]) -> list[F1TableRow]:
        """Return the rows of the planned runs' rollouts; that of the main run holds the controls."""
        main, *others = self.planned
        searched, *rollouts_of_others = answered
        row = self._row(main, searched)
        controls: dict[str, ControlScore] = {}
        rows: list[F1TableRow] = []

        for run, rollouts in zip(others, rollouts_of_others, strict=True):
            if run.condition == "search":
                rows.append(self._row(run, rollouts))
            else:
                draws = self.setting.evaluate.draws
                control = build_control(rollouts, searched, run.samples, row, draws)
                controls[run.condition] = control.model_copy(
                    update={"asked_again": rollouts.asked_again}
                )

        return [row.model_copy(update={"controls": controls}), *rows]

    @asynccontextmanager
    async def _open_agent(
        self,
        run: PlannedRun,
        endpoint: Endpoint,
        retrieval_url: str,
        gold: Future[GoldPassages],
    ) -> AsyncIterator[Agent]:
        config = self.setting.agent
        seed = self.setting.seed
        name = self.model.name_in_rollouts

        if run.condition == "search":
            searching = SearchAgent(
                config, endpoint, retrieval_url, run.temperature, model_name=name, seed=seed
            )
            async with searching as agent:
                yield agent
            return

        passages = await self._given_passages(run, gold)
        control = ControlAgent(config, endpoint, run.temperature, name, passages, seed)
        async with control as agent:
            yield agent

    async def _given_passages(
        self, run: PlannedRun, gold: Future[GoldPassages]
    ) -> GivenPassages | None:
        """Return what a control shows in place of search results; None where nothing is searched."""
        if run.condition == "no_search":
            return None
        if run.condition == "gold_passage":
            return await asyncio.wrap_future(gold)

        rows = self.data / "index" / self.corpus / ROWS_FOLDER
        chunks = ChunkStore(self.data / "chunks" / f"{self.corpus}.jsonl", rows)
        return RandomPassages(chunks, self.setting.retrieval.top_k, self.setting.seed)

    def _trained_with_other(self) -> tuple[PromptPart, ...] | None:
        """Return which texts the model was trained with in another form than this setting's; None if not known."""
        folder = self.model.folder
        trained = read_trained_with(folder)
        if trained is None:
            return None
        return trained.other_parts(
            served_with(tokenizer_folder(folder), self.setting.agent.prompt_digests())
        )

    def _row(self, run: PlannedRun, rollouts: TrajectoryFile) -> F1TableRow:
        generated = any(map(_is_generated, run.questions))
        key = RowKey(
            model=self.model.name,
            checkpoint=self.model.checkpoint,
            dataset=run.dataset,
            corpus=self.corpus,
            prompt=self.setting.agent.prompt_title,
            top_k=self.setting.retrieval.top_k,
            chunk_size=self.setting.chunk.size_of(self.corpus),
            retriever=self.retriever,
            temperature=run.temperature,
            temperature_sent=self.model.endpoints[0].options.temperature == "send",
            samples=run.samples,
            seed=self.setting.seed,
            variant=self.setting.variant,
            trained_with_other=self._trained_with_other(),
        )
        row = build_row(key, rollouts, generated, self.setting.evaluate.draws)
        return row.model_copy(update={"asked_again": rollouts.asked_again})


def _is_generated(question: Question) -> bool:
    return (question.metadata.model_extra or {}).get("generated") is True
