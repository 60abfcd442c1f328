"""What each phase does: the graph's own stages in the cut copy of a profile, and a look at what they wrote."""

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from deepsearch_rl.commands.doctor import inspect
from deepsearch_rl.core.errors import CheckFailedError, UnavailableError
from deepsearch_rl.core.files import read_json
from deepsearch_rl.core.profile import find_profile
from deepsearch_rl.endpoints.remote import read_remote
from deepsearch_rl.training.rl_process.fork import RUNS
from deepsearch_rl.training.sft.attention import ATTENTION_PACKAGES
from scripts.preflight.project import DATASET, START, Project
from scripts.preflight.runner import Phase

IMPORTS = {
    "core": ("torch", "mcp"),
    "sft": ("swift", "peft"),
    "rl": ("art", "peft"),
    "serve": ("transformers", "mcp"),
}
"""What the stages of a family import whatever the profile's settings are."""
PROBE = (
    "import importlib.util as u, json, sys; m = [n for n in sys.argv[1:] if not any(map(u.find_spec, n.split('|')))];"
    "c = 'torch' not in sys.argv or 'torch' in m or __import__('torch').cuda.is_available();"
    "print(json.dumps([m, c]))"
)
STEPS = 6  # of SFT, about: rows are packed
STALE_LEARNING_RATE = 0.05  # one step of it moves a policy further than any rounding
# Largest mean differences of log-probabilities, and logits, that it explains
ROUNDING, ROUNDING_16_BIT = 1e-3, 0.1
KEEP = "--keep-scratch"
# share: a model that knows little writes some turns that no template renders
MOST_OTHER_TURNS = 0.2
OWN_INDEX = "own_index"  # name of the profile with its own encoder, inside the copy
# Of gold passages; chance gives about .01 on the generated world
RECALL, LEAST_RECALL = "evidence_recall@10", 0.05
FULL = "full"  # name of the profile at full size, inside the copy


class SkippedError(Exception):
    """A phase has nothing to do for this profile; the text says why."""


Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Preflight:
    """The phases of one copy; each method returns what it measured, by name, or raises what to do."""

    project: Project

    def phases(self) -> list[Phase]:
        """Return all phases in their order."""
        return [
            self._phase("machine", 120),
            self._phase("environment", 300),
            self._phase("prepare", 600, "environment"),
            self._phase("index", 900, "environment"),
            self._phase("teacher", 600, "prepare"),
            self._phase("sft", 600, "prepare"),
            self._phase("rl", 1200, "prepare"),
            self._phase("merge", 600, "sft"),
            self._phase("stale", 900, "prepare"),
            self._phase("serve", 1800, "prepare"),
            self._phase("rl_merge", 600, "rl"),
            self._phase("adapter", 900, "rl_merge"),
            self._phase("evaluate", 900, "rl_merge"),
            self._phase("ifeval", 900, "rl_merge"),
            self._phase("longest", 600, "prepare"),
            self._phase("full_sft", 900, "longest"),
            self._phase("full_rl", 1200, "longest", "rl"),
        ]

    def _phase(self, name: str, timeout_s: float, *needs: str) -> Phase:
        purpose = (getattr(self, name).__doc__ or "").partition("\n")[0].rstrip(".")
        command = (sys.executable, "-m", "scripts.preflight", self.project.name, name)
        return Phase(name=name, purpose=purpose, command=command, timeout_s=timeout_s, needs=needs)

    def machine(self) -> Figures:
        """Memory, disk, GPU, keys and packages that the profile requires, as `deepsearch doctor` sees them."""
        missing = inspect(self.project.root).missing[self.project.name]
        lines = [
            f"missing: {each.what}; {each.fix}."
            for each in missing
            if not each.what.startswith("interpreter ")
        ]
        if lines:
            raise UnavailableError("\n".join(lines))
        return {}

    def environment(self) -> Figures:
        """Interpreters, what they import, and where a GPU is used its driver."""
        values = self.project.profile.values
        problems = list[str]()
        for family, interpreter in values["python"].items():
            problems += self._interpreter_problems(family, interpreter)
        if self.has_gpu and not shutil.which("nvidia-smi"):
            problems.append("nvidia-smi is not installed: install NVIDIA's driver.")
        if problems:
            raise UnavailableError("\n".join(problems))
        return {}

    def _interpreter_problems(self, family: str, interpreter: str) -> list[str]:
        path = self.project.root / interpreter
        fix = f"run `make {'gpu-environments' if interpreter.startswith('.venvs/') else 'environment'}`"
        if not path.exists():
            return [f"the interpreter {interpreter} (python.{family}) does not exist: {fix}."]
        names = [*IMPORTS.get(family, ()), *packages(self.project.profile.values, family)]
        needs_gpu = self.has_gpu and family in ("sft", "rl", "serve")
        command = [path, "-c", PROBE, *names, *(["torch"] if needs_gpu else [])]
        result = subprocess.run(command, capture_output=True, text=True, check=False)

        if result.returncode:
            return [
                f"the interpreter {interpreter} (python.{family}) fails: {result.stderr.strip()[-500:]} {fix}."
            ]

        missing, sees_gpu = json.loads(result.stdout)
        problems = [
            f"{interpreter} (python.{family}) has no package {name}: {fix}." for name in missing
        ]

        if needs_gpu and not sees_gpu:
            problems.append(
                f"{interpreter} (python.{family}) sees no CUDA GPU: attach one, with a driver as new as its torch "
                "needs (`nvidia-smi` shows both)."
            )

        return problems

    @property
    def has_gpu(self) -> bool:
        """Whether the profile's settings use a GPU."""
        return self.project.profile.values["sft"]["device"] == "cuda"

    def prepare(self) -> Figures:
        """A generated world, its index, a teacher's answers, and a small model that learns to call the tool."""
        project = self.project
        for stage in ("download", "chunk", "index", "synthesize"):
            project.run("core", f"stages.{stage}")
        project.run(
            "sft", "scripts.preflight.small_model", project.root / "models" / project.name / "base"
        )
        project.run("sft", "stages.filter")
        return {"rows": project.read("reports/{}/filter.json")["rows"]}

    def index(self) -> Figures:
        """The profile's own tokenizer and encoder, on its device: an index of the generated world, and its recall."""
        own = find_profile(self.project.root, self.project.name).values
        index = {
            **own["index"],
            "corpus_vectors": {},
            "fusion": {**own["index"]["fusion"], "learning": None},
        }
        changes = {
            "profile": OWN_INDEX,
            "index": index,
            "chunk": {**own["chunk"], "variants": {}, "passages": []},
        }
        params = self.project.write_params(changes, f"{OWN_INDEX}.yaml")
        for family, stage in (("core", "download"), ("core", "chunk"), ("index", "index")):
            self.project.run(family, f"stages.{stage}", params=params)
        report = read_json(self.project.folder / "reports" / OWN_INDEX / "retrieval.json")
        recall = {
            name: scores[RECALL] for name, scores in report[DATASET].items() if RECALL in scores
        }

        if not min(recall.values()) >= LEAST_RECALL:
            raise CheckFailedError(
                f"of the gold passages among the first ten, the retrievers find {recall}: one of them finds next to "
                "nothing. Look at index.encoder: its prefixes, pooling and dtype."
            )

        return {f"{name}_recall": value for name, value in recall.items()}

    def teacher(self) -> Figures:
        """The teacher's address and key: one question, answered through the agent."""
        own = find_profile(self.project.root, self.project.name).values["synthesize"]
        folder = self.project.root / own["teacher"]
        if read_remote(folder) is None:
            raise SkippedError(f"the profile's teacher is {own['teacher']}, which needs no key")
        project = self._beside("teacher")
        one = {"dataset": DATASET, "split": "train", "questions": 1, "samples": 1}
        section = {**own, **one, "teacher": folder.as_posix()}
        params = project.write_params({"synthesize": section}, "teacher.yaml")
        project.run("serve", "stages.synthesize", params=params)
        (line,) = (
            (project.data / "trajectories" / "teacher.jsonl")
            .read_text(encoding="utf-8")
            .splitlines()
        )
        trajectory = json.loads(line)

        if trajectory["stop_reason"] in ("model_error", "tool_error", "deadline"):
            raise CheckFailedError(
                f"the teacher did not answer: {trajectory['stop_reason']}: {trajectory['error']}"
            )

        return {"searches": len(trajectory["retrievals"])}

    def _beside(self, name: str) -> Project:
        """Return the copy as a profile of another name that has this one's questions, chunks and index."""
        project = replace(
            self.project, profile=self.project.profile.with_overrides({"profile": name})
        )
        project.data.mkdir(parents=True, exist_ok=True)
        for part in ("questions", "index", "chunks"):
            (project.data / part).symlink_to(self.project.data / part)
        return project

    def sft(self) -> Figures:
        """Some six steps of `swift sft`, killed after the second and resumed."""
        project = self.project
        report = self.project.read("reports/{}/filter.json")
        settings = project.profile.values["sft"]
        tokens = report["rows"] * report["tokens"]["mean"]
        length = settings["max_length"]
        if settings["packing"]:
            length = min(length, max(report["tokens"]["max"], math.ceil(tokens / STEPS)))
        units = math.ceil(tokens / length) if settings["packing"] else report["rows"]
        forwards = max(1, round(units / settings["rows_per_forward"] / STEPS))
        changes = {"sft.forwards_per_step": forwards, "sft.max_length": length}
        params = project.write_params(changes, "sft.yaml")
        checkpoints = "scratch/sft/*/checkpoint-*/trainer_state.json"
        project.kill_when(
            lambda: bool(project.files(checkpoints)), "sft", "stages.sft", params=params
        )
        done = max(int(path.parent.name.rpartition("-")[2]) for path in project.files(checkpoints))
        seconds = project.run("sft", "stages.sft", KEEP, params=params)
        (scratch,) = project.files("scratch/sft/*")
        summary = last_summary(scratch / "logging.jsonl")
        step, steps = map(int, summary["global_step/max_steps"].split("/"))

        if not done < step == steps:
            raise CheckFailedError(
                f"`swift sft`, killed after step {done}, ended at {step} of {steps}; look at {scratch}/swift.log."
            )

        token_s = summary["train_runtime"] / (tokens * (steps - done) / steps)
        slopes = (
            {}
            if self.is_cut
            else {"sft_token_s": token_s, "swift_start_s": seconds - summary["train_runtime"]}
        )
        return {"tokens_per_s": 1 / token_s, "steps": steps, **slopes}

    @property
    def is_cut(self) -> bool:
        """Whether the small model is smaller than the profile's."""
        return self.project.profile.values["prepare_model"]["source"] != "pretrain"

    def merge(self) -> Figures:
        """The SFT adapter merged into its base by `swift export`, and compared in a fresh process."""
        self.project.run("serve", "stages.choose_checkpoint")
        seconds = self.project.run("sft", "stages.merge")
        slopes = {} if self.is_cut else {"merge_s": seconds}
        return {**self._merge_figures("base", "sft_adapter", "sft"), **slopes}

    def _merge_figures(self, start: str, adapter: str, merged: str) -> Figures:
        result = self.project.work / f"{merged}.json"
        folders = [self.project.models / name for name in (start, adapter, merged)]
        self.project.run("sft", "scripts.preflight.merge_probe", *folders, result)
        figures = read_json(result)
        limit = self.project.profile.values["unsloth_merge"]["tolerance"]

        if not figures["parity"] <= limit:
            raise CheckFailedError(
                f"log-probabilities of {folders[2]} differ by {figures['parity']:.2g} nats on average from those of "
                f"its start with the adapter, more than {limit:g}: the merge lost something."
            )

        return figures

    def serve(self) -> Figures:
        """The profile's server: a parsed tool call, tokens per second, log-probabilities against transformers'."""
        serving = self.project.profile.values["serving"]
        if serving["backend"] != "vllm":
            probe = self._probe("serve")
            return {
                **serve_figures(probe),
                **({} if self.is_cut else {"serve_start_s": probe["start_s"]}),
            }

        eager, graphs = (
            self._probe(f"eager-{on}", overrides={"serving.vllm.enforce_eager": on})
            for on in (True, False)
        )
        return {
            **serve_figures(eager if serving["vllm"]["enforce_eager"] else graphs),
            "eager_tokens_per_s": eager["tokens_per_s"],
            "graphs_tokens_per_s": graphs["tokens_per_s"],
            "eager_to_graphs": difference(eager["answers"], graphs["answers"]),
        }

    def _probe(
        self,
        name: str,
        served: str = "base",
        merged: str = "base",
        overrides: Mapping[str, object] = MappingProxyType({}),
        must_call: bool = True,
    ) -> Any:
        """Serve one of the copy's models and return the figures of its answers, compared with the model ``merged``.

        ``must_call``: the model has learnt to call the tool.
        """
        project = self.project
        result = self.project.work / f"{name}.json"
        params = project.write_params(overrides, f"{name}.yaml")
        folders = [project.models / served, project.models / merged]
        project.run("serve", "scripts.preflight.serve_probe", *folders, result, params=params)
        probe = read_json(result)

        if must_call and not any(answer["called"] for answer in probe["answers"]):
            raise CheckFailedError(
                f"the server parsed no tool call in {len(probe['answers'])} answers of a model that writes them; check "
                f"serving's tool_call_parser and the model's chat template. The answers are in {result}."
            )

        if probe["other_turns"] > MOST_OTHER_TURNS * probe["second_turns"]:
            raise CheckFailedError(
                f"{probe['other_turns']} of {probe['second_turns']} turns with a call come back to the model with "
                "other tokens than it wrote: the agent, the server's parser or the chat template changes a turn on its "
                f"way, and RL would leave out its rollout. The first one: {probe['first_other_turn']!r}."
            )

        limit = ROUNDING if probe["dtype"] == "float32" else ROUNDING_16_BIT

        if not probe["parity"] <= limit:
            raise CheckFailedError(
                f"the server's log-probabilities differ from transformers' by {probe['parity']:.2g} nats on average, "
                f"more than {limit:g} in {probe['dtype']}: the two render prompts or compute in different ways."
            )

        return probe

    def rl(self) -> Figures:
        """Three steps of 2 x 4 rollouts, killed after the first and resumed with the optimizer's state."""
        project = self.project

        def logs() -> list[Path]:
            return project.files(f"scratch/rl@{START}/*/train_log.jsonl")

        project.kill_when(lambda: any(map(steps_of, logs())), "rl", "stages.rl", START)
        (log,) = logs()
        before = log.read_text().splitlines()[:2]
        project.run("rl", "stages.rl", START)
        (log,) = project.files(f"{RUNS}/{START}-*/train_log.jsonl")
        lines = (project.models / "rl_adapter" / START / "train_log.jsonl").read_text().splitlines()
        steps = [json.loads(line) for line in lines]

        if lines[:2] != before or [step["step"] for step in steps] != [0, 1, 2, 3]:
            raise CheckFailedError(
                f"RL did not go on after the step that it was killed behind; its log is {log}."
            )

        if not list(log.parent.glob("**/optimizer.pt")):
            raise CheckFailedError(
                f"no checkpoint below {log.parent} has the optimizer's state, so a resume loses it."
            )

        if not any(step.get("trainable_groups") for step in steps):
            raise CheckFailedError(
                f"all rewards of all steps were equal, so nothing was trained; its log is {log}."
            )

        return rl_figures(steps)

    def stale(self) -> Figures:
        """A group of equal rewards and a failed tool; then a sampler that is a step behind, which must be noticed."""
        changes = {"rl.learning_rate": STALE_LEARNING_RATE, "rl.steps": {START: 2}}
        params = self.project.write_params(changes, "stale.yaml")
        self.project.run("rl", "scripts.preflight.arranged_rl", START, "--stale", params=params)
        (log,) = self.project.files("arranged/stale/train_log.jsonl")
        step = steps_of(log)

        if step[0].get("trainable_groups") != 1 or not step[0].get("failures/tool_error"):
            raise CheckFailedError(
                f"of a group with equal rewards and one with a failed tool, RL logged {step[0]}."
            )

        return {}

    def rl_merge(self) -> Figures:
        """The RL adapter merged, proved by the stage, and compared in a fresh process."""
        seconds = self.project.run("rl", "stages.unsloth_merge", START)
        slopes = {} if self.is_cut else {"adapter_merge_s": seconds}
        return {**self._merge_figures(START, f"rl_adapter/{START}", f"rl_merged/{START}"), **slopes}

    def adapter(self) -> Figures:
        """RL's adapter, enlarged until it answers differently, served beside its base: it agrees with transformers."""
        models = self.project.models
        result = self.project.work / "scaled.json"
        scaled = models / "scaled_adapter"
        merged = models / "scaled_merged"
        folders = [models / START, models / "rl_adapter" / START, scaled, merged]
        self.project.run("sft", "scripts.preflight.scaled_adapter", *folders, result)
        probe = self._probe("adapter", scaled.name, merged.name, must_call=False)
        return {**serve_figures(probe), "adapter_nats": read_json(result)["difference"]}

    def evaluate(self) -> Figures:
        """The merged model evaluated on a few questions."""
        self.project.run("serve", "stages.evaluate", "rl")
        return {}

    def ifeval(self) -> Figures:
        """The merged model scored on generated prompts of IFEval, by the environment that scores the real ones."""
        self.project.run("serve", "stages.ifeval", "rl")
        return {}

    def longest(self) -> Figures:
        """A row of almost `sft.max_length` tokens through forward and backward."""
        project = replace(
            self.project, profile=self.project.profile.with_overrides({"profile": "longest"})
        )
        project.models.mkdir(parents=True, exist_ok=True)
        (project.models / "base").symlink_to(self.project.models / "base")
        return self._train_longest(project)

    def _train_longest(self, project: Project) -> Figures:
        """Train on one long row with the small model's data, in the profile ``project`` of the copy."""
        tokens = self.project.profile.values["sft"]["max_length"]
        report = self.project.read("reports/{}/filter.json")
        rows = self.project.data / "sft" / "train.jsonl"
        (project.data / "sft").mkdir(parents=True, exist_ok=True)
        lines = rows.read_text(encoding="utf-8").splitlines()
        row = long_row(lines, report["rows"] * report["tokens"]["mean"], tokens)
        (project.data / "sft" / "train.jsonl").write_text(f"{row}\n", encoding="utf-8")
        params = project.write_params(
            {"sft.forwards_per_step": 1, "sft.save_steps": 1}, f"{project.name}.yaml"
        )
        project.run("sft", "stages.sft", KEEP, params=params)
        (scratch,) = project.files("scratch/sft/*")
        return {"tokens_per_s": tokens / last_summary(scratch / "logging.jsonl")["train_runtime"]}

    def full_sft(self) -> Figures:
        """The longest row with a model of full size and random weights: peak memory of SFT."""
        project = self._full()
        base = project.root / "models" / self.project.name / "base"
        params = project.write_params({}, f"{FULL}.yaml")
        project.run("sft", "scripts.preflight.small_model", base, "--full-size", params=params)
        return self._train_longest(project)

    def full_rl(self) -> Figures:
        """A step of 2 x 4 rollouts as long as they may be, with the model of full size: peak memory of RL."""
        if not (self._full().models / "base").is_dir():
            raise SkippedError("the model of full size was not made")
        project = self._beside(FULL)
        sizes = (
            project.profile.values["rl"]["max_sequence_tokens"],
            project.profile.values["agent"]["context_tokens"],
        )
        changes = {
            "rl.steps": {START: 1},
            "rl.dev.questions": 1,
            "agent.max_tokens": min(sizes) - 2048,
        }
        params = project.write_params(changes, f"{FULL}.yaml")
        project.run("rl", "scripts.preflight.arranged_rl", START, params=params)
        lines = (project.models / "rl_adapter" / START / "train_log.jsonl").read_text().splitlines()
        return rl_figures([json.loads(line) for line in lines])

    def _full(self) -> Project:
        if not self.has_gpu:
            raise SkippedError(
                "only where a GPU is used; the small model has the full size already"
            )

        return replace(self.project, profile=self.project.profile.with_overrides({"profile": FULL}))


def packages(values: Mapping[str, Any], family: str) -> list[str]:
    """Return what a stage family imports because of the profile's settings."""
    names = {
        "sft": [*ATTENTION_PACKAGES[values["sft"]["attention"]]],
        "rl": ["unsloth", "trl", "bitsandbytes"]
        if values["rl"]["backend"]["service"] == "unsloth"
        else [],
        "serve": ["vllm"] if values["serving"]["backend"] == "vllm" else [],
    }
    return names.get(family, [])


def steps_of(log: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a running RL's log after that of step 0."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines[1:] if line.endswith("\n")]


def rl_figures(steps: list[dict[str, Any]]) -> Figures:
    """Return what the lines of an RL log say of all steps."""
    tokens = sum(step.get("trained_tokens", 0) for step in steps)
    mismatch = [step["mismatch_mean"] for step in steps if "mismatch_mean" in step]
    shares = [step["served_share"] for step in steps if "served_share" in step]
    figures = {"trained_tokens": tokens}
    if mismatch:
        figures["parity"] = max(mismatch)
    if shares:
        figures["served_share"] = shares[-1]
    return figures


def last_summary(log: Path) -> dict[str, Any]:
    """Return the summary that ms-swift writes into its log at the end of a run."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return next(line for line in reversed(lines) if "train_runtime" in line)


def long_row(lines: list[str], tokens: float, wanted: int) -> str:
    """Return the first row with a search, its passages repeated up to about nine tenths of the ``wanted`` tokens.

    ``tokens`` is how many all ``lines`` have.
    """
    row = next(json.loads(line) for line in lines if '"tool_response"' in line)
    size = 0.9 * wanted / tokens * sum(map(len, lines)) - len(json.dumps(row))
    answer = next(message for message in row["messages"] if message["role"] == "tool_response")
    answer["content"] *= max(1, int(size / len(answer["content"])))
    return json.dumps(row, ensure_ascii=False)


def serve_figures(probe: Any) -> Figures:
    """Return the figures of a server's probe."""
    return {name: probe[name] for name in ("tokens_per_s", "parity", "second_turns", "other_turns")}


def difference(ours: list[Any], theirs: list[Any]) -> float:
    """Return the mean difference of two servers' log-probabilities over the tokens that both wrote."""
    differences = list[float]()
    for own, other in zip(ours, theirs, strict=True):
        tokens = zip(
            own["tokens"], other["tokens"], own["logprobs"], other["logprobs"], strict=False
        )
        for token, same, left, right in tokens:
            if token != same:
                break
            differences.append(abs(left - right))

    return sum(differences) / max(1, len(differences))
