"""Which stages have a user's own code among their deps, by dvc.yaml; test_graph.py compares it with their imports."""

import yaml
from deepsearch_rl.core.stage_graph import DVC_YAML
from tools.imports import ROOT


def families_with_own_code(kind: str) -> set[str]:
    """Return the stage families of which the file of ``own.<kind>`` is a dep."""
    graph = yaml.safe_load((ROOT / DVC_YAML).read_text(encoding="utf-8"))["stages"]
    return {
        family
        for family, entry in graph.items()
        if f"${{own.{kind}}}" in entry.get("do", entry)["deps"]
    }
