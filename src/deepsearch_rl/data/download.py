"""Corpora and question sets from any source, written as records.

Every source gives ``corpora/<corpus>.jsonl`` of Document records and
``questions/<dataset>/<split>.jsonl`` of Question records. Other files, such as IFEval's prompts, are
copied beside the question sets unchanged.
"""

import itertools
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, JsonValue, ValidationError

from deepsearch_rl.core.errors import ArtifactError, ConfigError, look_up
from deepsearch_rl.core.files import (
    at_least_one,
    atomic_file,
    first_problem,
    write_json,
    write_jsonl,
)
from deepsearch_rl.core.own_code import is_own, load_own
from deepsearch_rl.core.records import Document, NonEmpty, Question, Record
from deepsearch_rl.data.catalogue import CORPUS_FORMATS, PARAGRAPHS, QUESTION_FORMATS
from deepsearch_rl.data.documents import DocumentFolder
from deepsearch_rl.data.hub import HubConfig, fetch
from deepsearch_rl.data.own_paragraphs import ParagraphCorpus, with_documents
from deepsearch_rl.data.selection import Where, select

SectionT = TypeVar("SectionT")
RecordT = TypeVar("RecordT", Document, Question)
# The format of a folder of documents, and the corpus that this source makes
DOCUMENTS = "documents"


class CorpusSource(Record):
    """One corpus."""

    format: str = Field(
        description="a key of CORPUS_FORMATS or QUESTION_FORMATS, which `deepsearch datasets` lists, or your own reader"
    )
    path: Path = Field(description="file (multihoprag: folder), relative to the root")


class QuestionSource(CorpusSource):
    """Splits cut from one file of questions."""

    where: Where = Field(
        default={},
        description="field of the metadata -> its value, or a list of values, in the questions that are kept",
    )
    shuffle_seed: int | None = Field(
        description="seed of a shuffle before splitting; null keeps the file's order"
    )
    splits: dict[str, Annotated[int, Field(ge=1)] | None] = Field(
        description="split -> number of questions, cut in this order; null, for the last one, takes the rest"
    )
    left_out: tuple[NonEmpty, ...] = Field(
        default=(),
        description="ids of questions that no split gets; all others stay in their splits",
    )
    id_prefix: str = Field(
        default="", description="put before each id, so that ids of several sources differ"
    )


class FolderConfig(Record):
    """Files and their formats."""

    root: Path = Field(description="folder that the paths start from")
    corpora: dict[str, CorpusSource] = Field(description="corpus -> its source")
    questions: dict[str, tuple[QuestionSource, ...]] = Field(
        description="question set -> the sources of its splits"
    )
    paragraphs: dict[str, tuple[str, ...]] = Field(
        default={},
        description="corpus -> question sets whose own paragraphs it holds, those of the splits alone",
    )
    files: dict[str, Path] = Field(
        default={},
        description="name beside the question sets -> file below the root, copied there unchanged",
    )


class DownloadConfig(Record):
    """Section ``download``: where corpora and questions come from."""

    source: Literal["world", "folder", "hub", "documents"] = Field(
        description="generated, local files, fetched to the folder, or a folder of documents"
    )
    path: Path | None = Field(
        default=None,
        description="documents: their folder; DVC compares its files",
    )
    world: dict[str, JsonValue] | None = Field(default=None, description="toy.WorldConfig")
    folder: FolderConfig | None = None
    hub: HubConfig | None = None


def download(config: DownloadConfig, seed: int, corpora: Path, questions: Path) -> dict[str, int]:
    """Write every corpus and question set of the source; return the number of records per file.

    A corpus of documents gets a ``<corpus>.unreadable.json``: path and reason of every file that
    could not be read.

    Raises:
        ConfigError: a section that the source needs is missing, or values do not fit together.
        UnavailableError: a package that reads a kind of document is not installed.
        ArtifactError: a corpus or a question set is missing or empty.
        RecordError: a line of a source does not fit.
        EndpointError, CheckFailedError: the hub does not provide the expected files.
    """
    if config.source == "world":
        return _write_world(
            _section(config.world, "world", config.source), seed, corpora, questions
        )

    if config.source == "documents":
        folder = _folder_of_documents(config)
    else:
        folder = _section(config.folder, "folder", config.source)
    if config.source == "hub":
        fetch(_section(config.hub, "hub", config.source), folder.root)
    # Before a corpus that takes an hour
    for name, path in folder.files.items():
        _copy(folder.root / path, questions / name)

    sources = _read_sources(folder)
    documents = open_corpora(folder) | _gather_paragraphs(folder, sources)
    question_sets = _by_split(_merge_sources(folder, sources))
    return _write(corpora, documents) | _write(questions, question_sets)


def _write_world(
    values: Mapping[str, JsonValue], seed: int, corpora: Path, questions: Path
) -> dict[str, int]:
    # The generated world is built on this package
    from deepsearch_rl.toy.world_questions import WorldConfig, generate  # noqa: PLC0415

    try:
        world = generate(WorldConfig.model_validate(values), seed)
    except ValidationError as error:
        field, problem = first_problem(error)
        raise ConfigError(f"download.world.{field}: {problem}.") from error

    return _write(corpora, world.corpora) | _write(questions, _by_split(world.questions))


def _folder_of_documents(config: DownloadConfig) -> FolderConfig:
    """Return ``download.path`` as the corpus ``documents``, with the question sets of ``download.folder``."""
    if config.path is None:
        raise ConfigError("download.source is 'documents', so download.path must name a folder.")

    corpora = {DOCUMENTS: CorpusSource(format=DOCUMENTS, path=config.path.absolute())}
    if config.folder is None:
        return FolderConfig(root=config.path, corpora=corpora, questions={})
    return config.folder.model_copy(update={"corpora": config.folder.corpora | corpora})


def _section(section: SectionT | None, name: str, source: str) -> SectionT:
    if section is None:
        raise ConfigError(f"download.source is {source!r}, so a section download.{name} is needed.")
    return section


def _by_split(
    sets: Mapping[str, Mapping[str, Iterable[Question]]],
) -> dict[str, Iterable[Question]]:
    questions_by_path: dict[str, Iterable[Question]] = {}
    for dataset, splits in sets.items():
        for split, questions in splits.items():
            questions_by_path[f"{dataset}/{split}"] = questions

    return questions_by_path


def _write(folder: Path, records_by_name: Mapping[str, Iterable[RecordT]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in records_by_name.items():
        path = folder / f"{name}.jsonl"
        problem = f"{path} was not written: its source is empty."
        counts[name] = write_jsonl(path, at_least_one(records, problem))
        if isinstance(records, DocumentFolder):
            write_json(folder / f"{name}.unreadable.json", records.unreadable)

    return counts


def _copy(source: Path, path: Path) -> None:
    if not source.is_file():
        raise ArtifactError(f"{source} does not exist; download.folder.files names it.")
    with atomic_file(path) as partial:
        shutil.copyfile(source, partial)


def open_corpora(config: FolderConfig) -> dict[str, Iterable[Document]]:
    """Return the documents of each corpus, read during iteration; raise UnknownNameError for an unknown format."""
    corpora: dict[str, Iterable[Document]] = {}
    for name, source in config.corpora.items():
        corpora[name] = _read("corpus format", source, config.root, CORPUS_FORMATS, Document)

    return corpora


def _read(
    kind: str,
    source: CorpusSource,
    root: Path,
    readers: Mapping[str, Callable[[Path], Iterable[RecordT]]],
    record: type[RecordT],
) -> Iterable[RecordT]:
    path = root / source.path
    if not is_own(source.format):
        return look_up(kind, source.format, readers)(path)
    return _own_records(kind, source.format, path, record)


def _own_records(kind: str, name: str, path: Path, record: type[RecordT]) -> Iterator[RecordT]:
    """Yield the records of a user's own reader; raise ConfigError at the first item that is not one."""
    code = load_own(kind, name, ("path",))
    with code.named():
        for number, item in enumerate(code(path), start=1):
            if not isinstance(item, record):
                raise code.error(
                    f"yielded a {type(item).__name__} as number {number} of {path}; it must be a "
                    f"{record.__name__}"
                )
            yield item


@dataclass(slots=True)
class _SourceQuestions:
    """The splits that were cut from one source of a question set."""

    dataset: str
    source: QuestionSource
    splits: dict[str, list[Question]]


def read_question_sets(config: FolderConfig) -> dict[str, dict[str, list[Question]]]:
    """Return the questions by question set and split, sources in their order.

    Raise ConfigError if the splits do not fit the files, or no question has a field of ``where``.
    """
    return _merge_sources(config, _read_sources(config))


def _read_sources(config: FolderConfig) -> list[_SourceQuestions]:
    read: list[_SourceQuestions] = []
    for dataset, sources in config.questions.items():
        for source in sources:
            splits = dict(_read_splits(config.root, source))
            read.append(_SourceQuestions(dataset, source, splits))

    return read


def _merge_sources(
    config: FolderConfig, read: Iterable[_SourceQuestions]
) -> dict[str, dict[str, list[Question]]]:
    sets: dict[str, dict[str, list[Question]]] = {name: {} for name in config.questions}
    for source in read:
        for split, questions in source.splits.items():
            sets[source.dataset].setdefault(split, []).extend(questions)

    for name, splits in sets.items():
        for split, questions in splits.items():
            if repeated := _repeated_id(questions):
                raise ConfigError(
                    f"download.folder.questions.{name}: two sources of the split {split!r} have "
                    f"the id {repeated!r}; give each an id_prefix of its own."
                )

    return sets


def _gather_paragraphs(
    config: FolderConfig, read: Iterable[_SourceQuestions]
) -> dict[str, list[Document]]:
    """Return the corpora of ``config.paragraphs``, and name their gold documents in the questions."""
    corpora: dict[str, list[Document]] = {}
    for name, datasets in config.paragraphs.items():
        for dataset in datasets:
            look_up("question set", dataset, config.questions)

        corpus = ParagraphCorpus()
        for source in read:
            if source.dataset in datasets:
                _gather_source(config.root, source, corpus)

        corpora[name] = corpus.documents()
        if not corpora[name]:
            raise ArtifactError(
                f"download.folder.paragraphs.{name}: the questions of {', '.join(datasets)} come without "
                "paragraphs, so they make no corpus; name a file with one under download.folder.corpora."
            )

    return corpora


def _gather_source(root: Path, read: _SourceQuestions, corpus: ParagraphCorpus) -> None:
    source = read.source
    paragraphs = look_up("format with paragraphs", source.format, PARAGRAPHS)(root / source.path)
    ids = {question.id for questions in read.splits.values() for question in questions}
    gold = corpus.add(paragraphs, ids, source.id_prefix)
    for split, questions in read.splits.items():
        read.splits[split] = [with_documents(question, gold[question.id]) for question in questions]


def _repeated_id(questions: Sequence[Question]) -> str | None:
    ids = sorted(question.id for question in questions)
    return next((first for first, second in itertools.pairwise(ids) if first == second), None)


def _read_splits(root: Path, source: QuestionSource) -> Iterator[tuple[str, list[Question]]]:
    path = root / source.path
    questions = list(_read("question format", source, root, QUESTION_FORMATS, Question))

    if repeated := _repeated_id(questions):
        raise ArtifactError(
            f"{path}: two questions have the id {repeated!r}; ids must differ within a file."
        )
    unknown = {*source.left_out} - {question.id for question in questions}
    if unknown:
        raise ConfigError(f"{path}: `left_out` names {min(unknown)!r}, which is no question's id.")

    if source.where:
        questions = select(path, source.where, questions)
    if source.id_prefix:
        prefixed: list[Question] = []
        for question in questions:
            prefixed.append(question.model_copy(update={"id": source.id_prefix + question.id}))

        questions = prefixed
    if source.shuffle_seed is not None:
        # Many sets are sorted by type
        random.Random(source.shuffle_seed).shuffle(questions)

    left_out = {source.id_prefix + name for name in source.left_out}
    start = 0
    for split, count in source.splits.items():
        end = len(questions) if count is None else start + count
        if end > len(questions) or end == start:
            raise ConfigError(
                f"{path} has {len(questions)} questions{' of these fields' if source.where else ''}, "
                f"{start} of them taken by earlier splits: "
                f"the split {split!r} cannot have {'the rest' if count is None else count}."
            )

        yield split, [each for each in questions[start:end] if each.id not in left_out]
        start = end
