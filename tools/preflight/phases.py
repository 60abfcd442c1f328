"""What each phase does: the graph's own stages in the cut copy of a profile, and a look at what they wrote."""

import json
import math
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deepsearch_rl.chat.endpoint import read_remote
from deepsearch_rl.cli.doctor import inspect
from deepsearch_rl.core.errors import CheckFailedError, UnavailableError
from deepsearch_rl.core.files import read_json
from deepsearch_rl.core.profile import find_profile
from tools.preflight.figures import (
    Figures,
    difference,
    last_summary,
    long_row,
    rl_figures,
    serve_figures,
    steps_of,
)
from tools.preflight.interpreters import interpreter_problems
from tools.preflight.probes import probe_merge, probe_server
from tools.preflight.project import DATASET, START, Project
from tools.preflight.runner import Phase

# Of SFT, about: rows are packed
STEPS = 6
# One step of it moves a policy further than any rounding
STALE_LEARNING_RATE = 0.05
KEEP = "--keep-scratch"
# Names of profiles inside the copy: one with its own encoder, one with an enlarged adapter, one at
# full size
OWN_INDEX = "own_index"
SCALED = "scaled"
FULL = "full"
RECALL = "evidence_recall@10"
# Of gold passages; chance gives about .01 on the generated world
LEAST_RECALL = 0.05


class SkippedError(Exception):
    """A phase has nothing to do for this profile; the text says why."""


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
            self._phase("adapter", 1200, "rl_merge"),
            self._phase("evaluate", 900, "rl_merge"),
            self._phase("ifeval", 900, "rl_merge"),
            self._phase("longest", 600, "prepare"),
            self._phase("full_sft", 900, "longest"),
            self._phase("full_rl", 1200, "longest", "rl"),
        ]

    def _phase(self, name: str, timeout_s: float, *needs: str) -> Phase:
        purpose = (getattr(self, name).__doc__ or "").partition("\n")[0].rstrip(".")
        command = (sys.executable, "-m", "tools.preflight", self.project.name, name)
        return Phase(name=name, purpose=purpose, command=command, timeout_s=timeout_s, needs=needs)

    def machine(self) -> Figures:
        """Memory, disk, GPU, keys and packages that the profile requires, as `deepsearch doctor` sees them."""
        lines: list[str] = []
        for requirement in inspect(self.project.root).missing[self.project.name]:
            # Interpreters are the next phase's
            if not requirement.what.startswith("interpreter "):
                lines.append(f"missing: {requirement.what}; {requirement.fix}.")

        if lines:
            raise UnavailableError("\n".join(lines))
        return {}

    def environment(self) -> Figures:
        """Interpreters, what they import, and where a GPU is used its driver."""
        problems: list[str] = []
        for family in self.project.profile.values["python"]:
            needs_gpu = self.has_gpu and family in ("sft", "rl", "serve")
            problems += interpreter_problems(self.project, family, needs_gpu)
        if self.has_gpu and not shutil.which("nvidia-smi"):
            problems.append("nvidia-smi is not installed: install NVIDIA's driver.")
        if problems:
            raise UnavailableError("\n".join(problems))
        return {}

    @property
    def has_gpu(self) -> bool:
        """Whether the profile's settings use a GPU."""
        return self.project.profile.values["sft"]["device"] == "cuda"

    def prepare(self) -> Figures:
        """A generated world, its index, a teacher's answers, and a small model that learns to call the tool."""
        project = self.project
        for stage in ("download", "chunk", "index", "synthesize"):
            project.run("core", f"stages.{stage}")
        base = project.root / "models" / project.name / "base"
        project.run("sft", "tools.preflight.small_model", base)
        project.run("sft", "stages.filter")
        return {"rows": project.read("reports/{}/filter.json")["rows"]}

    def index(self) -> Figures:
        """The profile's own tokenizer and encoder, on its device: an index of the generated world, and its recall."""
        own = find_profile(self.project.root, self.project.name).values
        # Sizes of the whole corpus do not fit the generated world, which has too few passages for them
        fusion = {**own["index"]["fusion"], "learning": None}
        index = {**own["index"], "corpus_vectors": {}, "fusion": fusion}
        chunk = {**own["chunk"], "variants": {}, "passages": []}
        changes = {"profile": OWN_INDEX, "index": index, "chunk": chunk}
        params = self.project.write_params(changes, f"{OWN_INDEX}.yaml")
        for family, stage in (("core", "download"), ("core", "chunk"), ("index", "index")):
            self.project.run(family, f"stages.{stage}", params=params)
        report = read_json(self.project.folder / "reports" / OWN_INDEX / "retrieval.json")
        recall: dict[str, float] = {}
        for name, scores in report[DATASET].items():
            if RECALL in scores:
                recall[name] = scores[RECALL]

        # Written so that a NaN fails as well
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
        one_question = {"dataset": DATASET, "split": "train", "questions": 1, "samples": 1}
        section = {**own, **one_question, "teacher": folder.as_posix()}
        params = project.write_params({"synthesize": section}, "teacher.yaml")
        project.run("serve", "stages.synthesize", params=params)
        answers = project.data / "trajectories" / "teacher.jsonl"
        (line,) = answers.read_text(encoding="utf-8").splitlines()
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
        figures = {"tokens_per_s": 1 / token_s, "steps": steps}
        # Slopes are of the profile's own model
        if not self.is_cut:
            figures["sft_token_s"] = token_s
            figures["swift_start_s"] = seconds - summary["train_runtime"]
        return figures

    @property
    def is_cut(self) -> bool:
        """Whether the small model is smaller than the profile's."""
        return self.project.profile.values["prepare_model"]["source"] != "pretrain"

    def merge(self) -> Figures:
        """The SFT adapter merged into its base by `swift export`, and compared in a fresh process."""
        self.project.run("serve", "stages.choose_checkpoint")
        seconds = self.project.run("sft", "stages.merge")
        slopes = {} if self.is_cut else {"merge_s": seconds}
        return {**probe_merge(self.project, "base", "sft_adapter", "sft"), **slopes}

    def serve(self) -> Figures:
        """The profile's server: a parsed tool call, tokens per second, log-probabilities against transformers'."""
        serving = self.project.profile.values["serving"]
        if serving["backend"] != "vllm":
            probe = probe_server(self.project, "serve")
            slopes = {} if self.is_cut else {"serve_start_s": probe["start_s"]}
            return {**serve_figures(probe), **slopes}

        # Both ways, so that a user sees what CUDA graphs are worth here and whether they change answers
        eager = self._probe_vllm(enforce_eager=True)
        graphs = self._probe_vllm(enforce_eager=False)
        return {
            **serve_figures(eager if serving["vllm"]["enforce_eager"] else graphs),
            "eager_tokens_per_s": eager["tokens_per_s"],
            "graphs_tokens_per_s": graphs["tokens_per_s"],
            "eager_to_graphs": difference(eager["answers"], graphs["answers"]),
        }

    def _probe_vllm(self, *, enforce_eager: bool) -> Any:
        overrides = {"serving.vllm.enforce_eager": enforce_eager}
        return probe_server(self.project, f"eager-{enforce_eager}", overrides=overrides)

    def rl(self) -> Figures:
        """Three steps of 4 x 4 rollouts, killed after the first and resumed with the optimizer's state."""
        project = self.project
        # Of two groups, often both have equal rewards, and then nothing is trained
        params = project.write_params({"rl.groups_per_step": 4}, "rl.yaml")

        def logs() -> list[Path]:
            return project.files(f"scratch/rl@{START}/*/train_log.jsonl")

        project.kill_when(
            lambda: any(map(steps_of, logs())), "rl", "stages.rl", START, params=params
        )
        (log,) = logs()
        if not list(log.parent.glob("**/optimizer.pt")):
            raise CheckFailedError(
                f"no checkpoint below {log.parent} has the optimizer's state, so a resume loses it."
            )

        # Of steps 0 and 1, which a resumed run may not make again
        before = log.read_text().splitlines()[:2]
        project.run("rl", "stages.rl", START, params=params)
        log = project.models / "rl_adapter" / START / "train_log.jsonl"
        lines = log.read_text().splitlines()
        steps = [json.loads(line) for line in lines]

        if lines[:2] != before or [step["step"] for step in steps] != [0, 1, 2, 3]:
            raise CheckFailedError(
                f"RL did not go on after the step that it was killed behind; its log is {log}."
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
        self.project.run("rl", "tools.preflight.arranged_rl", START, "--stale", params=params)
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
        figures = probe_merge(self.project, START, f"rl_adapter/{START}", f"rl_merged/{START}")
        return {**figures, **slopes}

    def adapter(self) -> Figures:
        """RL's adapter, enlarged until it answers differently: merged by the stage, and served beside its base."""
        models = self.project.models
        result = self.project.work / "scaled.json"
        scaled = models / "scaled_adapter"
        folders = [models / START, models / "rl_adapter" / START, scaled]
        self.project.run("sft", "tools.preflight.scaled_adapter", *folders, result)
        merged = self._merge_scaled(scaled)
        probe = probe_server(self.project, "adapter", scaled.name, str(merged), must_call=False)
        return {**serve_figures(probe), "adapter_nats": read_json(result)["difference"]}

    def _merge_scaled(self, adapter: Path) -> Path:
        """Merge an adapter as RL's is, by the stage and with its proof; return the merged folder.

        RL may have kept its start, and of an adapter of zeros nothing is lost.
        """
        profile = self.project.profile.with_overrides({"profile": SCALED})
        project = replace(self.project, profile=profile)
        (project.models / "rl_adapter").mkdir(parents=True)
        (project.models / START).symlink_to(self.project.models / START)
        (project.models / "rl_adapter" / START).symlink_to(adapter)
        params = project.write_params({}, f"{SCALED}.yaml")
        project.run("rl", "stages.unsloth_merge", START, params=params)
        return project.models / "rl_merged" / START

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
        # One row has no share to hold back
        changes = {"sft.forwards_per_step": 1, "sft.save_steps": 1, "sft.eval_share": 0.0}
        params = project.write_params(changes, f"{project.name}.yaml")
        project.run("sft", "stages.sft", KEEP, params=params)
        (scratch,) = project.files("scratch/sft/*")
        return {"tokens_per_s": tokens / last_summary(scratch / "logging.jsonl")["train_runtime"]}

    def full_sft(self) -> Figures:
        """The longest row with a model of full size and random weights: peak memory of SFT."""
        project = self._full()
        base = project.root / "models" / self.project.name / "base"
        params = project.write_params({}, f"{FULL}.yaml")
        project.run("sft", "tools.preflight.small_model", base, "--full-size", params=params)
        return self._train_longest(project)

    def full_rl(self) -> Figures:
        """A step of 2 x 4 rollouts as long as they may be, with the model of full size: peak memory of RL."""
        if not (self._full().models / "base").is_dir():
            raise SkippedError("the model of full size was not made")
        project = self._beside(FULL)
        values = project.profile.values
        longest = min(values["rl"]["max_sequence_tokens"], values["agent"]["context_tokens"])
        changes = {
            "rl.steps": {START: 1},
            "rl.dev.questions": 1,
            # The rest is for the prompt
            "agent.max_tokens": longest - 2048,
        }
        params = project.write_params(changes, f"{FULL}.yaml")
        project.run("rl", "tools.preflight.arranged_rl", START, params=params)
        lines = (project.models / "rl_adapter" / START / "train_log.jsonl").read_text().splitlines()
        return rl_figures([json.loads(line) for line in lines])

    def _full(self) -> Project:
        if not self.has_gpu:
            raise SkippedError(
                "only where a GPU is used; the small model has the full size already"
            )

        return replace(self.project, profile=self.project.profile.with_overrides({"profile": FULL}))
