"""The work of every stage of a profile, from the sizes in its params, and what it takes by the slopes.

A stage's seconds are a sum of amounts times slopes. Nothing of the profile needs to have run.
Horizons and counts are upper bounds: runs that stop early, and rollouts that end early, take less.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.files import read_json
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import IndexHalf
from deepsearch_rl.planning.slopes import Slope, SlopeFile, read_slopes, slopes_for
from deepsearch_rl.search_server.requests import is_loopback
from deepsearch_rl.trajectories.synthesis.scripted_config import SCRIPTED

GIB = 2**30
# Bytes per trained parameter that veRL keeps in main memory between their uses
OFFLOADED_BYTES: Mapping[str, float] = {"param_offload": 4.0, "optimizer_offload": 8.0}
# Of the tokens of make_questions, those that the model writes; assumed
WRITTEN_SHARE = 0.1
_BILLIONS = re.compile(r"(\d+(?:\.\d+)?)B\b")


@dataclass(frozen=True, slots=True)
class StageWork:
    """One stage: how much of every slope its time is made of, and what else it takes."""

    stage: str
    amounts: Mapping[str, float]
    disk_gib: float = 0.0
    host_gib: float = 0.0
    gpu_gib: float = 0.0
    api: str = ""
    """The API's model that is asked, and the tokens that it reads and writes."""
    tokens: tuple[float, float] = (0.0, 0.0)

    def seconds(self, slopes: Mapping[str, Slope]) -> float:
        """Return the wall time."""
        return sum(amount * slopes[name].value for name, amount in self.amounts.items())


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages of a profile, with the slopes that their time is told by."""

    profile: str
    machine: str
    stages: tuple[StageWork, ...]
    slopes: Mapping[str, Slope]
    file: SlopeFile

    @property
    def hours(self) -> float:
        """The time of a run: of all stages together, less what is saved where two run side by side."""
        seconds = sum(work.seconds(self.slopes) for work in self.stages)
        return self.slopes["side_by_side"].value * seconds / 3600

    def cost(self, work: StageWork) -> float | None:
        """Return the list price of what a stage's API reads and writes; None where the price is not known."""
        price = self.file.prices.get(work.api)
        if price is None:
            return None
        prompt_tokens, completion_tokens = work.tokens
        # Prices are for a million tokens
        return (prompt_tokens * price.prompt + completion_tokens * price.completion) / 1e6


def make_plan(profile: Profile, given: Mapping[str, float]) -> Plan:
    """Return the plan of a profile, with the values of slopes that are ``given``.

    Raise ConfigError where the profile lacks a field, UnknownNameError for a split or set that it
    lacks, and as :func:`slopes_for`.
    """
    file = read_slopes()
    try:
        machine, slopes = slopes_for(profile, file, given)
        return Plan(
            profile.name, machine, tuple(_Sizes(profile, slopes, file).stages()), slopes, file
        )
    except KeyError as error:
        raise ConfigError(
            f"{profile.path} has no field {error}, so it cannot be planned; run `make params`."
        ) from error


def require_hours(plan: Plan, profile: Profile) -> None:
    """Raise ConfigError where a plan takes longer than ``requires.max_hours`` of its profile; null is no limit."""
    max_hours = profile.value("requires")["max_hours"]
    if max_hours is None or plan.hours <= max_hours:
        return
    longest = sorted(plan.stages, key=lambda work: -work.seconds(plan.slopes))[:3]
    stages = ", ".join(f"{work.stage} {work.seconds(plan.slopes) / 3600:.1f}" for work in longest)
    raise ConfigError(
        f"profile {plan.profile} would take {plan.hours:.1f} hours ({stages}, ...), more than requires.max_hours "
        f"{max_hours:g} in {profile.path}. `deepsearch plan {plan.profile}` shows why. Make the profile smaller, or "
        "raise requires.max_hours in its profile.yaml and run `make params`."
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The params of a profile as amounts of work."""

    profile: Profile
    slopes: Mapping[str, Slope]
    file: SlopeFile

    def stages(self) -> Iterator[StageWork]:
        """Yield the stages that a run of the profile has, in the order of the graph."""
        models: Mapping[str, str] = self.profile.value("models")
        yield from self._made_questions()
        yield from self._corpora()

        # A profile that evaluates models of elsewhere trains none
        own_models = f"{self.profile.models.as_posix()}/"
        if any(folder.startswith(own_models) for folder in models.values()):
            yield from self._training()

        prompts = self.profile.value("optimize_prompt")
        for model, folder in prompts["models"].items():
            yield self._answers(f"optimize_prompt@{model}", _endpoint(folder), prompts["rollouts"])

        endpoints: dict[str, Mapping[str, str] | None] = {}
        all_rollouts = 0
        for model, folder in models.items():
            endpoints[model] = _endpoint(folder)
            rollouts = self._evaluated(model)
            all_rollouts += rollouts
            yield self._answers(f"evaluate@{model}", endpoints[model], rollouts)

        if Path(self.profile.value("trained")["ifeval"]).is_relative_to(self.profile.data):
            ifeval = self.profile.value("ifeval")
            count = self.file.sizes.ifeval if ifeval["prompts"] == "real" else ifeval["count"]
            for model, endpoint in endpoints.items():
                yield self._answers(f"ifeval@{model}", endpoint, count, is_ifeval=True)

        for stage in ("report", "track"):
            yield self._stage(stage, {"report_rollout_s": all_rollouts})

    def _made_questions(self) -> Iterator[StageWork]:
        """Yield the writing of questions about each folder of documents, as if its whole budget were spent."""
        section = self.profile.value("make_questions")
        for name in section["documents"]:
            writer = section["writer"]
            tokens = section["budget_tokens"]
            calls = tokens / self._of("question_call_tokens") / writer["concurrency"]
            # Passages are read again for every answer, and replies are short
            split = (tokens * (1 - WRITTEN_SHARE), tokens * WRITTEN_SHARE)
            model = writer["endpoint"]["model"]
            stage = f"make_questions@{name}"
            yield self._stage(stage, {"api_call_s": calls}, api=model, tokens=split)

    def _corpora(self) -> Iterator[StageWork]:
        download = self.profile.value("download")
        index = self.profile.value("index")
        sizes = self._passages()
        passages = sum(sizes.values())

        hub = 0.0
        if download.get("hub"):
            gigabytes = self.file.sizes.download_gb
            hub = sum(gigabytes.get(name, 0.1) for name in download["hub"]["repositories"])

        disk_gib = self._disk_gib(passages * self._of("passage_bytes"))
        yield self._stage("download", {"download_gb_s": hub}, disk_gib=hub + disk_gib / 5)
        yield self._stage("chunk", {"chunk_passage_s": passages}, disk_gib=disk_gib / 5)

        # passage_bytes counts both halves of an index; a corpus may have one
        without_bm25 = 0
        without_vectors = 0
        for corpus, size in sizes.items():
            if not _builds(index, corpus, "bm25"):
                without_bm25 += size
            if not _builds(index, corpus, "dense"):
                without_vectors += size

        missing_bytes = without_bm25 * self._of("bm25_bytes")
        missing_bytes += without_vectors * self._of("vector_bytes")
        encoder = index["encoder"]["name"] if index["encoder"] else ""
        is_transformer = encoder in ("transformers", "onnx")
        encoded = passages - without_vectors if is_transformer else 0
        yield self._stage(
            "index",
            {"index_passage_s": passages, "encode_passage_s": encoded},
            disk_gib=disk_gib * 3 / 5 - self._disk_gib(missing_bytes),
            host_gib=passages * self._of("index_memory_bytes") / GIB,
            gpu_gib=self._of("process_gib") if encoded else 0.0,
        )

    def _training(self) -> Iterator[StageWork]:
        value = self.profile.value
        model = value("prepare_model")
        teacher = value("synthesize")
        sft = value("sft")
        starts = value("rl")["starts"]
        tokens = 0
        if model.get("pretrain"):
            tokens = sum(level["tokens"] for level in model["pretrain"]["curriculum"])

        # Weights on a hub have two bytes a parameter
        work = {"pretrain_token_s": tokens, "download_gb_s": 2 * self._billions}
        yield self._stage("prepare_model", work, disk_gib=self._weights_gib * self._of("copies"))

        if self._is_wanted("sft") or "sft" in starts:
            yield from self._tuning(teacher, sft)
        for start in starts:
            yield self._rl(start)
        for start in starts:
            if self._is_wanted(f"rl_merged/{start}"):
                yield self._merges(f"unsloth_merge@{start}", "adapter_merge_s")

    def _is_wanted(self, folder: str) -> bool:
        """Return whether a model of the profile is that of a folder below its models."""
        return str(self.profile.models / folder) in self.profile.value("models").values()

    def _tuning(self, teacher: Mapping[str, Any], sft: Mapping[str, Any]) -> Iterator[StageWork]:
        """Yield the stages between the base model and the fine-tuned one."""
        questions = self._questions(teacher["dataset"], teacher["split"], teacher["questions"])
        rollouts = questions * teacher["samples"]
        if teacher["teacher"].rstrip("/") == SCRIPTED:
            yield self._stage("synthesize", {"scripted_rollout_s": rollouts}, rollouts)
        else:
            yield self._answers("synthesize", _endpoint(teacher["teacher"]), rollouts)

        yield self._stage("filter", {"filter_row_s": rollouts}, rollouts)
        tokens = rollouts * self._of("success_share") * self._of("row_tokens") * sft["epochs"]
        work = {"swift_start_s": 1, "sft_token_s": tokens * self._size}

        yield self._trains(
            "sft",
            work,
            self._update_gib(sft["max_length"]),
            disk_gib=self._disk_gib(self._sft_checkpoint_bytes(sft)),
        )
        yield self._chooses(sft["kept_checkpoints"])
        yield self._merges("merge", "merge_s")

    def _chooses(self, checkpoints: int) -> StageWork:
        choice = self.profile.value("choose_checkpoint")
        if choice["by"] != "dev":
            return self._stage("choose_checkpoint", {})
        answers = checkpoints * choice["dev"]["questions"] * choice["dev"]["samples"]
        work = {"serve_start_s": checkpoints, _rollout_slope(self._vllm): answers * self._size}
        return self._stage("choose_checkpoint", work, answers)

    def _rl(self, start: str) -> StageWork:
        rl = self.profile.value("rl")
        steps = rl["steps"][start]
        dev = rl["dev"]
        gate = rl["gate"]
        trained = steps * rl["groups_per_step"] * rl["group_size"]
        tokens = trained * rl["update_epochs"] * self._of("trained_share") * self._of("row_tokens")
        # An upper bound: a step is refilled only as long as groups with equal rewards leave it short
        rollouts = trained * (1 + rl["max_refills"])
        checks = (steps // dev["every"] + 1) * dev["questions"] * dev["samples"]
        if rl["backend"]["engine"] == "verl":
            return self._verl(start, rl, rollouts + checks, tokens)

        checks += gate["questions"] * gate["samples"]

        gpu_gib = self.profile.value("requires")["gpu_memory_gib"]
        sampler_gib = rl["sampler"]["gpu_memory_utilization"] * gpu_gib
        update_gib = self._update_gib(rl["max_batch_tokens"])
        # A sampler that sleeps gives its memory to the update
        if not rl["sampler"]["sleep"]:
            update_gib += sampler_gib

        work = {
            "serve_start_s": 1,
            _rollout_slope(rl["sampler"]): (rollouts + checks) * self._size,
            "rl_token_s": tokens * self._size,
            "rl_step_s": steps,
        }
        return self._trains(
            f"rl@{start}", work, max(update_gib, self._weights_gib + sampler_gib), rollouts + checks
        )

    def _verl(self, start: str, rl: Mapping[str, Any], rollouts: float, tokens: float) -> StageWork:
        """Return the work of veRL's trainer, which shares model and rollouts among its GPUs.

        ``gpu_gib`` is of one GPU: the larger one of the sampler, and of what FSDP leaves there
        (ZeRO, arXiv 1910.02054: weights, gradients and two moments in float32, whole or sharded).
        """
        verl = rl["backend"]["verl"]
        gpus = verl.get("nodes", 1) * verl["gpus_per_node"]
        policy_and_critic = 2 if verl.get("critic") else 1
        work = {
            "serve_start_s": 1,
            _rollout_slope(rl["sampler"]): rollouts * self._size / gpus,
            "rl_token_s": tokens * self._size * policy_and_critic / gpus,
            "rl_step_s": rl["steps"][start],
        }

        billions = self._billions if rl["lora"] is None else 0.0
        offloaded = [name for name in ("param_offload", "optimizer_offload") if verl.get(name)]
        # What is trained rests on the GPU, but for the parts that come from main memory in their turn
        resting = 16.0 - sum(OFFLOADED_BYTES[name] for name in offloaded)
        state_gib = policy_and_critic * billions * 1e9 * resting / gpus / GIB
        working_gib = billions * 1e9 * max(OFFLOADED_BYTES[name] for name in OFFLOADED_BYTES) / gpus
        update_gib = (
            state_gib
            + working_gib / GIB * bool(offloaded)
            # The frozen weights: those under an adapter, and the reference of the KL
            + self._weights_gib / gpus
            + rl["max_batch_tokens"] * self._of("gpu_token_gib")
        )
        sampler = rl["sampler"]
        share = sampler["gpu_memory_utilization"] * self.profile.value("requires")["gpu_memory_gib"]
        resting_sampler_gib = 0.0 if sampler["sleep"] else share
        gpu_gib = max(
            update_gib + resting_sampler_gib,
            share,
            self._weights_gib / verl.get("tensor_parallel", 1),
        )
        # Of one node
        host_gib = policy_and_critic * billions * 16e9 / GIB / verl.get("nodes", 1)
        host_gib = host_gib if offloaded else 0.0
        host_gib += self._weights_gib + self._of("training_gib")
        # A checkpoint of every step that dev scores, with the optimizer's moments
        saved = rl["steps"][start] // rl["dev"]["every"]
        disk_gib = saved * policy_and_critic * billions * 12e9 / GIB
        return self._stage(
            f"rl@{start}",
            work,
            int(rollouts),
            disk_gib=disk_gib,
            host_gib=host_gib,
            gpu_gib=gpu_gib,
        )

    def _update_gib(self, tokens: int) -> float:
        return self._weights_gib + tokens * self._of("gpu_token_gib")

    def _sft_checkpoint_bytes(self, sft: Mapping[str, Any]) -> float:
        """Return the size of the adapters that SFT leaves to choose from: the newest, and the one of lowest loss."""
        checkpoints = sft["kept_checkpoints"] + (sft["eval_share"] > 0)
        return checkpoints * sft["lora_rank"] * self._billions * self._of("adapter_bytes")

    def _trains(
        self,
        stage: str,
        work: Mapping[str, float],
        gpu_gib: float,
        rollouts: int = 0,
        disk_gib: float = 0.0,
    ) -> StageWork:
        host_gib = self._weights_gib + self._of("training_gib")
        return self._stage(
            stage, work, rollouts, disk_gib=disk_gib, host_gib=host_gib, gpu_gib=gpu_gib
        )

    def _merges(self, stage: str, slope: str) -> StageWork:
        gib = self._weights_gib
        return self._stage(
            stage, {slope: 1}, disk_gib=gib * self._of("copies"), host_gib=gib, gpu_gib=gib
        )

    def _answers(
        self, stage: str, server: Mapping[str, str] | None, count: int, is_ifeval: bool = False
    ) -> StageWork:
        """Return the work of so many rollouts or prompts, by a model on this machine or by that of an API's server."""
        if server and not is_loopback(urlsplit(server["base_url"]).hostname or ""):
            return self._asks(stage, server["model"], count, is_ifeval)
        slope = "ifeval_prompt_s" if is_ifeval else _rollout_slope(self._vllm)
        work = {"serve_start_s": 1, slope: count * self._size}
        # vLLM takes its share of a GPU at once
        utilization = self._vllm.get("gpu_memory_utilization", 0.0)
        gpu_gib = utilization * self.profile.value("requires")["gpu_memory_gib"]
        rollouts = 0 if is_ifeval else count
        return self._stage(stage, work, rollouts, host_gib=self._weights_gib, gpu_gib=gpu_gib)

    def _asks(self, stage: str, model: str, count: int, is_ifeval: bool = False) -> StageWork:
        if is_ifeval:
            calls = count / self.profile.value("ifeval")["concurrency"]
            tokens = (0.0, count * self._of("ifeval_tokens"))
        else:
            at_once = self.profile.value("agent")["concurrency"]
            calls = count * self._of("calls_per_rollout") / at_once
            tokens = (count * self._of("prompt_tokens"), count * self._of("completion_tokens"))

        return self._stage(
            stage, {"api_call_s": calls}, 0 if is_ifeval else count, api=model, tokens=tokens
        )

    def _stage(
        self, stage: str, work: Mapping[str, float], rollouts: int = 0, **other: Any
    ) -> StageWork:
        disk_gib = other.pop("disk_gib", 0.0) + self._disk_gib(rollouts * self._of("rollout_bytes"))
        host_gib = other.pop("host_gib", 0.0) + self._of("process_gib")
        return StageWork(stage, {"start_s": 1, **work}, disk_gib, host_gib, **other)

    def _evaluated(self, model: str) -> int:
        """Return the rollouts of one model's evaluation: samples, greedy answers, two controls and variants."""
        section = self.profile.value("evaluate")
        rollouts = 0

        for name, plan in section["sets"].items():
            count = self._questions(name, section["split"], plan["questions"])
            rollouts += count * plan["samples"] + min(count, plan["greedy"])
            # Without search, and with the gold passages
            rollouts += 2 * min(count, plan["controls"])

        for variant in section["variants"].values():
            if variant["models"] is None or model in variant["models"]:
                count = self._questions(variant["dataset"], section["split"], variant["questions"])
                rollouts += count * variant["samples"]

        return rollouts

    def _questions(self, dataset: str, split: str, at_most: int | None) -> int:
        download = self.profile.value("download")
        if download["source"] == "world":
            world = download["world"]
            if dataset == self.profile.value("synthesize")["dataset"]:
                count = look_up("split", split, world["questions"])
            else:
                count = world["out_of_domain_questions"]
            return min(count, at_most or count)

        question_sets = download["folder"]["questions"]
        sources = look_up("question set of download.folder", dataset, question_sets)
        sizes: dict[str, int] = {}
        # Several files may give a split their questions
        for source in sources:
            for name in source["splits"]:
                sizes[name] = sizes.get(name, 0) + self._split_size(source, name)

        count = look_up("split", split, sizes)
        return min(count, at_most or count)

    def _split_size(self, source: Mapping[str, Any], split: str) -> int:
        """Return the questions that one file gives a split."""
        cut = sum(count for count in source["splits"].values() if count)
        rest = self.file.sizes.questions.get(source["format"], cut) - cut
        return source["splits"][split] or rest

    def _passages(self) -> dict[str, int]:
        """Return the number of passages of every corpus."""
        download = self.profile.value("download")
        sizes = self.file.sizes.passages
        if download["source"] == "world":
            names = {"world": "in_domain", "outworld": "out_of_domain"}
            return {corpus: sum(download["world"][name].values()) for corpus, name in names.items()}

        corpora = download["folder"]["corpora"]
        passages: dict[str, int] = {}
        for name, corpus in corpora.items():
            passages[name] = sizes.get(corpus["format"], sizes["other"])

        return passages

    @property
    def _billions(self) -> float:
        """Thousand million parameters of the base model, by its name; 0 of a model that is trained here."""
        section = self.profile.value("prepare_model")
        name = _BILLIONS.search(section["hub"]["repository"]) if section.get("hub") else None
        return float(name[1]) if name else 0.0

    @property
    def _size(self) -> float:
        """What slopes of model work are multiplied by; those of a model that is trained here are of its own size."""
        return self._billions or 1.0

    @property
    def _weights_gib(self) -> float:
        return 2e9 * self._billions / GIB

    @property
    def _vllm(self) -> Mapping[str, Any]:
        """The settings of vLLM; empty where another server is used."""
        return self.profile.value("serving").get("vllm") or {}

    def _disk_gib(self, size_bytes: float) -> float:
        return size_bytes * self._of("copies") / GIB

    def _of(self, slope: str) -> float:
        return self.slopes[slope].value


def _builds(index: Mapping[str, Any], corpus: str, half: IndexHalf) -> bool:
    """Return whether section ``index`` has a half built for a corpus."""
    is_described = index["encoder" if half == "dense" else half] is not None
    return is_described and index["corpus_only"].get(corpus, half) == half


def _endpoint(folder: str) -> Mapping[str, str] | None:
    """Return the address of a model behind a server, None for a folder with weights."""
    file = Path(folder, "endpoint.json")
    return read_json(file) if file.is_file() else None


def _rollout_slope(server: Mapping[str, Any]) -> str:
    return "rollout_eager_s" if server.get("enforce_eager") else "rollout_s"
