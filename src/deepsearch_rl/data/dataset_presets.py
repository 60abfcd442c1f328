"""A question set and its corpus by the set's name, for `deepsearch evaluate`.

    multihoprag         the hub, or a folder with the files of its repository: README.md, corpus.json, MultiHopRAG.json
    every other set     a folder with one file corpus* and one file questions*, dev* or test*

The corpora of other sets are Wikipedia dumps of twenty million passages, or on no hub that we know.
Describe them in a profile (profiles/gpu shows how), or name a folder with the part that you need.
"""

from pathlib import Path

from deepsearch_rl.core.errors import ArtifactError, ConfigError, UnknownNameError
from deepsearch_rl.data.catalogue import CARDS, CORPUS_FORMATS, QUESTION_FORMATS
from deepsearch_rl.data.download import (
    CorpusSource,
    DownloadConfig,
    FolderConfig,
    QuestionSource,
)
from deepsearch_rl.data.hub import HubConfig

MULTIHOPRAG = "multihoprag"
HUB = "https://huggingface.co"
ATTEMPTS = 20

# The split to answer, in every set
SPLIT = "val"

# Official files are named by their split; the first that exists is read
QUESTION_FILES = ("questions", "dev", "test")

# Of MultiHop-RAG, after the shuffle with `SHUFFLE_SEED`
PUBLISHED_SPLIT = {"val": 200, "dev": 100, "train": None}
SHUFFLE_SEED = 42


def source_of(dataset: str, folder: Path | None, fetched: Path) -> DownloadConfig:
    """Return the source of a set and its corpus: a folder, or the hub (into ``fetched``) if it is None."""
    if dataset not in CARDS or dataset not in QUESTION_FORMATS:
        raise UnknownNameError(
            "question set", dataset, sorted(CARDS.keys() & QUESTION_FORMATS.keys())
        )

    if folder is not None and not folder.is_dir():
        raise ArtifactError(
            f"{folder} is not a folder; name the one that holds the files of {dataset}."
        )

    if dataset == MULTIHOPRAG:
        return _multihoprag(folder, fetched)
    if folder is None:
        raise ConfigError(
            f"the corpus of {dataset} is not fetched by name; give --data FOLDER with a file "
            "corpus*.jsonl and a file questions*.jsonl, or describe them in a profile as "
            "profiles/gpu/params.yaml does."
        )

    corpus = _only(folder, ("corpus",))
    questions = _only(folder, QUESTION_FILES)
    corpus_format = dataset if dataset in CORPUS_FORMATS else "flashrag"
    corpora = {dataset: CorpusSource(format=corpus_format, path=Path(corpus.name))}
    source = QuestionSource(
        format=dataset, path=Path(questions.name), shuffle_seed=None, splits={SPLIT: None}
    )
    files = FolderConfig(root=folder, corpora=corpora, questions={dataset: (source,)})
    return DownloadConfig(source="folder", folder=files)


def _multihoprag(folder: Path | None, fetched: Path) -> DownloadConfig:
    card = CARDS[MULTIHOPRAG]
    root, path = (fetched, Path(MULTIHOPRAG)) if folder is None else (folder, Path())
    questions = QuestionSource(
        format=MULTIHOPRAG, path=path, shuffle_seed=SHUFFLE_SEED, splits=PUBLISHED_SPLIT
    )
    corpora = {MULTIHOPRAG: CorpusSource(format=MULTIHOPRAG, path=path)}
    files = FolderConfig(root=root, corpora=corpora, questions={MULTIHOPRAG: (questions,)})

    if folder is None:
        repository = {
            "repository": card.repository,
            "revision": card.revision,
            "files": dict.fromkeys(card.files),
        }
        hub = {"endpoint": HUB, "attempts": ATTEMPTS, "repositories": {MULTIHOPRAG: repository}}
        return DownloadConfig(source="hub", folder=files, hub=HubConfig.model_validate(hub))

    if missing := [file for file in card.files if not (folder / file).is_file()]:
        raise ArtifactError(
            f"{folder} lacks {', '.join(missing)}; put the files of {card.repository} there, or "
            "leave --data out to fetch them."
        )

    return DownloadConfig(source="folder", folder=files)


def _only(folder: Path, beginnings: tuple[str, ...]) -> Path:
    """Return the one file that begins with the first of the beginnings that matches any file."""
    for beginning in beginnings:
        paths = sorted(filter(Path.is_file, folder.glob(f"{beginning}*")))
        if len(paths) > 1:
            names = ", ".join(path.name for path in paths)
            raise ArtifactError(
                f"{folder} has several files {beginning}* ({names}); keep only one of them there."
            )

        if paths:
            return paths[0]

    patterns = " or ".join(f"{beginning}*" for beginning in beginnings)
    raise ArtifactError(f"{folder} has no file {patterns}.")
