"""What the questions of a data set are answered with, whichever model answers: files, agent, retrieval, seed."""

from pathlib import Path
from typing import Self

from deepsearch_rl.chat.agent_config import AgentConfig
from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Record
from deepsearch_rl.search.quality import DatasetConfig
from deepsearch_rl.server.config import RetrievalConfig


class RolloutSetting(Record):
    """The folder of a data set's questions, index and chunks of its corpus, and the settings of rollouts."""

    questions: Path
    index: Path
    chunks: Path
    agent: AgentConfig
    retrieval: RetrievalConfig
    seed: int

    @classmethod
    def of(cls, profile: Profile, dataset: str) -> Self:
        """Return a profile's setting for one of its data sets.

        Raise UnknownNameError for an unknown data set, ConfigError where a section does not fit.
        """
        datasets = profile.mapping("datasets", DatasetConfig)
        corpus = look_up("dataset", dataset, datasets).corpus
        return cls(
            questions=profile.data / "questions" / dataset,
            index=profile.data / "index" / corpus,
            chunks=profile.data / "chunks" / f"{corpus}.jsonl",
            agent=profile.section("agent", AgentConfig),
            retrieval=profile.section("retrieval", RetrievalConfig).for_dataset(dataset, datasets),
            seed=profile.value("seed"),
        )

    def split(self, name: str) -> Path:
        """Return the file of a split's questions, e.g. of ``dev``."""
        return self.questions / f"{name}.jsonl"
