"""The tiny profile with the agent and the rewards of a script, for adapters that read a params file."""

from pathlib import Path

import yaml

from tests.environment.check_environments import ROOT
from tests.environment.scripted import REWARDS, THINK_LENGTH, Script


def write_params(path: Path, script: Script) -> Path:
    """Write the params file and return its path."""
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    values["agent"] = script.config.model_dump(mode="json")
    values["rl"] |= {"rewards": REWARDS, "think_length": THINK_LENGTH.model_dump()}
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path
