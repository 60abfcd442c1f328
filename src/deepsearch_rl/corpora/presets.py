"""A question set with its corpus by name alone: from the hub where both are there, or from a folder that holds both.

    multihoprag         the hub, or a folder with the files of its repository: README.md, corpus.json, MultiHopRAG.json
    every other set     a folder with one file corpus* and one file questions*, dev* or test*, as JSON Lines, plain or
                        gzipped (graphrag_bench: Parquet as well)

The corpora that other sets are answered from are Wikipedia dumps of twenty million passages, or belong to no hub
repository that was seen; whoever has them describes them in a profile (profiles/gpu shows how), or brings a folder with
the part that is needed.
"""

from pathlib import Path

from deepsearch_rl.corpora import multihoprag
from deepsearch_rl.corpora.catalogue import CARDS
from deepsearch_rl.corpora.download import DownloadConfig
from deepsearch_rl.corpora.folder import CORPUS_FORMATS, QUESTION_FORMATS, CorpusSource, FolderConfig, QuestionSource
from deepsearch_rl.corpora.hub import HubConfig, HubRepository
from deepsearch_rl.errors import ArtifactError, ConfigError, UnknownNameError

HUB = "https://huggingface.co"
ATTEMPTS = 20
SPLIT = "val"
"""The split that is answered, whatever the set."""
QUESTION_FILES = ("questions", "dev", "test")
PUBLISHED_SPLIT = {"val": 200, "dev": 100, "train": None}
"""Of MultiHop-RAG, after the shuffle with ``SHUFFLE_SEED``."""
SHUFFLE_SEED = 42


def source_of(dataset: str, folder: Path | None, fetched: Path) -> DownloadConfig:
    """Where a question set and its corpus are read from; both get the set's name.

    Args:
        dataset: a name of ``deepsearch datasets`` with questions.
        folder: files at hand; None for the hub.
        fetched: where files from the hub are kept.

    Raises:
        UnknownNameError: there is no such set.
        ConfigError: the set's corpus is on no hub.
        ArtifactError: there is no such folder, it lacks a file, or it holds two that could be meant.
    """
    if dataset not in CARDS or dataset not in QUESTION_FORMATS:
        raise UnknownNameError("question set", dataset, sorted(CARDS.keys() & QUESTION_FORMATS.keys()))
    if folder is not None and not folder.is_dir():
        raise ArtifactError(f"{folder} is not a folder; name the one that holds the files of {dataset}.")
    if dataset == multihoprag.CARD.name:
        return _multihoprag(folder, fetched)
    if folder is None:
        raise ConfigError(
            f"the corpus of {dataset} is not fetched by name; give --data FOLDER with a file corpus*.jsonl and a file "
            f"questions*.jsonl, or describe them in a profile as profiles/gpu/params.yaml does."
        )
    corpus, questions = _only(folder, ("corpus",)), _only(folder, QUESTION_FILES)
    corpus_format = dataset if dataset in CORPUS_FORMATS else "flashrag"
    asked = QuestionSource(format=dataset, path=Path(questions.name), shuffle_seed=None, splits={SPLIT: None})
    return DownloadConfig(
        source="folder",
        folder=FolderConfig(
            root=folder,
            corpora={dataset: CorpusSource(format=corpus_format, path=Path(corpus.name))},
            questions={dataset: (asked,)},
        ),
    )


def _multihoprag(folder: Path | None, fetched: Path) -> DownloadConfig:
    name, card = multihoprag.CARD.name, multihoprag.CARD
    root, path = (fetched, Path(name)) if folder is None else (folder, Path())
    asked = QuestionSource(format=name, path=path, shuffle_seed=SHUFFLE_SEED, splits=PUBLISHED_SPLIT)
    read = FolderConfig(root=root, corpora={name: CorpusSource(format=name, path=path)}, questions={name: (asked,)})
    if folder is not None:
        lacking = [file for file in card.files if not (folder / file).is_file()]
        if lacking:
            raise ArtifactError(
                f"{folder} lacks {', '.join(lacking)}; put the files of {card.repository} there, or leave --data out "
                "to fetch them."
            )
        return DownloadConfig(source="folder", folder=read)
    assert card.revision is not None
    files = HubRepository(repository=card.repository, revision=card.revision, files=dict.fromkeys(card.files))
    hub = HubConfig(endpoint=HUB, attempts=ATTEMPTS, repositories={name: files})
    return DownloadConfig(source="hub", folder=read, hub=hub)


def _only(folder: Path, beginnings: tuple[str, ...]) -> Path:
    """The one file of a folder whose name begins with the first of the beginnings that any name has."""
    for beginning in beginnings:
        found = sorted(path for path in folder.glob(f"{beginning}*") if path.is_file())
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise ArtifactError(f"{folder} holds several files {beginning}* ({names}); keep one of them in a folder.")
        if found:
            return found[0]
    raise ArtifactError(f"{folder} holds no file {' or '.join(f'{name}*' for name in beginnings)}.")
