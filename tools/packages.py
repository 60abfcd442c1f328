"""`make params`: packages.txt, the locked versions of the packages that decide results.

Each packages.txt is a dep of every stage: an upgrade of one of these packages runs the graph again,
and an upgrade of any other package runs nothing. The lock of `.venv` is uv.lock, the locks of the
gpu profiles' environments are profiles/gpu/requirements/*.txt.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tools import ROOT

DECIDE_RESULTS = (
    "faiss-cpu",
    "faiss-gpu",
    "ms-swift",
    "numpy",
    "openai-agents",
    "openpipe-art",
    "peft",
    "pystemmer",
    "scikit-learn",
    "sentence-transformers",
    "tokenizers",
    "torch",
    "transformers",
    "unsloth",
    "verl",
    "vllm",
)
_PIN = re.compile(r"^([\w.-]+)(?:\[[\w,. -]*\])?==([^\s;]+)", re.MULTILINE)


def package_files() -> dict[Path, str]:
    """Return the text of every packages.txt."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    locked = [(package["name"], package.get("version", "")) for package in lock["package"]]

    gpu_lines: list[str] = []
    for path in sorted((ROOT / "profiles" / "gpu" / "requirements").glob("*.txt")):
        for line in _lines(_PIN.findall(path.read_text(encoding="utf-8"))):
            gpu_lines.append(f"{path.stem}: {line}")

    return {
        ROOT / "packages.txt": "".join(_lines(locked)),
        ROOT / "profiles" / "gpu" / "packages.txt": "".join(gpu_lines),
    }


def _lines(versions: list[tuple[str, str]]) -> Iterator[str]:
    for name, version in sorted(versions):
        if name.lower() in DECIDE_RESULTS:
            yield f"{name}=={version}\n"
