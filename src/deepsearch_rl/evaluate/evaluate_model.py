"""Evaluation of one model: every question set, answered over the real retrieval server.

The model server is started once, a retrieval server per corpus and way to search it; question sets
and variants that agree in both share it. Where the model has several servers
(``serving.cpu.servers``), each answers the sets of one retrieval server, side by side. Rollouts are
logged as they finish, in a folder per question set and setting that is named by all that they
depend on: a killed evaluation continues where it was, one question set more repeats nothing, and
rollouts of other weights are never reused.
"""

import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from deepsearch_rl.agent.collect import (
    BulkRun,
    collect_in_turn,
    read_questions,
)
from deepsearch_rl.chat.endpoint import (
    RemoteConfig,
    read_remote,
    resolve_endpoint,
    shown_address,
)
from deepsearch_rl.chat.prompts import MANIFEST
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
from deepsearch_rl.evaluate.evaluation_plan import Evaluation, settings_of
from deepsearch_rl.evaluate.f1_row import F1TableRow, ModelEvaluation
from deepsearch_rl.evaluate.set_evaluation import GoldPassages, ServedModel, SetEvaluation
from deepsearch_rl.search.manifest import digest_index, read_manifest
from deepsearch_rl.serve.adapters import digest_weights
from deepsearch_rl.serve.launch import require_backend, serve_models
from deepsearch_rl.server.launch import serve_index


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
    (:mod:`deepsearch_rl.chat.endpoint`).

    Raise ArtifactError where an input is missing or a question set is empty, and as
    :func:`settings_of`, :func:`checkpoint_name`, :func:`serve_models`, :func:`serve_index` and
    :func:`collect_in_turn`.
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

    with atomic_directory(out) as partial, serve_models(folder, setting.serving) as endpoints:
        name = endpoints[0].model if remote else model
        served = ServedModel(model, folder, checkpoint, name, endpoints)
        by_index: dict[tuple[str, str], list[SetEvaluation]] = {}
        for each, question_sets in settings:
            for dataset, questions in question_sets.items():
                digests = _digest_inputs(data, each, dataset)
                inputs |= digests
                fingerprint = each.rollout_fingerprint(dataset, served_here=remote is None)
                # Answers in the log of an earlier start are used again, unless anything that
                # decides them has changed
                log = work / sha256_json([weights, name, fingerprint, digests])[:16]
                evaluation = SetEvaluation(served, each, dataset, questions, data, log, partial)
                index = evaluation.corpus, evaluation.retrieval.model_dump_json()
                by_index.setdefault(index, []).append(evaluation)

        groups = [by_index[index] for index in sorted(by_index)]
        rows = sorted(_answer_all(groups, len(endpoints)), key=lambda row: row.sort_key)
        model_evaluation = ModelEvaluation(
            model=model,
            seed=setting.seed,
            settings_sha256=setting.digest(),
            inputs=inputs,
            rows=tuple(rows),
        )
        write_json(partial / "rows.json", model_evaluation.model_dump(mode="json"))

    return model_evaluation


def _require_sampled(
    model: str, remote: RemoteConfig, settings: Sequence[tuple[Evaluation, object]]
) -> None:
    """Raise ConfigError for greedy answers of a model whose requests leave the temperature out."""
    sets: list[str] = []
    for each, _ in settings:
        is_greedy = each.evaluate.temperature == 0
        sets += [name for name, plan in each.evaluate.sets.items() if plan.greedy or is_greedy]

    if sets and remote.request.temperature == "omit":
        raise ConfigError(
            f"model {model} cannot answer {', '.join(sets)} greedily: its requests leave the temperature out "
            f"(temperature: omit). Set evaluate.temperature above 0 and evaluate.sets.{sets[0]}.greedy to 0 "
            f"(--greedy 0; for this model alone in model_settings.{model}), or send the temperature."
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


class _Group(NamedTuple):
    """Sets of one corpus whose retrieval server runs: the runs that answer them, and their gold passages."""

    evaluations: Sequence[SetEvaluation]
    runs: list[BulkRun]
    gold: "Future[GoldPassages]"


@contextlib.contextmanager
def _started(evaluations: Sequence[SetEvaluation]) -> Iterator[_Group]:
    """Serve the corpus of some sets, and yield them with the runs of all conditions of their plans."""
    first = evaluations[0]
    controlled: list[Question] = []
    for each in evaluations:
        if each.setting.evaluate.sets[each.dataset].controls:
            controlled += each.questions

    chunks = first.data / "chunks" / f"{first.corpus}.jsonl"
    serving = serve_index(first.data / "index" / first.corpus, chunks, first.retrieval)
    # A large corpus is read for its gold passages while the model answers by searching
    with serving as url, ThreadPoolExecutor(1) as reader:
        gold = reader.submit(GoldPassages, read_jsonl(chunks, Chunk), controlled)
        runs: list[BulkRun] = []
        for each in evaluations:
            runs += each.runs(url, gold)
        yield _Group(evaluations, runs, gold)


def _answer_all(groups: Sequence[Sequence[SetEvaluation]], at_once: int) -> Iterator[F1TableRow]:
    """Answer groups of sets and yield their rows, with the retrieval servers of ``at_once`` groups running.

    One for each server of the model: all of them have work while the last answers of a group are made.
    """
    for first in range(0, len(groups), at_once):
        yield from _answer(groups[first : first + at_once])


def _answer(groups: Sequence[Sequence[SetEvaluation]]) -> Iterator[F1TableRow]:
    """Answer groups of sets, each over its retrieval server; yield the rows of all."""
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(_started(evaluations)) for evaluations in groups]
        runs = [run for group in started for run in group.runs]
        concurrency = groups[0][0].setting.agent.concurrency
        rollouts = iter(collect_in_turn(runs, concurrency))

        for group in started:
            # Its error is one of this evaluation, whether or not a control asked for a passage
            group.gold.result()
            for each in group.evaluations:
                yield from each.rows(list(itertools.islice(rollouts, len(each.planned))))
