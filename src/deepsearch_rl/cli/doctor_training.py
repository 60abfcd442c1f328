"""What training on a GPU needs of a machine: ART's vLLM, veRL with its cluster, and a C compiler."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepsearch_rl.core.profile import Profile

CLUSTER_TIMEOUT_S = 60.0
COMPILE_TIMEOUT_S = 60.0
# What Triton compiles, as it is loaded, includes this
INCLUDE = "#include <Python.h>\n"
INCLUDE_FOLDER = "import sysconfig; print(sysconfig.get_paths()['include'])"


@dataclass(frozen=True, slots=True)
class MissingRequirement:
    """Something that is missing, and how to get it."""

    what: str
    fix: str


def missing_to_compile(interpreters: Sequence[Path]) -> Iterator[MissingRequirement]:
    """Yield what is missing to compile a line with interpreters' headers, as Triton does when a GPU is first used.

    Triton (3.7, runtime/build.py) takes ``CC``, gcc or clang.
    """
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        what = "a C compiler, with which Triton compiles its kernels' launchers"
        yield MissingRequirement(what, "apt install gcc (or name one by CC)")
        return

    for interpreter in interpreters:
        try:
            folder = _ended([str(interpreter), "-c", INCLUDE_FOLDER], COMPILE_TIMEOUT_S).stdout
            command = [compiler, "-fsyntax-only", "-I", folder.strip(), "-x", "c", "-"]
            result = _ended(command, COMPILE_TIMEOUT_S, input=INCLUDE)
        except (OSError, subprocess.TimeoutExpired) as error:
            what = f"a C compiler that answers ({compiler}: {error})"
            yield MissingRequirement(what, "apt install gcc")
            return

        if result.returncode:
            said = result.stderr.strip().partition("\n")[0]
            yield MissingRequirement(
                f"Python.h for {interpreter}, without which Triton compiles nothing ({compiler}: {said})",
                "make gpu-environments (uv's own Pythons have it), or apt install python3-dev",
            )


def _ended(
    command: Sequence[str], timeout_s: float, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end and return its output; raise OSError and TimeoutExpired."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, **options
    )


def missing_for_rl(profile: Profile, root: Path, gpus: int) -> Iterator[MissingRequirement]:
    """Yield what the engine of section ``rl`` needs besides the interpreters, on a machine with so many GPUs."""
    backend = profile.values.get("rl", {}).get("backend", {})
    if backend.get("service") == "unsloth":
        # Where ART installs it
        cache = os.environ.get("ART_VLLM_RUNTIME_CACHE_DIR") or "~/.cache/art/vllm_runtime"
        if not any(Path(cache).expanduser().glob("*/install.json")):
            yield MissingRequirement(f"ART's vLLM, below {cache}", "make art-vllm")

    verl = backend.get("verl")
    if not verl:
        return
    if not (root / verl["python"]).exists():
        yield MissingRequirement(f"veRL's interpreter {verl['python']}", "make verl-environment")
    elif verl.get("address") is not None:
        yield from _missing_in_cluster(root, verl)

    if verl.get("address") is None and gpus < verl["gpus_per_node"]:
        what = f"{verl['gpus_per_node']} GPUs (this machine has: {gpus})"
        fix = "use a larger machine, or lower rl.backend.verl.gpus_per_node in profile.yaml"
        yield MissingRequirement(what, fix)


def _missing_in_cluster(root: Path, verl: Mapping[str, Any]) -> Iterator[MissingRequirement]:
    """Yield what the nodes of a Ray cluster have otherwise than its head, as veRL's environment finds it."""
    command = [str(root / verl["python"]), "-m", "deepsearch_rl.train.verl.cluster"]
    command += [verl["address"], str(verl.get("nodes", 1)), str(verl["gpus_per_node"])]
    sources = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": sources, "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        result = _ended(command, CLUSTER_TIMEOUT_S, env=environment)
    except subprocess.TimeoutExpired:
        what = f"no answer of the Ray cluster {verl['address']} in {CLUSTER_TIMEOUT_S:g} s"
        yield MissingRequirement(what, "`ray status` on its head says how it is")
        return

    problems = result.stdout.splitlines()
    if result.returncode and not problems:
        problems = result.stderr.strip().splitlines()[-1:]
    for problem in problems:
        yield MissingRequirement(f"Ray cluster {verl['address']}: {problem}", "docs/training.md")
