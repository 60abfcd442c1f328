"""Evaluation of one model: every question set, answered over the real retrieval server.

The model server is started once, a retrieval server per corpus, retriever and setting. Rollouts are
logged as they finish, in a folder per question set and setting that is named by all that they
depend on: a killed evaluation continues where it was, one question set more repeats nothing, and
rollouts of other weights are never reused.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.conversation.prompt_digests import PromptPart
from deepsearch_rl.conversation.trained_with import MANIFEST, read_trained_with, served_with
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import (
    atomic_directory,
    read_json,
    read_jsonl,
    sha256_file,
    sha256_json,
    write_json,
)
from deepsearch_rl.core.records import Chunk, Question
from deepsearch_rl.endpoints.address import Endpoint
from deepsearch_rl.endpoints.remote import (
    RemoteConfig,
    read_remote,
    resolve_endpoint,
    shown_address,
)
from deepsearch_rl.evaluation.models.controls import (
    ControlAgent,
    GivenPassages,
    GoldPassages,
    RandomPassages,
)
from deepsearch_rl.evaluation.models.plan import Evaluation, PlannedRun, plan_runs, settings_of
from deepsearch_rl.evaluation.scoring.f1_row import (
    ControlScore,
    F1TableRow,
    ModelEvaluation,
    RowKey,
    run_file,
)
from deepsearch_rl.evaluation.scoring.score import build_control, build_row
from deepsearch_rl.retrieval.search.manifest import ROWS_FOLDER, digest_index, read_manifest
from deepsearch_rl.retrieval.search.rows import ChunkStore
from deepsearch_rl.search_server.launch import serve_index
from deepsearch_rl.serving.adapters import digest_weights, tokenizer_folder
from deepsearch_rl.serving.launch import require_backend, serve_model
from deepsearch_rl.trajectories.collecting.collect import (
    Agent,
    BulkRun,
    TrajectoryFile,
    collect_in_turn,
    read_questions,
)


def checkpoint_name(folder: Path) -> str:
    """Return the weights' name in the tables: the folder, and the kept training step where its manifest names one.

    For a model behind an endpoint: the requested model and the address, from the environment
    variables of the moment, and the options of its requests that change answers; raise ConfigError
    where a variable is not set.
    """
    remote = read_remote(folder)
    if remote is not None:
        endpoint = resolve_endpoint(remote)
        options = remote.request.of_answers()
        name = f"{endpoint.model} at {shown_address(endpoint.base_url)}"
        if options:
            name += f", asked with {json.dumps(options, ensure_ascii=False)}"
        return name

    manifest = folder / MANIFEST
    step = read_json(manifest).get("best_step") if manifest.is_file() else None
    return folder.as_posix() if step is None else f"{folder.as_posix()}, step {step}"


def evaluate_model(
    model: str, folder: Path, setting: Evaluation, data: Path, out: Path, work: Path
) -> ModelEvaluation:
    """Evaluate the model in ``folder`` and write its rollouts and ``rows.json`` into ``out``.

    ``data`` holds the profile's questions, chunks and indexes; ``work`` the logs of running
    evaluations. The folder may describe a model behind an endpoint
    (:mod:`deepsearch_rl.endpoints.remote`).

    Raise ArtifactError where an input is missing or a question set is empty, and as
    :func:`settings_of`, :func:`checkpoint_name`, :func:`serve_model`, :func:`serve_index` and
    :func:`collect`.
    """
    remote = read_remote(folder)
    if remote is None:
        require_backend(setting.serving)
    # First, because its error names the missing environment variable
    checkpoint = checkpoint_name(folder)
    settings: list[tuple[Evaluation, dict[str, list[Question]]]] = []
    for each in settings_of(setting, model):
        settings.append((each, _read_questions(data, each)))

    if remote is not None:
        _require_sampled(model, remote, settings)
    weights = sha256_json([remote.of_answers(), checkpoint]) if remote else digest_weights(folder)
    inputs = {"model": weights}
    rows: list[F1TableRow] = []

    with atomic_directory(out) as partial, serve_model(folder, setting.serving) as endpoint:
        name = endpoint.model if remote else model
        for each, questions in settings:
            logs: dict[str, Path] = {}
            for dataset in questions:
                digests = _digest_inputs(data, each, dataset)
                fingerprint = each.rollout_fingerprint(dataset, served_here=remote is None)
                # Answers in the log of an earlier start are used again, unless anything that
                # decides them has changed
                logs[dataset] = work / sha256_json([weights, name, fingerprint, digests])[:16]
                inputs |= digests

            evaluator = _Evaluator(
                model, folder, name, checkpoint, endpoint, each, data, logs, partial
            )
            rows.extend(evaluator.rows(questions))

        rows.sort(key=lambda row: row.sort_key)
        evaluation = ModelEvaluation(
            model=model,
            seed=setting.seed,
            settings_sha256=setting.digest(),
            inputs=inputs,
            rows=tuple(rows),
        )
        write_json(partial / "rows.json", evaluation.model_dump(mode="json"))

    return evaluation


def _require_sampled(
    model: str, remote: RemoteConfig, settings: Sequence[tuple[Evaluation, object]]
) -> None:
    """Raise ConfigError for greedy answers of a model whose requests leave the temperature out."""
    sets: list[str] = []
    for each, _ in settings:
        sets += [name for name, plan in each.evaluate.sets.items() if plan.greedy]

    if sets and remote.request.temperature == "omit":
        raise ConfigError(
            f"model {model} cannot answer {', '.join(sets)} greedily: its requests leave the temperature out "
            f"(temperature: omit). Set evaluate.sets.{sets[0]}.greedy to 0 (--greedy 0; for this model alone in "
            f"model_settings.{model}), or send the temperature."
        )


def _questions_path(data: Path, setting: Evaluation, dataset: str) -> Path:
    return data / "questions" / dataset / f"{setting.evaluate.split}.jsonl"


def _read_questions(data: Path, setting: Evaluation) -> dict[str, list[Question]]:
    """Return the questions of every planned set; none may be empty or without a corpus."""
    questions: dict[str, list[Question]] = {}
    for name in setting.evaluate.sets:
        setting.corpus_of(name)
        questions[name] = read_questions(_questions_path(data, setting, name))

    return questions


def _digest_inputs(data: Path, setting: Evaluation, dataset: str) -> dict[str, str]:
    """Return the SHA-256 of what the answers to a set depend on: its questions, its corpus's chunks and index."""
    corpus = setting.corpus_of(dataset)
    index = data / "index" / corpus
    return {
        f"chunks/{corpus}": read_manifest(index).chunks_sha256,
        f"index/{corpus}": digest_index(index),
        f"questions/{dataset}/{setting.evaluate.split}": sha256_file(
            _questions_path(data, setting, dataset)
        ),
    }


@dataclass(frozen=True, slots=True)
class _Evaluator:
    """Evaluates a served model of a ``folder`` under one setting; ``logs`` is a folder per question set.

    ``checkpoint`` names the model's weights in tables, ``name_in_rollouts`` the model in rollouts.
    """

    model: str
    folder: Path
    name_in_rollouts: str
    checkpoint: str
    endpoint: Endpoint
    setting: Evaluation
    data: Path
    logs: Mapping[str, Path]
    out: Path

    def rows(self, question_sets: Mapping[str, list[Question]]) -> Iterator[F1TableRow]:
        """Yield the rows of the question sets; those with one corpus and one retriever share a server."""
        setting = self.setting
        plans = self.setting.evaluate.sets
        by_server: dict[tuple[str, str], dict[str, list[Question]]] = {}

        for name, questions in question_sets.items():
            retriever = setting.retrieval.for_dataset(name, setting.datasets).retriever
            server = setting.corpus_of(name), retriever
            by_server.setdefault(server, {})[name] = questions

        for (corpus, _), sets in sorted(by_server.items(), key=lambda item: item[0]):
            retrieval = setting.retrieval.for_dataset(next(iter(sets)), setting.datasets)
            controlled: list[Question] = []
            for name, of_set in sets.items():
                if plans[name].controls:
                    controlled += of_set

            chunks = self.data / "chunks" / f"{corpus}.jsonl"
            served = serve_index(self.data / "index" / corpus, chunks, retrieval)

            # A large corpus is read for its gold passages while the model answers by searching.
            with served as url, ThreadPoolExecutor(1) as reader:
                gold = reader.submit(GoldPassages, read_jsonl(chunks, Chunk), controlled)
                yield from self._rows_of_sets(sets, url, gold)
                # Its error is one of this evaluation, whether or not a control asked for a passage
                gold.result()

    def _rows_of_sets(
        self,
        sets: Mapping[str, Sequence[Question]],
        retrieval_url: str,
        gold: Future[GoldPassages],
    ) -> Iterator[F1TableRow]:
        """Answer sets under every condition of the plan, and yield their rows."""
        planned: list[PlannedRun] = []
        for dataset, questions in sets.items():
            planned += plan_runs(dataset, questions, self.setting.evaluate, self.setting.variant)

        runs = [self._bulk_run(run, retrieval_url, gold) for run in planned]
        rollouts = collect_in_turn(runs, self.setting.agent.concurrency)
        answered = list(zip(planned, rollouts, strict=True))
        for dataset in sets:
            yield from self._rows_of_set([each for each in answered if each[0].dataset == dataset])

    def _rows_of_set(
        self, answered: Sequence[tuple[PlannedRun, TrajectoryFile]]
    ) -> list[F1TableRow]:
        """Return the rows of one set's runs; that of the main run, which is the first, holds the controls."""
        (main, searched), *others = answered
        row = self._row(main, searched)
        controls: dict[str, ControlScore] = {}
        rows: list[F1TableRow] = []

        for run, rollouts in others:
            if run.condition == "search":
                rows.append(self._row(run, rollouts))
            else:
                draws = self.setting.evaluate.draws
                control = build_control(rollouts, searched, run.samples, row, draws)
                controls[run.condition] = control.model_copy(
                    update={"asked_again": rollouts.asked_again}
                )

        return [row.model_copy(update={"controls": controls}), *rows]

    def _bulk_run(self, run: PlannedRun, retrieval_url: str, gold: Future[GoldPassages]) -> BulkRun:
        """Return a planned run with the agent that answers it, its log and its artifact."""
        file = run_file(run.dataset, run.condition, run.temperature, run.variant)
        return BulkRun(
            run.questions,
            samples=run.samples,
            make_agent=lambda: self._open_agent(run, retrieval_url, gold),
            log=self.logs[run.dataset] / file,
            label=f"{self.model} {run.dataset} {run.variant or run.condition} T={run.temperature:g}",
            out=self.out / file,
        )

    @asynccontextmanager
    async def _open_agent(
        self, run: PlannedRun, retrieval_url: str, gold: Future[GoldPassages]
    ) -> AsyncIterator[Agent]:
        config = self.setting.agent
        seed = self.setting.seed
        name = self.name_in_rollouts

        if run.condition == "search":
            searching = SearchAgent(
                config, self.endpoint, retrieval_url, run.temperature, model_name=name, seed=seed
            )
            async with searching as agent:
                yield agent
            return

        passages = await self._given_passages(run, gold)
        control = ControlAgent(config, self.endpoint, run.temperature, name, passages, seed)
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

        corpus = self.setting.corpus_of(run.dataset)
        rows = self.data / "index" / corpus / ROWS_FOLDER
        chunks = ChunkStore(self.data / "chunks" / f"{corpus}.jsonl", rows)
        return RandomPassages(chunks, self.setting.retrieval.top_k, self.setting.seed)

    def _retriever(self, dataset: str, corpus: str) -> str:
        """Return how a set's passages are found: the retriever, how its two halves are fused, and a reranker."""
        retrieval = self.setting.retrieval.for_dataset(dataset, self.setting.datasets)
        name: str = retrieval.retriever

        if retrieval.online is not None:
            name = "online"
        elif name == "hybrid":
            weights = read_manifest(self.data / "index" / corpus).fusion_weights
            name = "hybrid_rrf" if weights is None else "hybrid_learned"

        return f"{name}+rerank" if retrieval.reranker is not None else name

    def _trained_with_other(self) -> tuple[PromptPart, ...] | None:
        """Return which texts the model was trained with in another form than this setting's; None if not known."""
        trained = read_trained_with(self.folder)
        if trained is None:
            return None
        return trained.other_parts(
            served_with(tokenizer_folder(self.folder), self.setting.agent.prompt_digests())
        )

    def _row(self, run: PlannedRun, rollouts: TrajectoryFile) -> F1TableRow:
        generated = any(map(_is_generated, run.questions))
        corpus = self.setting.corpus_of(run.dataset)
        key = RowKey(
            model=self.model,
            checkpoint=self.checkpoint,
            dataset=run.dataset,
            corpus=corpus,
            prompt=self.setting.agent.prompt_title,
            top_k=self.setting.retrieval.top_k,
            chunk_size=self.setting.chunk.size_of(corpus),
            retriever=self._retriever(run.dataset, corpus),
            temperature=run.temperature,
            temperature_sent=self.endpoint.options.temperature == "send",
            samples=run.samples,
            seed=self.setting.seed,
            variant=self.setting.variant,
            trained_with_other=self._trained_with_other(),
        )
        row = build_row(key, rollouts, generated, self.setting.evaluate.draws)
        return row.model_copy(update={"asked_again": rollouts.asked_again})


def _is_generated(question: Question) -> bool:
    return (question.metadata.model_extra or {}).get("generated") is True
