"""One model on one question set without the graph: `deepsearch evaluate`; world.py has the sets of a generated world.

It makes the calls of the stages download, chunk, index and evaluate, one after the other. Data are
made once and stay in a cache: a folder per source (corpus and questions), and in it one per setting
of chunks and index. A stopped evaluation continues where it was, as in the graph.
"""

from dataclasses import dataclass
from pathlib import Path

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_jsonl, sha256_json, write_json
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Question
from deepsearch_rl.data.chunking import chunk_corpora
from deepsearch_rl.data.download import DownloadConfig, download
from deepsearch_rl.evaluate.evaluate_model import checkpoint_name, evaluate_model
from deepsearch_rl.evaluate.evaluation_plan import Evaluation
from deepsearch_rl.evaluate.explain.sources import DATA, DataFolder
from deepsearch_rl.evaluate.f1_row import ModelEvaluation
from deepsearch_rl.search import manifest
from deepsearch_rl.search.build import IndexSection, build_index, build_indexes
from deepsearch_rl.search.manifest import IndexConfig
from deepsearch_rl.search.quality import training_questions

# The file that is written last, and proves that a world's data are whole
_SOURCE = "source.json"


@dataclass(frozen=True, slots=True)
class WorldEvaluation:
    """A model folder, its name in the rows, the seed of the world, and a profile with all other settings.

    The profile's ``download.source`` is ``world``; its ``evaluate.sets`` say which sets are
    answered and how much of each.
    """

    name: str
    model: Path
    world_seed: int
    profile: Profile

    @property
    def setting(self) -> Evaluation:
        """The profile's settings of an evaluation."""
        return Evaluation.of(self.profile)

    def digest(self) -> str:
        """Return the SHA-256 of the model, the world and every setting that decides an answer.

        Raise ConfigError where an environment variable of an endpoint is not set.
        """
        setting = self.setting
        rollouts = [setting.agent.rollout_fingerprint(), setting.retrieval.search_fingerprint()]
        others = [setting.serving.digest_of_answers(), setting.evaluate.temperature, setting.seed]
        return sha256_json([checkpoint_name(self.model), self.data_digest(), *rollouts, *others])

    def data_digest(self) -> str:
        """Return the SHA-256 of what decides questions, passages and indexes."""
        sections: list[object] = []
        for name in ("download", "chunk", "index", "datasets", "seed"):
            sections.append(self.profile.value(name))
        return sha256_json([self.world_seed, *sections])

    def prepare(self, cache: Path) -> Path:
        """Return a folder with ``questions``, ``chunks`` and ``index``, made in the cache if missing or unfinished."""
        setting = self.setting
        data = cache / f"world-{self.world_seed}-{self.data_digest()[:8]}"
        if (data / _SOURCE).is_file():
            return data

        source = self.profile.section("download", DownloadConfig)
        download(source, self.world_seed, data / "corpora", data / "questions")
        chunk_corpora(data / "corpora", data / "chunks", setting.chunk)

        section = self.profile.section("index", IndexSection)
        questions: dict[str, list[Question]] = {}
        if section.fusion.learning:
            split = section.fusion.learning.split
            questions = training_questions(data / "questions", setting.datasets, split)
        index = data / "index"
        build_indexes(data / "chunks", index, section, setting.seed, data / "work", questions)
        # Last: where it exists, all before it is whole
        write_json(data / _SOURCE, source.model_dump(mode="json"))
        return data


@dataclass(frozen=True, slots=True)
class Standalone:
    """A model, its name in the rows, a question set with its source, and the settings of index and evaluation.

    ``model`` is a folder with weights or with an ``endpoint.json``; the set's corpus has the set's
    name.
    """

    name: str
    model: Path
    dataset: str
    source: DownloadConfig
    index: IndexConfig
    setting: Evaluation

    def digest(self) -> str:
        """Return the SHA-256 of the model, its server, the set's source and every setting that decides an answer.

        The number of questions, samples and concurrent rollouts is no part of it: more of them are
        the same evaluation. Raise ConfigError where an environment variable of the endpoint is not
        set.
        """
        setting = self.setting
        sections: list[dict[str, object]] = []
        for section in (self.source, setting.chunk, self.index):
            sections.append(section.model_dump(mode="json"))

        rollouts = [setting.agent.rollout_fingerprint(), setting.retrieval.search_fingerprint()]
        others = [setting.serving.backend, setting.evaluate.temperature, setting.seed]
        return sha256_json(
            [checkpoint_name(self.model), self.dataset, *sections, *rollouts, *others]
        )

    def prepare(self, cache: Path) -> Path:
        """Return a folder with ``questions``, ``chunks`` and ``index``, made in the cache if it is missing."""
        chunk = self.setting.chunk
        seed = self.setting.seed
        source = cache / f"{self.dataset}-{_source_digest(self.source)}"

        if not (source / "source.json").is_file():
            download(self.source, seed, source / "corpora", source / "questions")
            # last: it proves completeness
            write_json(source / "source.json", self.source.model_dump(mode="json"))

        digest = sha256_json(
            [chunk.model_dump(mode="json"), self.index.model_dump(mode="json"), seed]
        )
        data = source / f"{chunk.chunk_size}-{digest[:8]}"
        index = data / "index" / self.dataset

        if not (index / manifest.FILE).is_file():
            chunk_corpora(source / "corpora", data / "chunks", chunk)
            train = source / "questions" / self.dataset / "train.jsonl"
            questions = list(read_jsonl(train, Question)) if train.is_file() else []
            chunks = data / "chunks" / f"{self.dataset}.jsonl"
            build_index(chunks, index, self.index, seed, questions=questions)

        if not (data / "questions").is_symlink():
            (data / "questions").symlink_to(Path("..", "questions"))
        return data


def evaluate(
    request: Standalone | WorldEvaluation, cache: Path, out: Path, work: Path
) -> ModelEvaluation:
    """Make the data that the cache lacks, evaluate, and write rollouts and ``rows.json`` into ``out``.

    ``data.json`` beside them says where the data are, for `deepsearch explain`. Raise ConfigError
    where ``out`` is a file, or a folder with anything other than an evaluation.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / "rows.json").is_file()):
        raise ConfigError(
            f"{out} holds no evaluation (no rows.json) but something else, which would be lost; "
            "name a folder that is new or empty."
        )

    data = request.prepare(cache)
    evaluation = evaluate_model(request.name, request.model, request.setting, data, out, work)
    write_json(out / DATA, DataFolder(data=data.absolute()).model_dump(mode="json"))
    return evaluation


def _source_digest(source: DownloadConfig) -> str:
    """Return a name for a source; that of a folder depends on its files' sizes and times, because they may change."""
    stamps: list[list[str | int]] = []
    if source.source == "folder" and source.folder is not None:
        files = sorted(path for path in source.folder.root.glob("*") if path.is_file())
        stamps = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    return sha256_json([source.model_dump(mode="json"), stamps])[:12]
