"""What the machine has: interpreters with the packages of a profile's stages, a GPU, and its memory."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from deepsearch_rl.train.sft import ATTENTION_PACKAGES
from tools.preflight.project import Project

# What the stages of a family import whatever the profile's settings are
IMPORTS = {
    "core": ("torch", "mcp"),
    "sft": ("swift", "peft"),
    "rl": ("art", "peft"),
    "serve": ("transformers", "mcp"),
}
PROBE = (
    "import importlib.util as u, json, sys; m = [n for n in sys.argv[1:] if not any(map(u.find_spec, n.split('|')))];"
    "c = 'torch' not in sys.argv or 'torch' in m or __import__('torch').cuda.is_available();"
    "print(json.dumps([m, c]))"
)


def interpreter_problems(project: Project, family: str, needs_gpu: bool) -> list[str]:
    """Return what an interpreter is missing, by its family in params' ``python``, a sentence each with its remedy."""
    interpreter = project.profile.values["python"][family]
    path = project.root / interpreter
    fix = f"run `make {'gpu-environments' if interpreter.startswith('.venvs/') else 'environment'}`"
    if not path.exists():
        return [f"the interpreter {interpreter} (python.{family}) does not exist: {fix}."]

    names = [*IMPORTS.get(family, ()), *packages(project.profile.values, family)]
    # PROBE asks for a GPU where it is given torch
    if needs_gpu:
        names.append("torch")
    result = subprocess.run(
        [path, "-c", PROBE, *names], capture_output=True, text=True, check=False
    )

    if result.returncode:
        return [
            f"the interpreter {interpreter} (python.{family}) fails: {result.stderr.strip()[-500:]} {fix}."
        ]

    missing, sees_gpu = json.loads(result.stdout)
    problems: list[str] = []
    for name in missing:
        problems.append(f"{interpreter} (python.{family}) has no package {name}: {fix}.")

    if needs_gpu and not sees_gpu:
        problems.append(
            f"{interpreter} (python.{family}) sees no CUDA GPU: attach one, with a driver as new as its torch "
            "needs (`nvidia-smi` shows both)."
        )

    return problems


def packages(values: Mapping[str, Any], family: str) -> list[str]:
    """Return what a stage family imports because of the profile's settings."""
    if family == "sft":
        return list(ATTENTION_PACKAGES[values["sft"]["attention"]])
    if family == "rl" and values["rl"]["backend"]["service"] == "unsloth":
        return ["unsloth", "trl", "bitsandbytes"]
    if family == "serve" and values["serving"]["backend"] == "vllm":
        return ["vllm"]
    return []


def peak_gpu_gib(work: Callable[[], None]) -> float | None:
    """Do the work and return the most memory that was in use on the fullest GPU; None where there is no GPU."""
    if shutil.which("nvidia-smi") is None:
        work()
        return None

    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    with tempfile.TemporaryFile("w+") as samples:
        with subprocess.Popen([*query, "--loop-ms=500"], stdout=samples) as process:
            try:
                work()
            finally:
                process.terminate()
        samples.seek(0)
        used_mib = [float(line) for line in samples if line.strip().isdigit()]

    return max(used_mib, default=0.0) / 1024
