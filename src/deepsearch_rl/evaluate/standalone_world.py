"""A model on the question sets of a generated world that nothing was trained or tuned on.

A world of another seed has other names, facts and questions in the same languages. Whoever has a
checkpoint of the tiny profile can so repeat its figures on questions that nobody has seen.
"""

from dataclasses import dataclass
from pathlib import Path

from deepsearch_rl.core.files import sha256_json, write_json
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Question
from deepsearch_rl.data.chunking import chunk_corpora
from deepsearch_rl.data.download import DownloadConfig, download
from deepsearch_rl.evaluate.evaluate_model import checkpoint_name
from deepsearch_rl.evaluate.evaluation_plan import Evaluation
from deepsearch_rl.search.build import IndexSection, build_indexes
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
