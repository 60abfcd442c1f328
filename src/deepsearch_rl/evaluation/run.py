"""Evaluating one model: every question set, every answer by real generation against the real retrieval server.

The model server is started once; retrieval servers one after the other, one per corpus. Rollouts are logged as they
finish, in a folder named by everything that they depend on, so that a killed evaluation goes on where it was and never
takes over the rollouts of other weights.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from deepsearch_rl.agent.endpoint import Endpoint
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.errors import ArtifactError, UnknownNameError
from deepsearch_rl.evaluation.aggregate import RowKey, build_control, build_row
from deepsearch_rl.evaluation.controls import ControlAgent, GoldPassages
from deepsearch_rl.evaluation.plan import Evaluation, Run, plan_runs
from deepsearch_rl.evaluation.rows import ControlScore, F1TableRow, ModelEvaluation
from deepsearch_rl.files import (
    atomic_directory,
    read_json,
    read_jsonl,
    sha256_file,
    sha256_json,
    write_json,
)
from deepsearch_rl.records import Chunk, Question
from deepsearch_rl.retrieval.manifest import read_manifest
from deepsearch_rl.retrieval.server.launch import serve_index
from deepsearch_rl.serving.launch import require_backend, serve_model
from deepsearch_rl.trajectories.collect import TrajectoryFile, collect


def evaluate_model(model: str, folder: Path, setting: Evaluation, data: Path, out: Path, work: Path) -> ModelEvaluation:
    """Evaluate the model in ``folder`` and write its rollouts and ``rows.json`` into ``out``.

    ``data`` holds the profile's questions, chunks and indexes; ``work`` the logs of running evaluations.

    Raises:
        UnknownNameError: a set is not in section ``datasets``.
        ArtifactError: an input is missing, or a question set is empty.
        UnavailableError: the model server needs a GPU or a package that is not here.
        EndpointError: the model or retrieval server does not start.
    """
    require_backend(setting.serving)
    questions = read_questions(data, setting)
    inputs = digest_inputs(folder, setting, data)
    settings = setting.digest()
    logs = work / sha256_json([inputs, settings])[:16]
    rows: list[F1TableRow] = []
    with atomic_directory(out) as partial, serve_model(folder, setting.serving) as endpoint:
        for corpus in sorted({setting.datasets[name].corpus for name in questions}):
            sets = {name: asked for name, asked in questions.items() if setting.datasets[name].corpus == corpus}
            chunks = data / "chunks" / f"{corpus}.jsonl"
            gold = GoldPassages(read_jsonl(chunks, Chunk), [question for asked in sets.values() for question in asked])
            with serve_index(data / "index" / corpus, chunks, setting.retrieval) as url:
                evaluator = Evaluator(model, folder, setting, endpoint, url, gold, logs, partial)
                rows.extend(row for name, asked in sets.items() for row in evaluator.rows(name, asked))
        rows.sort(key=lambda row: row.sort_key)
        evaluation = ModelEvaluation(
            model=model, seed=setting.seed, settings_sha256=settings, inputs=inputs, rows=tuple(rows)
        )
        write_json(partial / "rows.json", evaluation.model_dump(mode="json"))
    return evaluation


@dataclass(frozen=True, slots=True)
class Evaluator:
    """A served model, a served corpus, and where rollouts are logged and kept."""

    model: str
    folder: Path
    setting: Evaluation
    endpoint: Endpoint
    retrieval_url: str
    gold: GoldPassages
    logs: Path
    out: Path

    def rows(self, dataset: str, questions: Sequence[Question]) -> list[F1TableRow]:
        """Answer a set under every condition that the plan asks for; the controls stand in the row of the main run."""
        evaluate = self.setting.evaluate
        main, *others = plan_runs(dataset, questions, evaluate.sets[dataset], evaluate.temperature)
        searched = self.rollouts(main)
        controls: dict[str, ControlScore] = {}
        rows: list[F1TableRow] = []
        for run in others:
            rollouts = self.rollouts(run)
            if run.condition == "search":
                rows.append(self._row(run, rollouts))
            else:
                key = self._key(main)
                controls[run.condition] = build_control(rollouts, searched, run.samples, key, evaluate.draws)
        return [self._row(main, searched).model_copy(update={"controls": controls}), *rows]

    def rollouts(self, run: Run) -> TrajectoryFile:
        """Every rollout of a run, by id: those of the log, and the missing ones made now."""
        return collect(
            run.questions,
            samples=run.samples,
            make_agent=lambda: self._agent(run),
            log=self.logs / run.file,
            concurrency=self.setting.agent.concurrency,
            label=f"{self.model} {run.dataset} {run.condition} T={run.temperature:g}",
            out=self.out / run.file,
        )

    def _agent(self, run: Run) -> AbstractAsyncContextManager[SearchAgent | ControlAgent]:
        agent = self.setting.agent
        if run.condition == "search":
            seed, url = self.setting.seed, self.retrieval_url
            return SearchAgent(agent, self.endpoint, url, run.temperature, model_name=self.model, seed=seed)
        gold = self.gold if run.condition == "gold_passage" else None
        return ControlAgent(agent, self.endpoint, run.temperature, self.model, gold, self.setting.seed)

    def _row(self, run: Run, rollouts: TrajectoryFile) -> F1TableRow:
        generated = any((question.metadata.model_extra or {}).get("generated") is True for question in run.questions)
        return build_row(self._key(run), rollouts, generated, self.setting.evaluate.draws)

    def _key(self, run: Run) -> RowKey:
        return RowKey(
            model=self.model,
            checkpoint=checkpoint_name(self.folder),
            dataset=run.dataset,
            corpus=self.setting.datasets[run.dataset].corpus,
            prompt=self.setting.agent.prompt,
            top_k=self.setting.retrieval.top_k,
            chunk_size=self.setting.chunk_size,
            temperature=run.temperature,
            samples=run.samples,
            seed=self.setting.seed,
        )


def checkpoint_name(folder: Path) -> str:
    """The weights' name in the tables: the folder, and the training step that its manifest says was kept."""
    manifest = folder / "manifest.json"
    step = read_json(manifest).get("best_step") if manifest.is_file() else None
    return folder.as_posix() if step is None else f"{folder.as_posix()}, step {step}"


def read_questions(data: Path, setting: Evaluation) -> dict[str, list[Question]]:
    """The questions of every planned set.

    Raises:
        UnknownNameError: a set is not in section ``datasets``.
        ArtifactError: a file is missing or holds no question.
    """
    found: dict[str, list[Question]] = {}
    for name in setting.evaluate.sets:
        if name not in setting.datasets:
            raise UnknownNameError("dataset", name, setting.datasets)
        path = _questions_path(data, name, setting)
        found[name] = list(read_jsonl(path, Question))
        if not found[name]:
            raise ArtifactError(f"{path} holds no question; run the download stage again.")
    return found


def _questions_path(data: Path, name: str, setting: Evaluation) -> Path:
    return data / "questions" / name / f"{setting.evaluate.split}.jsonl"


def digest_inputs(folder: Path, setting: Evaluation, data: Path) -> dict[str, str]:
    """SHA-256 of the model (over its files), of every question set and of every corpus's chunks."""
    weights = {path.relative_to(folder).as_posix(): sha256_file(path) for path in folder.rglob("*") if path.is_file()}
    corpora = {setting.datasets[name].corpus for name in setting.evaluate.sets}
    return {
        "model": sha256_json(weights),
        **{f"chunks/{corpus}": read_manifest(data / "index" / corpus).chunks_sha256 for corpus in sorted(corpora)},
        **{
            f"questions/{name}/{setting.evaluate.split}": sha256_file(_questions_path(data, name, setting))
            for name in sorted(setting.evaluate.sets)
        },
    }
