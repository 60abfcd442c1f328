"""The phases of a preflight, each over the graph's own stages in the cut copy of a profile."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepsearch_rl.commands.doctor import inspect
from deepsearch_rl.errors import CheckFailedError, UnavailableError
from deepsearch_rl.files import read_json
from scripts.preflight.project import START, Project
from scripts.preflight.runner import Figures, Phase, SkippedError

IMPORTS = {"core": ("torch", "dvc"), "sft": ("swift", "peft"), "rl": ("art", "peft"), "serve": ("transformers",)}
STEPS = 4  # of SFT
STALE_LEARNING_RATE = 0.05  # moves a policy in one step further than any rounding
MEMORY_KEY = "memory(GiB)"


@dataclass(frozen=True, slots=True)
class Preflight:
    """The phases of one project."""

    project: Project

    def phases(self) -> list[Phase]:
        """Return all phases in their order."""
        return [
            Phase("machine", self.machine, 60),
            Phase("environment", self.environment, 300),
            Phase("prepare", self.prepare, 300, needs=("environment",)),
            Phase("sft", self.sft, 600, needs=("prepare",)),
            Phase("merge", self.merge, 300, needs=("sft",)),
            Phase("serve", self.serve, 1200, needs=("prepare",)),
            Phase("rl", self.rl, 1200, needs=("prepare",)),
            Phase("stale", self.stale, 600, needs=("prepare",)),
            Phase("rl_merge", self.rl_merge, 300, needs=("rl",)),
            Phase("evaluate", self.evaluate, 600, needs=("rl_merge",)),
            Phase("longest", self.longest, 300, needs=("prepare",)),
        ]

    def machine(self) -> Figures:
        """Memory, disk, GPU, keys and packages that the profile requires (`deepsearch doctor`)."""
        missing = inspect(self.project.root).missing[self.project.name]
        if missing:
            raise UnavailableError("\n".join(f"{each.what} is missing: {each.fix}." for each in missing))
        return {}

    def environment(self) -> Figures:
        """Interpreters, what they import, GPU and driver."""
        problems = [problem for family in self.project.profile.values["python"] for problem in self._problems(family)]
        if problems:
            raise UnavailableError("\n".join(dict.fromkeys(problems)))
        return {}

    def _problems(self, family: str) -> list[str]:
        interpreter = self.project.interpreter(family)
        target = "environment" if ".venvs" not in interpreter.parts else "gpu-environments"
        if not interpreter.exists():
            return [f"the interpreter {interpreter} (python.{family}) does not exist: run `make {target}`."]
        names = [*IMPORTS[family], *packages(self.project.profile.values, family)]
        code = "import importlib.util as u, sys; print([n for n in sys.argv[1:] if u.find_spec(n) is None])"
        result = subprocess.run([interpreter, "-c", code, *names], capture_output=True, text=True, check=False)
        missing = json.loads(result.stdout.replace("'", '"')) if result.returncode == 0 else [result.stderr.strip()]
        return [f"python.{family} cannot import {name}: run `make {target}`." for name in missing]

    def prepare(self) -> Figures:
        """A generated world, its index, a teacher's answers, and a small model that learnt to call the tool."""
        project = self.project
        for stage in ("download", "chunk", "index", "synthesize"):
            project.run("core", f"stages.{stage}")
        base = project.root / "models" / project.name / "base"
        project.run("sft", "scripts.preflight.small_model", base)
        project.run("sft", "stages.filter")
        return {"rows": project.read("reports/{}/filter.json")["rows"]}

    def sft(self) -> Figures:
        """Four steps of `swift sft`, killed in the middle and resumed."""
        project, report = self.project, self.project.read("reports/{}/filter.json")
        settings, tokens = project.profile.values["sft"], report["rows"] * report["tokens"]["mean"]
        packs = tokens / settings["max_length"] if settings["packing"] else report["rows"]
        forwards = max(1, int(packs / settings["rows_per_forward"] / STEPS))
        params = project.write_params({"sft.forwards_per_step": forwards}, "sft.yaml")
        project.kill_when(
            lambda: bool(self._files("sft-*/checkpoint-2/trainer_state.json")), "sft", "stages.sft", params=params
        )
        project.run("sft", "stages.sft", params=params)
        (scratch,) = self._files("sft-*")
        lines = [json.loads(line) for line in (scratch / "logging.jsonl").read_text().splitlines()]
        resumed = (scratch / "swift.log").read_text(errors="replace").count("'train_runtime'")
        last = next(line for line in reversed(lines) if "train_runtime" in line)
        steps = int(last["global_step/max_steps"].partition("/")[2])
        log = (project.models / "sft_adapter" / "train_log.jsonl").read_text().splitlines()
        if [json.loads(line)["step"] for line in log] != sorted(
            {json.loads(line)["step"] for line in log}
        ) or not resumed:
            raise CheckFailedError(f"SFT did not go on where it was killed; look at {scratch}.")
        return {"tokens_per_s": tokens / steps / last["train_speed(s/it)"], "steps": steps}

    def merge(self) -> Figures:
        """The SFT adapter merged into its base by `swift export`, compared in a fresh process."""
        self.project.run("sft", "stages.merge")
        return self._merge_figures("base", "sft_adapter", "sft")

    def _merge_figures(self, start: str, adapter: str, merged: str) -> Figures:
        result, folders = (
            self.project.work / f"{merged}.json",
            [self.project.models / name for name in (start, adapter, merged)],
        )
        self.project.run("sft", "scripts.preflight.merge_probe", *folders, result)
        return read_json(result)

    def serve(self) -> Figures:
        """The profile's server: a tool call, tokens per second, log-probabilities against transformers'."""
        values = self.project.profile.values["serving"]
        if values["backend"] != "vllm":
            answers = self._probe("serve", {})
            return {"tokens_per_s": answers["tokens_per_s"], "parity": answers["parity"]}
        eager, graphs = (self._probe(f"serve-{mode}", {"serving.vllm.enforce_eager": mode}) for mode in (True, False))
        chosen = eager if values["vllm"]["enforce_eager"] else graphs
        return {
            "tokens_per_s": chosen["tokens_per_s"],
            "parity": chosen["parity"],
            "eager_tokens_per_s": eager["tokens_per_s"],
            "graphs_tokens_per_s": graphs["tokens_per_s"],
            "eager_to_graphs": _difference(eager["answers"], graphs["answers"]),
        }

    def _probe(self, name: str, overrides: Mapping[str, object]) -> Any:
        project, result = self.project, self.project.work / f"{name}.json"
        params = project.write_params(overrides, f"{name}.yaml")
        project.run("serve", "scripts.preflight.serve_probe", project.models / "base", result, params=params)
        probe = read_json(result)
        if not any(answer["called"] for answer in probe["answers"]):
            raise CheckFailedError(
                f"the server parsed no tool call in {len(probe['answers'])} answers of a model that writes them; check "
                f"serving's tool_call_parser and the model's chat template. The answers are in {result}."
            )
        return probe

    def rl(self) -> Figures:
        """Three steps of 2 x 4 rollouts, killed in the middle and resumed with the optimizer's state."""
        project = self.project

        def one_step_done() -> bool:
            return any(len(path.read_text().splitlines()) > 1 for path in self._files(f"rl-{START}-*/train_log.jsonl"))

        project.kill_when(one_step_done, "rl", "stages.rl", START)
        (log,) = self._files(f"rl-{START}-*/train_log.jsonl")
        before = log.read_text().splitlines()[:2]
        project.run("rl", "stages.rl", START)
        lines = (project.models / "rl_adapter" / START / "train_log.jsonl").read_text().splitlines()
        steps = [json.loads(line) for line in lines]
        if lines[:2] != before or [line["step"] for line in steps] != [0, 1, 2, 3]:
            raise CheckFailedError(
                f"RL did not go on after the step that was logged when it was killed; look at {log}."
            )
        return {"trained_tokens": sum(line.get("trained_tokens", 0) for line in steps)}

    def stale(self) -> Figures:
        """A group of equal rewards and a failed tool, then a sampler that is one step behind: the run must stop."""
        changes = {"rl.learning_rate": STALE_LEARNING_RATE, "rl.steps": {START: 2}}
        params = self.project.write_params(changes, "stale.yaml")
        self.project.run("rl", "scripts.preflight.stale_policy", START, params=params)
        return {}

    def rl_merge(self) -> Figures:
        """The RL adapter merged, proved by the stage, and compared in a fresh process."""
        self.project.run("rl", "stages.unsloth_merge", START)
        return self._merge_figures(START, f"rl_adapter/{START}", f"rl_merged/{START}")

    def evaluate(self) -> Figures:
        """The merged model evaluated on a few questions."""
        self.project.run("serve", "stages.evaluate", "rl")
        return {}

    def longest(self) -> Figures:
        """A row of `sft.max_length` tokens through forward and backward."""
        raise SkippedError("is not written yet")

    def _files(self, pattern: str) -> list[Path]:
        return sorted(self.project.work.glob(pattern))


def packages(values: Mapping[str, Any], family: str) -> list[str]:
    """Return what a stage family imports because of the profile's settings."""
    sft, rl, serving = values["sft"], str(values["rl"]["backend"]), values["serving"]
    names = {
        "sft": ["flash_attn"] if sft["attention"] == "flash_attn" else [],
        "rl": ["unsloth", "trl", "bitsandbytes"] if "unsloth" in rl else [],
        "serve": ["vllm"] if serving["backend"] == "vllm" else [],
    }
    return names.get(family, [])


def _difference(ours: list[Any], theirs: list[Any]) -> float:
    """Return the mean difference of log-probabilities of two servers, over the tokens that both wrote."""
    differences = []
    for own, other in zip(ours, theirs, strict=True):
        for token, same, left, right in zip(
            own["tokens"], other["tokens"], own["logprobs"], other["logprobs"], strict=False
        ):
            if token != same:
                break
            differences.append(abs(left - right))
    return sum(differences) / max(1, len(differences))
