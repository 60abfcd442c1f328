"""One question set under one setting: the runs that answer it, and the rows of the F1 table that they give."""

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self, TypeAlias

from deepsearch_rl.agent.collect import Agent, BulkRun, MakeAgent, TrajectoryFile
from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.protocols import EndpointPolicy, open_protocol
from deepsearch_rl.agent.rollout import RolloutModel, SearchAgent, rollout_seed, run_rollout
from deepsearch_rl.agent.search_tool import SearchTool, ShownPassage
from deepsearch_rl.agent.steps import RolloutSteps
from deepsearch_rl.agent.transcript import RolloutKey, Transcript
from deepsearch_rl.chat.client import open_client
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.chat.prompts import PromptPart, read_trained_with, served_with
from deepsearch_rl.core.records import Chunk, Question, Retrieval, Trajectory
from deepsearch_rl.data.titles import title_key
from deepsearch_rl.evaluate.evaluation_plan import Evaluation, PlannedRun, plan_runs
from deepsearch_rl.evaluate.f1_row import ControlScore, F1TableRow, RowKey, run_file
from deepsearch_rl.evaluate.score import build_control, build_row
from deepsearch_rl.search.gold import chunk_title_key, gold_evidence, without_space
from deepsearch_rl.search.manifest import ROWS_FOLDER, read_manifest
from deepsearch_rl.search.rows import ChunkStore
from deepsearch_rl.search.searcher import ranking_of
from deepsearch_rl.serve.adapters import tokenizer_folder
from deepsearch_rl.server.config import RetrievalConfig

# Returns what every search of a question shows
GivenPassages: TypeAlias = Callable[[Question], tuple[Chunk, ...]]


class ControlAgent:
    """Answers questions under one of the controls; the same interface and arguments as ``SearchAgent``.

    ``passages`` finds the result of every search; None for the control without search.
    """

    def __init__(
        self,
        config: AgentConfig,
        endpoint: Endpoint,
        temperature: float,
        model_name: str,
        passages: GivenPassages | None,
        seed: int,
    ) -> None:
        self._endpoint = endpoint
        self._seed = seed
        self._passages = passages
        self._key = RolloutKey(model_name, config.prompt_title, temperature, config.protocol)
        self._protocol = open_protocol(
            config,
            offer_tool=passages is not None,
            begins_in_thought=endpoint.begins_in_thought,
        )
        # A control with passages begins with a search that the model did not write, which is a turn
        inserted_turn = {"max_turns": config.max_turns + 1}
        single_answer = {"max_searches": 0, "max_turns": 1}
        self._config = config.model_copy(
            update=single_answer if passages is None else inserted_turn
        )
        self._tool = SearchTool(self._search, self._config, self._protocol)

    async def __aenter__(self) -> Self:
        self._client = open_client(self._endpoint, self._config.call_timeout_s)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()

    async def answer(self, question: Question, sample: int) -> Trajectory:
        """Answer one question; a failure is the trajectory's stop reason and error, nothing is raised."""
        transcript = Transcript(question, self._protocol.opening(question.question))
        # Begin with a search that the model did not write
        if self._passages is not None:
            passages = await self._search(question.question, question)
            retrieval = Retrieval(
                query=question.question, chunk_ids=tuple(passage.chunk_id for passage in passages)
            )
            search = self._protocol.search_turn(question.question)
            transcript.messages.append(search)
            transcript.keep(search.tool_calls[0], self._protocol.observation(passages), retrieval)

        seed = rollout_seed(self._seed, question, sample)
        policy = EndpointPolicy(
            self._client, self._endpoint, self._protocol, self._key.temperature, seed
        )
        model = RolloutModel(policy, RolloutSteps(self._protocol, self._config, transcript))
        reason, detail = await run_rollout(model, self._tool, transcript)
        return transcript.finish(
            sample, self._key, reason, detail and self._endpoint.redact(detail)
        )

    async def _search(self, query: str, question: Question) -> tuple[ShownPassage, ...]:  # noqa: ARG002 - the same for all
        chunks = self._passages(question) if self._passages else ()
        return tuple(ShownPassage(chunk=chunk.contents, chunk_id=chunk.id) for chunk in chunks)


class GoldPassages:
    """Finds the chunks that hold a question's gold facts, or without facts, those of its gold documents.

    A fact belongs to the chunk of its document that contains it (ignoring white space). A fact that
    no chunk contains, because a chunk's end cut it or the source words it differently, belongs to
    all chunks of its document. Documents are named by id, or by title where the source gives no id.
    Only chunks of documents that ``questions`` name stay in memory.
    """

    def __init__(self, chunks: Iterable[Chunk], questions: Iterable[Question]) -> None:
        ids: set[str] = set()
        titles: set[str] = set()
        for question in questions:
            if not question.metadata.evidence_list:
                ids.update(question.metadata.supporting_doc_ids or ())
            for fact in question.metadata.evidence_list or ():
                if fact.doc_id is not None:
                    ids.add(fact.doc_id)
                elif fact.title:
                    titles.add(title_key(fact.title))

        self._by_document: dict[str, list[Chunk]] = {}
        # A corpus has millions of passages: without evidence it is not read
        for chunk in chunks if ids or titles else ():
            if chunk.metadata.doc_id in ids or chunk_title_key(chunk) in titles:
                self._by_document.setdefault(chunk.metadata.doc_id, []).append(chunk)

        self._id_of_title: dict[str, str] = {}
        for doc_id, chunks_of_document in self._by_document.items():
            self._id_of_title[chunk_title_key(chunks_of_document[0])] = doc_id

    def __call__(self, question: Question) -> tuple[Chunk, ...]:
        """Return the gold passages of ``question``."""
        passages: dict[str, Chunk] = {}
        for evidence in question.metadata.evidence_list or ():
            doc_id = evidence.doc_id or ""
            if not doc_id and evidence.title:
                doc_id = self._id_of_title.get(title_key(evidence.title), "")

            chunks = self._by_document.get(doc_id, [])
            fact = without_space(evidence.fact)
            with_fact = [chunk for chunk in chunks if fact in without_space(chunk.contents)]
            # In the order of the evidence; of chunks with two facts the first place counts
            for chunk in with_fact or chunks:
                passages.setdefault(chunk.id, chunk)

        if not question.metadata.evidence_list:
            for name in question.metadata.supporting_doc_ids or ():
                for chunk in self._by_document.get(name, []):
                    passages.setdefault(chunk.id, chunk)

        return tuple(passages.values())


class RandomPassages:
    """Draws ``top_k`` passages of a corpus for each question, none of which holds its gold evidence.

    A question gets the same passages at every search and in every run of the same ``seed``; fewer
    where the corpus has no more.
    """

    def __init__(self, chunks: Sequence[Chunk], top_k: int, seed: int) -> None:
        self._chunks = chunks
        self._top_k = top_k
        self._seed = seed

    def __call__(self, question: Question) -> tuple[Chunk, ...]:
        """Return the passages of ``question``."""
        rng = random.Random(f"{self._seed}/{question.id}/random passages")
        gold = gold_evidence(question)
        drawn: set[int] = set()
        passages: list[Chunk] = []

        # Row by row: a corpus has millions of passages, and few of them are gold
        while len(passages) < self._top_k and len(drawn) < len(self._chunks):
            row = rng.randrange(len(self._chunks))
            if row in drawn:
                continue
            drawn.add(row)
            chunk = self._chunks[row]
            if gold is None or not gold.found_in(chunk):
                passages.append(chunk)

        return tuple(passages)


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
            greedy_only=self.setting.evaluate.temperature == 0,
            samples=run.samples,
            seed=self.setting.seed,
            variant=self.setting.variant,
            trained_with_other=self._trained_with_other(),
        )
        row = build_row(key, rollouts, generated, self.setting.evaluate.draws)
        return row.model_copy(update={"asked_again": rollouts.asked_again})


def _is_generated(question: Question) -> bool:
    return (question.metadata.model_extra or {}).get("generated") is True
