"""A cut copy of a profile in a folder of its own, in which the graph's stages run as DVC runs them.

The folder links to the project's sources, so ``tools/python`` finds interpreters and sources as
in any copy of the project; its data, models and logs are its own. Data sections are the smoke
profile's generated world; model sections are the profile's own, with sizes cut
(:func:`cut_values`).
"""

import copy
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from deepsearch_rl.core.errors import CommandError
from deepsearch_rl.core.files import read_json
from deepsearch_rl.core.processes import ProcessGuard, last_lines
from deepsearch_rl.core.profile import PARAMS, Profile, find_profile

DATA_SECTIONS = ("datasets", "download", "chunk", "index", "retrieval", "synthesize")
DATASET = "multihoprag"
START = "base"
LINKED = ("src", "stages", "tools", ".venv", ".venvs")
# Of a stage: everything is small here
TIMEOUT_S = 1800.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Project:
    """A cut copy in ``folder`` with the values of ``profile``; ``root`` is the project's own folder."""

    root: Path
    profile: Profile
    folder: Path

    @property
    def name(self) -> str:
        """The profile's name."""
        return self.profile.name

    @property
    def models(self) -> Path:
        """Where the copy's models are."""
        return self.folder / "models" / self.name

    @property
    def work(self) -> Path:
        """Where the copy's stages keep what they resume from."""
        return self.folder / "work" / self.name

    @property
    def data(self) -> Path:
        """Where the copy's data are."""
        return self.folder / "data" / self.name

    def files(self, pattern: str) -> list[Path]:
        """Return the files and folders below :attr:`work` that fit a pattern."""
        return sorted(self.work.glob(pattern))

    def read(self, path: str) -> Any:
        """Return a JSON file of the copy; ``{}`` in its path is the profile's name."""
        return read_json(self.folder / path.format(self.name))

    def write_params(self, overrides: Mapping[str, object], file: str = PARAMS) -> str:
        """Write the copy's params with other values for some fields, under a file name, and return that name."""
        values = {**self.profile.with_overrides(overrides).values, "params": file}
        (self.folder / file).write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        return file

    def run(self, family: str, module: str, *arguments: object, params: str = PARAMS) -> None:
        """Run a module as DVC runs a stage; raise CommandError with its own error, or after :data:`TIMEOUT_S`."""
        with self._started(family, module, arguments, params) as (process, log):
            try:
                status = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise CommandError(
                    f"`{module}` was not done after {TIMEOUT_S:g} s, and was ended (its output: {log})"
                ) from None

        if status:
            raise CommandError(
                f"`{' '.join(map(str, (module, *arguments)))}` failed: {_error(log)} (its output: {log})"
            )

    def kill_when(
        self,
        condition: Callable[[], bool],
        family: str,
        module: str,
        *arguments: object,
        params: str = PARAMS,
    ) -> None:
        """Start a module and kill it (SIGKILL) as soon as ``condition`` holds; raise CommandError if it ends first."""
        with self._started(family, module, arguments, params) as (process, log):
            deadline = time.monotonic() + TIMEOUT_S
            while not condition():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise CommandError(
                        f"`{module}` did not get to where it would be killed: {_error(log)} (its output: {log})"
                    )

                time.sleep(_POLL_S)

            # The command of the guard's supervisor, which then ends all that it had started
            for command in psutil.Process(process.pid).children():
                command.kill()
            process.wait()

    @contextmanager
    def _started(
        self, family: str, module: str, arguments: tuple[object, ...], params: str
    ) -> Iterator[tuple[subprocess.Popen[str], Path]]:
        log = self.folder / "logs" / f"{module.rpartition('.')[2]}-{Path(params).stem}.log"
        log.parent.mkdir(exist_ok=True)
        python = self.profile.values["python"][family]
        command = ["tools/python", python, "-m", module, params, *map(str, arguments)]
        environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{self.folder}/mlflow.db"}
        with ProcessGuard() as guard, log.open("a", encoding="utf-8") as output:
            yield (
                guard.start(command, folder=self.folder, environment=environment, output=output),
                log,
            )

    def remove(self) -> None:
        """Delete the copy."""
        shutil.rmtree(self.folder, ignore_errors=True)


def cut_copy(root: Path, name: str, folder: Path, gpus: int | None = None) -> Project:
    """Make an empty copy of a profile, in place of an older one; raises as :func:`find_profile`.

    ``gpus`` are those that veRL trains on; None: as many as the profile has.
    """
    profile = find_profile(root, name)
    smoke = find_profile(root, "smoke")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for package in LINKED:
        (folder / package).symlink_to(root / package)
    project = Project(
        root, Profile(folder / PARAMS, cut_values(profile.values, smoke.values, gpus)), folder
    )
    project.write_params({})
    return project


def cut_values(
    profile: Mapping[str, Any], smoke: Mapping[str, Any], gpus: int | None = None
) -> dict[str, Any]:
    """Return a profile's values with the data of the smoke profile and the sizes of a preflight."""
    values = copy.deepcopy({**profile, **{section: smoke[section] for section in DATA_SECTIONS}})
    values["model_settings"] = {}
    # Nothing of a preflight goes to MLflow
    values.pop("track", None)
    # The hours of the whole profile, which its first stage plans, are not those of a preflight
    values.pop("requires", None)
    values["wdir"] = "."
    values["datasets"] = {DATASET: smoke["datasets"][DATASET]}
    values["download"]["world"]["questions"] = {"train": 40, "dev": 8, "val": 8}
    values["index"]["fusion"]["learning"] = None
    values["agent"].update(max_tokens=64, answer_tokens=16)
    _cut_fine_tuning(values)
    # The real ones are a download
    if "ifeval" in values:
        values["ifeval"].update(
            prompts="generated", path="src/deepsearch_rl/evaluate/ifeval_prompts.yaml"
        )
    values["rl"].update(
        starts=[START], dataset=DATASET, steps={START: 3}, groups_per_step=2, group_size=4
    )
    # Rewards in which rollouts of a model that knows nothing differ.
    values["rl"].update(rewards={"f1": 2.0, "answer_format": 0.5, "evidence_recall": 0.5})
    values["rl"]["dev"].update(every=10, questions=4)
    values["rl"]["gate"].update(questions=4, samples=2, min_f1=0.0)
    # The agent's shorter turns keep their context, which is what a rollout may have.
    values["rl"]["max_sequence_tokens"] = max(
        values["rl"]["max_sequence_tokens"], values["agent"]["context_tokens"]
    )
    if verl := values["rl"]["backend"].get("verl"):
        verl.update(save_every=1, gpus_per_node=gpus or verl["gpus_per_node"])
    sets = {DATASET: {"questions": 4, "samples": 1, "greedy": 2, "controls": 2}}
    values["evaluate"].update(sets=sets, variants={}, draws=100)
    trained = "rl_merged" if values["rl"]["lora"] else "rl_adapter"
    values["models"] = {"rl": f"models/{profile['profile']}/{trained}/{START}"}
    # evaluation's own limits are as large as the profile's model
    if values["evaluate"].get("agent"):
        values["evaluate"]["agent"] = {}
    return values


def _cut_fine_tuning(values: dict[str, Any]) -> None:
    """Cut the sections from `filter` to `choose_checkpoint`, which a profile without a teacher does not have."""
    if "sft" not in values:
        return
    values["filter"].update(dataset=DATASET, split="train", predicates=["answered", "success"])
    values["sft"].update(epochs=1, save_steps=2, log_steps=1)
    values["choose_checkpoint"]["by"] = "last"


def _error(log: Path) -> str:
    """Return the paragraph after ``error:`` in a stage's output, or its last lines."""
    text = "\n" + log.read_text(encoding="utf-8", errors="replace").rstrip()
    _, mark, error = text.rpartition("\nerror: ")
    return error if mark else last_lines(log)
