"""What a profile works on, and what one unit of it takes: the table of slopes, and the amounts that params give.

A stage's seconds are amounts times slopes. A CPU's are of all but the model, whose part comes from
its shape and this machine (:mod:`deepsearch_rl.cli.plan_cpu`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.chat.prompts import prompt_path, tools_text
from deepsearch_rl.cli.plan_cpu import (
    GIB,
    CpuModel,
    ModelShape,
    billions,
    measured_gflops,
    model_shape,
)
from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.files import read_json
from deepsearch_rl.core.model_config import DTYPE_BYTES
from deepsearch_rl.core.profile import Profile

# What one unit takes on two CPU cores beside its model, and on an H100. A name ends in its unit.
# `_s` are seconds of all workers together: a rollout that takes 6 s while 30 run at once is 0.2 s.
# Model work on a GPU is per thousand million parameters. CPU figures are from a run of `make repro`,
# whose model is too small to count; the GPU's are measured where docs/gpu.md says so, otherwise estimates.
SLOPES: dict[str, tuple[float, float]] = {
    "side_by_side": (0.72, 1),  # time of a run by the sum of its stages
    "start_s": (1.3, 20),
    "serve_start_s": (3.4, 94),
    "merge_s": (10, 300),
    "adapter_merge_s": (4.5, 300),
    "swift_start_s": (8, 60),
    "download_gb_s": (100, 20),
    "index_passage_s": (0.0015, 0.00015),
    "encode_passage_s": (0, 0.00022),  # or as long as its tokens take, which are made ahead
    "tokenize_passage_s": (0, 0.0003),  # of one core (docs/measurements.md), on `host_cores`
    "tensor_passage_s": (0, 0.00017),  # of tokens into tensors, on one
    "host_cores": (2, 16),
    "pretrain_token_s": (1.6e-5, 1.3e-4),
    "scripted_rollout_s": (0.013, 0.01),
    "api_call_s": (2, 2),
    "filter_row_s": (0.0017, 0.05),
    "sft_token_s": (1.6e-4, 2.5e-5),
    "rollout_s": (0.02, 0.018),
    "rollout_eager_s": (0.02, 0.07),
    "rl_token_s": (3.5e-4, 8.8e-5),
    "verl_token_s": (3.9e-4, 3.3e-5),
    "padding": (1.7, 1.7),  # positions of veRL's batches over their tokens, without flash attention
    "rl_step_s": (0, 6),
    "ifeval_prompt_s": (0.03, 0.06),
    "report_rollout_s": (0.0013, 0.005),
    "row_tokens": (0, 2200),  # of a trajectory; 0: by the lengths of prompt and passages
    "searches": (1.8, 2.4),  # of a trajectory
    "search_tokens": (40, 40),  # written for a search, with the template's
    "question_tokens": (30, 30),  # with the template's
    "answer_tokens": (20, 20),
    "word_tokens": (1.3, 1.3),
    "title_tokens": (10, 10),
    "character_tokens": (0.25, 0.25),  # of prompt and tool
    "success_share": (0.6, 0.64),  # of the teacher's rollouts
    "trained_share": (0.75, 0.75),  # of the groups: others have equal rewards
    "calls_per_rollout": (3.4, 3.4),
    "prompt_tokens": (4594, 4594),  # read per question, all rounds
    "completion_tokens": (132, 132),  # written per question
    "ifeval_tokens": (400, 400),
    "question_call_tokens": (600, 600),  # of a call of make_questions
    "passage_bytes": (3600, 3600),  # corpus, chunk, BM25 and vector of one passage
    "bm25_bytes": (476, 476),
    "vector_bytes": (1660, 1660),
    "index_memory_bytes": (200, 200),
    "rollout_bytes": (9000, 40_000),
    "adapter_bytes": (2.06e6, 2.06e6),  # LoRA in float32, per rank and thousand million parameters
    "copies": (2, 2),  # DVC's cache holds a second copy
    "process_gib": (1.5, 4),
    "training_gib": (1.0, 8),  # of host memory beside a model's weights
    "gpu_token_gib": (0, 0.0015),  # activations of a token in training
    "server_gib": (0.4, 0),  # of a model server beside weights and slots
    "float32_gflops": (0, 0),  # of a core in passes of 512 tokens; 0: measured by the plan
    "float32_few_gflops": (0, 0),  # in passes of 16
    "bfloat16_gflops": (0, 0),
    "bfloat16_few_gflops": (0, 0),
}
# An RTX 4090's bfloat16 against an H100's: 165 and 990 TFLOP/s; memory: 1.0 and 3.35 TB/s
SMALL_GPU_GIB = 24
SMALL_GPU_FACTOR = 5
# Not slower on a small GPU
FIXED_S = (
    *("download_gb_s", "api_call_s"),
    *("tokenize_passage_s", "tensor_passage_s"),
)

# Of public files that a profile reads whole, by format
QUESTIONS = {"multihoprag": 2556, "musique": 2417, "2wikimultihopqa": 12576, "hotpotqa": 7405}
PASSAGES = {"multihoprag": 9000, "wiki18": 21_015_324}
OTHER_PASSAGES = 20_000
DOWNLOAD_GB = {"multihoprag": 0.02, "wiki18": 4.7, "flashrag": 0.1, "ifeval": 0.001}
IFEVAL_PROMPTS = 541
# USD per million tokens read and written. Alibaba Cloud Model Studio, international list.
PRICES = {"qwen3-30b-a3b-instruct-2507": (0.20, 0.80)}


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What a stage takes: the disk that it adds, the most memory that it holds (of one GPU), an API's tokens.

    ``tokens`` are those that the model ``api`` reads and writes; ``price_usd`` is None if its price is not known.
    """

    stage: str
    seconds: float
    disk_gib: float
    host_gib: float
    gpu_gib: float
    api: str
    tokens: tuple[float, float]
    price_usd: float | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a profile works on: questions, passages, parameters, bytes.

    ``shape`` is the base model's, ``cpu`` what it takes on a CPU; None where it is not known, or on a GPU.
    """

    profile: Profile
    slopes: Mapping[str, float]
    shape: ModelShape | None
    cpu: CpuModel | None

    @property
    def values(self) -> Mapping[str, Any]:
        """The params."""
        return self.profile.values

    @property
    def basis(self) -> str:
        """What the time of a model on a CPU rests on, in a sentence; empty without one."""
        if self.cpu is None:
            is_unknown = self.shape is None and "prepare_model" in self.values
            return (
                "The base model is not there, so its time and memory are not counted." * is_unknown
            )
        shape = self.cpu.shape
        rates: list[str] = []
        for dtype in self.cpu.gflops:
            read = 1 / self.cpu.read_token_s(self.row_tokens, dtype)
            trained = 1 / self.cpu.train_token_s(self.row_tokens, dtype, 1.0, lora=self.sft_lora)
            rates.append(
                f"{self.cpu.gflops[dtype][1]:.0f} GFLOP/s in {dtype}, which trains {trained:,.0f} and "
                f"reads {read:,.0f} tokens/s"
            )
        return (
            f"The model has {shape.parameters / 1e6:.3g}M parameters in {shape.layers} layers "
            f"({shape.source}). A core of this machine has {'; '.join(rates)}."
        )

    def questions(self, dataset: str, split: str, limit: int | None) -> int:
        """Return how many questions of a split of a set are used: all, or at most ``limit``."""
        download = self.values["download"]
        if download["source"] == "world":
            world = download["world"]
            count = world["out_of_domain_questions"]
            if dataset == self.values.get("synthesize", {}).get("dataset", dataset):
                count = look_up("split", split, world["questions"])
        elif "/made/" in download["path"]:
            made = self.values["make_questions"]
            count = round(made["questions"] * look_up("split", split, made["splits"]))
        else:
            sources = look_up("question set", dataset, download["folder"]["questions"])
            chosen = [source for source in sources if split in source["splits"]]
            file = self.profile.data / "questions" / dataset / f"{split}.jsonl"
            if file.is_file() and not all(source["splits"][split] for source in chosen):
                count = len(file.read_bytes().splitlines())
            else:
                count = sum(_split_size(source, split) for source in chosen)

        return count if limit is None else min(count, limit)

    @property
    def passages(self) -> dict[str, int]:
        """The number of passages of every corpus."""
        download = self.values["download"]
        if download["source"] == "world":
            world = download["world"]
            in_domain = sum(world["in_domain"].values())
            return {"world": in_domain, "outworld": sum(world["out_of_domain"].values())}
        folder = download["folder"]
        corpora = folder["corpora"].items()
        counts = {name: PASSAGES.get(corpus["format"], OTHER_PASSAGES) for name, corpus in corpora}
        return {**dict.fromkeys(folder.get("paragraphs") or (), OTHER_PASSAGES), **counts}

    @property
    def documents_gib(self) -> float:
        """Disk of all documents; their chunks take as much, and the index three times that."""
        return self.disk_gib(sum(self.passages.values()) * self.slopes["passage_bytes"]) / 5

    @property
    def billions(self) -> float:
        """Thousand million parameters of the base model; 0 of a model that is trained here."""
        section = self.values.get("prepare_model", {})
        if self.shape is None or section["source"] == "pretrain":
            return 0.0
        named = billions(section["hub"]["repository"]) if section["source"] == "hub" else 0.0
        return named or self.shape.parameters / 1e9

    @property
    def row_tokens(self) -> float:
        """Tokens of a whole trajectory."""
        slopes = self.slopes
        if slopes["row_tokens"]:
            return slopes["row_tokens"]
        turns = self.searches * (slopes["search_tokens"] + self._shown_tokens)
        return self._prefix_tokens + slopes["question_tokens"] + turns + slopes["answer_tokens"]

    @property
    def searches(self) -> float:
        """Searches of a trajectory."""
        return min(self.slopes["searches"], self.values["agent"]["max_searches"])

    @property
    def written_tokens(self) -> float:
        """Tokens of a trajectory that the model writes."""
        slopes = self.slopes
        return self.searches * slopes["search_tokens"] + slopes["answer_tokens"]

    @property
    def read_tokens(self) -> float:
        """Tokens of a trajectory that the model reads, without the prompt, which a server computes once."""
        return max(0.0, self.row_tokens - self._prefix_tokens - self.written_tokens)

    @property
    def _prefix_tokens(self) -> float:
        prompt = prompt_path(self.values["agent"]["prompt"])
        # A stage may still have to make it
        characters = prompt.stat().st_size if prompt.is_file() else 0
        characters += len(tools_text(RETRIEVE_TOOL))
        return characters * self.slopes["character_tokens"]

    @property
    def _shown_tokens(self) -> float:
        """Tokens of a search's passages."""
        slopes = self.slopes
        chunk = self.values["chunk"]
        is_words = chunk["tokenizer"] == "words"
        passage = chunk["chunk_size"] * (slopes["word_tokens"] if is_words else 1)
        shown = self.values["retrieval"]["top_k"] * (passage + slopes["title_tokens"])
        limit = self.values["agent"]["max_observation_tokens"]
        return min(shown, limit) if limit else shown

    def threads(self, *path: str) -> int | None:
        """Return the threads of a section; null: as many as cores."""
        section: Mapping[str, Any] = self.values
        for name in path:
            section = section.get(name) or {}
        return section["threads"] if "threads" in section else self.values["index"]["threads"]

    @property
    def sft_lora(self) -> tuple[int, float]:
        """Rank of SFT's adapter, and the share of the layers that it is on."""
        sft = self.values["sft"]
        return sft["lora_rank"], self.layer_share(sft.get("lora_layers"))

    def layer_share(self, layers: int | None) -> float:
        """Return the share of the base model's layers that the last so many are; null: all."""
        return min(1.0, layers / self.shape.layers) if layers and self.shape else 1.0

    def rollout_model_s(self, batch: int, dtype: str) -> float:
        """Return what a core computes for a rollout of which ``batch`` run at once; 0 on a GPU."""
        if self.cpu is None:
            return 0.0
        written = self.written_tokens * self.cpu.write_token_s(batch, self.row_tokens, dtype)
        return self.read_tokens * self.cpu.read_token_s(self.row_tokens, dtype) + written

    @property
    def size(self) -> float:
        """What slopes of model work are multiplied by."""
        return self.billions or 1.0

    @property
    def weights_gib(self) -> float:
        """The weights of the base model in 16 bits."""
        return 2e9 * self.billions / GIB

    @property
    def training_gib(self) -> float:
        """Host memory of a training process."""
        return self.weights_gib + self.slopes["training_gib"]

    def update_gib(self, tokens: int) -> float:
        """Return the GPU memory of an update of so many tokens, without the optimizer of an adapter."""
        return self.weights_gib + tokens * self.slopes["gpu_token_gib"]

    def plan(
        self,
        amounts: Mapping[str, float],
        rollouts: float = 0,
        *,
        model_s: float = 0.0,
        disk_gib: float = 0.0,
        host_gib: float = 0.0,
        gpu_gib: float = 0.0,
        api: str = "",
        tokens: tuple[float, float] = (0.0, 0.0),
    ) -> StagePlan:
        """Return the plan of a stage without its name; its time is so much of each slope, and the model's."""
        slopes = self.slopes
        seconds = sum(amount * slopes[name] for name, amount in amounts.items())
        prices = PRICES.get(api) if api else (0.0, 0.0)
        price = (tokens[0] * prices[0] + tokens[1] * prices[1]) / 1e6 if prices else None
        return StagePlan(
            stage="",
            seconds=slopes["start_s"] + seconds + model_s,
            disk_gib=disk_gib + rollouts * slopes["rollout_bytes"] * slopes["copies"] / GIB,
            host_gib=host_gib + slopes["process_gib"],
            gpu_gib=gpu_gib,
            api=api,
            tokens=tokens,
            price_usd=price,
        )

    def disk_gib(self, size_bytes: float) -> float:
        """Return what artifacts take on disk, with DVC's copies."""
        return size_bytes * self.slopes["copies"] / GIB


def sizes_of(profile: Profile, given: Mapping[str, float]) -> Sizes:
    """Return the sizes of a profile, with the values of slopes that are ``given``.

    On a CPU the machine is timed, unless they say how fast it is. Raise UnknownNameError for a
    slope that does not exist.
    """
    for name in given:
        look_up("slope", name, SLOPES)

    gpu_gib = profile.value("requires")["gpu_memory_gib"]
    slopes: dict[str, float] = {}
    for name, (cpu, gpu) in SLOPES.items():
        is_slower = 0 < gpu_gib <= SMALL_GPU_GIB and name.endswith("_s") and name not in FIXED_S
        slopes[name] = (gpu if gpu_gib else cpu) * (SMALL_GPU_FACTOR if is_slower else 1)

    slopes |= _filtered(profile)
    slopes |= given
    shape = model_shape(profile)
    if gpu_gib or shape is None:
        return Sizes(profile, slopes, shape, None)

    gflops: dict[str, tuple[float, float]] = {}
    for dtype in _dtypes(profile):
        names = (f"{dtype}_few_gflops", f"{dtype}_gflops")
        if not all(slopes[name] for name in names):
            measured = zip(names, measured_gflops(shape, dtype), strict=True)
            slopes |= {**dict(measured), **given}
        gflops[dtype] = (slopes[names[0]], slopes[names[1]])

    return Sizes(profile, slopes, shape, CpuModel(shape, gflops))


def _filtered(profile: Profile) -> dict[str, float]:
    """Return what the last run of `filter` counted, in place of the table's figures."""
    file = profile.reports / "filter.json"
    if not file.is_file():
        return {}
    report = read_json(file)
    return {
        "row_tokens": report["tokens"]["mean"],
        "searches": report["searches"],
        "success_share": report["rows"] / report["trajectories"],
    }


def _dtypes(profile: Profile) -> list[str]:
    """Return the dtypes of a profile's models."""
    values = profile.values
    found = {values.get(section, {}).get("dtype") for section in ("sft", "rl", "merge")}
    return [dtype for dtype in DTYPE_BYTES if dtype in found | {engine_dtype(values)}]


def engine_dtype(values: Mapping[str, Any]) -> str:
    """Return the dtype in which the CPU engine computes."""
    return (values.get("serving", {}).get("cpu") or {}).get("dtype", "float32")


def _split_size(source: Mapping[str, Any], split: str) -> int:
    """Return the questions that a file gives a split: as many as it says, or what the others leave."""
    cut = sum(count for count in source["splits"].values() if count)
    return source["splits"][split] or QUESTIONS.get(source["format"], 2 * cut) - cut
