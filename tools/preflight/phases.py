"""The phases of a preflight: the graph's own stages in the cut copy of a profile, and a look at what they wrote."""

import json
import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from deepsearch_rl.chat.endpoint import read_remote
from deepsearch_rl.cli.doctor import inspect
from deepsearch_rl.core.errors import CheckFailedError, DeepsearchError, UnavailableError
from deepsearch_rl.core.files import read_json
from deepsearch_rl.core.profile import find_profile
from deepsearch_rl.core.records import Record
from deepsearch_rl.train.verl.checkpoints import TRACKER
from tools.preflight.machine import interpreter_problems, peak_gpu_gib
from tools.preflight.project import DATASET, START, Project

Figures: TypeAlias = Mapping[str, float]

# Phases with those they need, in the order in which they run
PHASES: Mapping[str, tuple[str, ...]] = {
    "machine": (),
    "prepare": ("machine",),
    "index": ("machine",),
    "synthesize": ("prepare",),
    "sft": ("prepare",),
    "merge": ("sft",),
    "rl": ("prepare",),
    "unsloth_merge": ("rl",),
    "evaluate": ("unsloth_merge",),
    "ifeval": ("unsloth_merge",),
    "memory": ("sft",),
}

# The phases of every profile, and the stage that another name than its phase's has
EVERYWHERE = ("machine", "prepare", "index")
FOR_STAGE = {"memory": "sft"}

# Of SFT, about: rows are packed
STEPS = 6

# Names of profiles inside the copy: one with its own encoder, one at full size
OWN_INDEX = "own_index"
FULL = "full"
RECALL = "evidence_recall@10"

# Of gold passages; chance gives about 0.01 on the generated world
LEAST_RECALL = 0.05


# Of an engine of RL, in the scratch folder, as globs: its log, and what shows that a checkpoint with
# the optimizer's state is whole
RL_FILES = {
    "art": ("train_log.jsonl", "**/optimizer.pt"),
    "verl": ("verl/logs/*.jsonl", f"verl/checkpoints/{TRACKER}"),
}


class SkippedError(Exception):
    """A phase has nothing to do for this profile; the text says why."""


class Outcome(Record):
    """How a phase ended; ``message`` says what to do, or why it was skipped."""

    phase: str
    status: str
    seconds: float = 0.0
    message: str = ""
    figures: Mapping[str, float] = {}


def phases_of(stages: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the phases of a profile with these stages, each with those it needs, in the order in which they run.

    What a phase that the profile does not have would need is needed in its place.
    """
    phases: dict[str, tuple[str, ...]] = {}
    for name, needs in PHASES.items():
        if FOR_STAGE.get(name, name) not in {*stages, *EVERYWHERE}:
            continue
        present: list[str] = []
        for need in needs:
            while need not in phases:
                (need,) = PHASES[need]
            present.append(need)
        phases[name] = tuple(present)

    return phases


def chosen(only: str | None, phases: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the phase ``only`` and all that it needs, in order; None: all phases."""
    names = set[str]()
    waiting = [only] if only else list(phases)
    while waiting:
        name = waiting.pop()
        names.add(name)
        waiting += phases[name]

    return [name for name in phases if name in names]


@dataclass(frozen=True, slots=True)
class Preflight:
    """The phases of one copy; each method returns what it measured, by name, or raises what to do."""

    project: Project

    def run(self, name: str, outcomes: Mapping[str, Outcome]) -> Outcome:
        """Run a phase, unless one that it needs has not passed, and return how it ended."""
        needs = phases_of(self.project.profile.values)[name]
        blocked = [need for need in needs if outcomes[need].status != "passed"]
        if blocked:
            return Outcome(phase=name, status="skipped", message=f"needs {', '.join(blocked)}")

        started = time.monotonic()
        status, message = "passed", ""
        figures: Figures = {}
        try:
            figures = getattr(self, name)()
        except SkippedError as reason:
            status, message = "skipped", str(reason)
        except (DeepsearchError, OSError) as error:
            status, message = "failed", str(error)

        seconds = round(time.monotonic() - started, 1)
        return Outcome(phase=name, status=status, seconds=seconds, message=message, figures=figures)

    def machine(self) -> Figures:
        """What `deepsearch doctor` asks for, and interpreters with the packages that the settings need."""
        problems: list[str] = []
        for requirement in inspect(self.project.root).missing[self.project.name]:
            # Interpreters are looked at more closely below
            if not requirement.what.startswith("interpreter "):
                problems.append(f"missing: {requirement.what}; {requirement.fix}.")
        for family in self.project.profile.values["python"]:
            needs_gpu = self._has_gpu and family in ("sft", "rl", "serve")
            problems += interpreter_problems(self.project, family, needs_gpu)

        if problems:
            raise UnavailableError("\n".join(problems))
        return {}

    @property
    def _has_gpu(self) -> bool:
        return self.project.profile.values["rl"]["backend"]["device"] == "cuda"

    def prepare(self) -> Figures:
        """download, chunk, index, synthesize and filter of a generated world, and a small model that searches."""
        project = self.project
        for stage in ("download", "chunk", "index", "synthesize"):
            project.run("core", f"stages.{stage}")
        base = project.root / "models" / project.name / "base"
        project.run("sft", "tools.preflight.small_model", base)
        if "filter" not in project.profile.values:
            return {}
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

    def synthesize(self) -> Figures:
        """The profile's own teacher, by its address and key: one question, answered through the agent."""
        own = find_profile(self.project.root, self.project.name).values["synthesize"]
        folder = self.project.root / own["teacher"]
        if read_remote(folder) is None:
            raise SkippedError(f"the profile's teacher is {own['teacher']}, which needs no key")

        project = self._named("teacher")
        project.data.mkdir(parents=True, exist_ok=True)
        for part in ("questions", "index", "chunks"):
            (project.data / part).symlink_to(self.project.data / part)
        one_question = {"dataset": DATASET, "split": "train", "questions": 1, "samples": 1}
        section = {**own, **one_question, "teacher": folder.as_posix()}
        params = project.write_params({"synthesize": section}, "teacher.yaml")
        project.run("serve", "stages.synthesize", params=params)

        (line,) = (project.data / "trajectories" / "teacher.jsonl").read_text().splitlines()
        trajectory = json.loads(line)
        if trajectory["stop_reason"] in ("model_error", "tool_error", "deadline"):
            raise CheckFailedError(
                f"the teacher did not answer: {trajectory['stop_reason']}: {trajectory['error']}"
            )

        return {"searches": len(trajectory["retrievals"])}

    def _named(self, name: str) -> Project:
        """Return the copy as a profile of another name."""
        return replace(self.project, profile=self.project.profile.with_overrides({"profile": name}))

    def sft(self) -> Figures:
        """Some six steps of `swift sft`, killed after the second checkpoint and resumed."""
        project = self.project
        report = project.read("reports/{}/filter.json")
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
        project.run("sft", "stages.sft", params=params)
        steps = project.read("models/{}/sft_checkpoints/manifest.json")["steps"]
        if not done < steps:
            raise CheckFailedError(f"`swift sft`, killed after step {done}, ended at step {steps}.")

        return {"steps": steps}

    def merge(self) -> Figures:
        """`choose_checkpoint`, and `merge` with its own proof."""
        self.project.run("serve", "stages.choose_checkpoint")
        self.project.run("sft", "stages.merge")
        return {}

    def rl(self) -> Figures:
        """Three steps of 4 x 4 rollouts, killed after the first and resumed with the optimizer's state."""
        project = self.project
        # Of two groups, often both have equal rewards, and then nothing is trained
        params = project.write_params({"rl.groups_per_step": 4}, "rl.yaml")
        log, saved = RL_FILES[project.profile.values["rl"]["backend"]["engine"]]

        def lines() -> list[dict[str, Any]]:
            logs = project.files(f"scratch/rl@{START}/*/{log}")
            return [line for path in logs for line in _lines(path)]

        def is_saved() -> bool:
            return len(lines()) > 1 and bool(project.files(f"scratch/rl@{START}/*/{saved}"))

        project.kill_when(is_saved, "rl", "stages.rl", START, params=params)
        # A resumed run may not make step 1 again
        reward = _reward(lines()[1])
        project.run("rl", "stages.rl", START, params=params)
        published = project.models / "rl_adapter" / START / "train_log.jsonl"
        steps = _lines(published)
        if [step["step"] for step in steps] != [0, 1, 2, 3] or _reward(steps[1]) != reward:
            raise CheckFailedError(
                f"RL did not go on after the step that it was killed behind; its log is {published}."
            )

        # veRL does not log it
        if not any(step.get("trainable_groups", 1) for step in steps):
            raise CheckFailedError(
                f"all rewards of all steps were equal, so nothing was trained; its log is {published}."
            )

        mismatches = [step["mismatch_mean"] for step in steps if "mismatch_mean" in step]
        return {
            "mismatch": max(mismatches, default=0.0),
            "left_out": sum(step.get("left_out", 0) for step in steps),
        }

    def unsloth_merge(self) -> Figures:
        """The RL adapter merged into its start, with the stage's own proof."""
        self.project.run("rl", "stages.unsloth_merge", START)
        return {}

    def evaluate(self) -> Figures:
        """The merged model behind the profile's server, evaluated on a few questions."""
        self.project.run("serve", "stages.evaluate", "rl")
        return {}

    def ifeval(self) -> Figures:
        """The merged model scored on generated prompts of IFEval, by the environment that scores the real ones."""
        self.project.run("serve", "stages.ifeval", "rl")
        return {}

    def memory(self) -> Figures:
        """SFT of a row of almost `sft.max_length` tokens; on a GPU by random weights of full size, with peak memory."""
        project = self._named(FULL)
        rows = (self.project.data / "sft" / "train.jsonl").read_text(encoding="utf-8").splitlines()
        report = self.project.read("reports/{}/filter.json")
        wanted = self.project.profile.values["sft"]["max_length"]
        row = long_row(rows, report["rows"] * report["tokens"]["mean"], wanted)
        (project.data / "sft").mkdir(parents=True, exist_ok=True)
        (project.data / "sft" / "train.jsonl").write_text(f"{row}\n", encoding="utf-8")

        changes = {"sft.forwards_per_step": 1, "sft.save_steps": 1, "sft.eval_share": 0.0}
        params = project.write_params(changes, f"{FULL}.yaml")
        project.models.mkdir(parents=True, exist_ok=True)
        if self._has_gpu:
            base = project.root / "models" / self.project.name / "base"
            project.run("sft", "tools.preflight.small_model", base, "--full-size", params=params)
        else:
            (project.models / "base").symlink_to(self.project.models / "base")
        peak_gib = peak_gpu_gib(lambda: project.run("sft", "stages.sft", params=params))
        return {} if peak_gib is None else {"peak_gib": peak_gib}


def _reward(line: Mapping[str, Any]) -> float:
    """Return the mean reward of a step in our log, or in veRL's own."""
    return line["data"]["critic/score/mean"] if "data" in line else line["reward"]


def _lines(log: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a log that may be written."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def long_row(lines: list[str], tokens: float, max_tokens: int) -> str:
    """Return the first row with a search, its passages repeated up to about nine tenths of ``max_tokens``.

    ``tokens`` is how many all ``lines`` have.
    """
    row = next(json.loads(line) for line in lines if '"tool_response"' in line)
    # In characters, by the share of characters and tokens in all lines; a tenth for its error
    size = 0.9 * max_tokens / tokens * sum(map(len, lines)) - len(json.dumps(row))
    answer = next(message for message in row["messages"] if message["role"] == "tool_response")
    answer["content"] *= max(1, int(size / len(answer["content"])))
    return json.dumps(row, ensure_ascii=False)
