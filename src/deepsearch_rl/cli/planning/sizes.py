"""The params of a profile as amounts: questions, passages, parameters, bytes; and the work of a stage made of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepsearch_rl.cli.planning.slopes import Slope, SlopeFile
from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.profile import Profile

GIB = 2**30
_BILLIONS = re.compile(r"(\d+(?:\.\d+)?)B\b")


@dataclass(frozen=True, slots=True)
class StageWork:
    """One stage: how much of every slope its time is made of, and what else it takes.

    Disk is what it adds, memory what it holds at most; of several GPUs, that of one. ``api`` is the
    model of an API that is asked, empty where none is, and ``tokens`` those that it reads and writes.
    """

    stage: str
    amounts: Mapping[str, float]
    disk_gib: float
    host_gib: float
    gpu_gib: float
    api: str
    tokens: tuple[float, float]

    def seconds(self, slopes: Mapping[str, Slope]) -> float:
        """Return the wall time."""
        return sum(amount * slopes[name].value for name, amount in self.amounts.items())


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a profile works on, and the slopes of the machine that it is planned for."""

    profile: Profile
    slopes: Mapping[str, Slope]
    file: SlopeFile

    def slope(self, name: str) -> float:
        """Return the value of a slope."""
        return self.slopes[name].value

    def stage(
        self,
        name: str,
        amounts: Mapping[str, float],
        rollouts: int = 0,
        *,
        disk_gib: float = 0.0,
        host_gib: float = 0.0,
        gpu_gib: float = 0.0,
        api: str = "",
        tokens: tuple[float, float] = (0.0, 0.0),
    ) -> StageWork:
        """Return the work of a stage: what is given, its start, its process, and the rollouts that it keeps."""
        return StageWork(
            name,
            {"start_s": 1, **amounts},
            disk_gib=disk_gib + self.disk_gib(rollouts * self.slope("rollout_bytes")),
            host_gib=host_gib + self.slope("process_gib"),
            gpu_gib=gpu_gib,
            api=api,
            tokens=tokens,
        )

    def questions(self, dataset: str, split: str, limit: int | None) -> int:
        """Return how many questions of a split of a set are used: all, or at most ``limit``.

        Raise UnknownNameError where there is no such set or split.
        """
        if self.profile.value("download")["source"] == "world":
            count = self._generated_questions(dataset, split)
        else:
            count = self._read_questions(dataset, split)
        return count if limit is None else min(count, limit)

    def _generated_questions(self, dataset: str, split: str) -> int:
        world = self.profile.value("download")["world"]
        if dataset == self.profile.value("synthesize")["dataset"]:
            return look_up("split", split, world["questions"])
        return world["out_of_domain_questions"]

    def _read_questions(self, dataset: str, split: str) -> int:
        question_sets = self.profile.value("download")["folder"]["questions"]
        sources = look_up("question set of download.folder", dataset, question_sets)
        sizes: dict[str, int] = {}
        # Several files may give a split their questions
        for source in sources:
            for name in source["splits"]:
                sizes[name] = sizes.get(name, 0) + self._split_size(source, name)

        return look_up("split", split, sizes)

    def _split_size(self, source: Mapping[str, Any], split: str) -> int:
        """Return the questions that one file gives a split; of questions that are still to be made, the most."""
        if self.profile.value("download")["path"].startswith(f"{self.profile.data}/made/"):
            made = self.profile.value("make_questions")
            return round(made["questions"] * look_up("split", split, made["splits"]))

        cut = sum(count for count in source["splits"].values() if count)
        rest = self.file.sizes.questions.get(source["format"], cut) - cut
        return source["splits"][split] or rest

    def passages(self) -> dict[str, int]:
        """Return the number of passages of every corpus."""
        download = self.profile.value("download")
        sizes = self.file.sizes.passages
        if download["source"] == "world":
            world = download["world"]
            return {
                "world": sum(world["in_domain"].values()),
                "outworld": sum(world["out_of_domain"].values()),
            }

        corpora = download["folder"]["corpora"]
        passages: dict[str, int] = {}
        for name, corpus in corpora.items():
            passages[name] = sizes.get(corpus["format"], sizes["other"])

        return passages

    @property
    def billions(self) -> float:
        """Thousand million parameters of the base model, by its name; 0 of a model that is trained here."""
        section = self.profile.value("prepare_model")
        name = _BILLIONS.search(section["hub"]["repository"]) if section.get("hub") else None
        return float(name[1]) if name else 0.0

    @property
    def size(self) -> float:
        """What slopes of model work are multiplied by; those of a model that is trained here are of its own size."""
        return self.billions or 1.0

    @property
    def weights_gib(self) -> float:
        """The weights of the base model in 16 bits."""
        return 2e9 * self.billions / GIB

    @property
    def vllm(self) -> Mapping[str, Any]:
        """The settings of vLLM; empty where another server is used."""
        return self.profile.value("serving").get("vllm") or {}

    def disk_gib(self, size_bytes: float) -> float:
        """Return what artifacts take on disk, with the copies of them that DVC keeps."""
        return size_bytes * self.slope("copies") / GIB
