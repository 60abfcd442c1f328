"""Settings of commands that have no profile: `deepsearch retrieve build`, `deepsearch evaluate --model`.

presets.yaml holds those of `retrieve`, and what the others change of them.
"""

from functools import cache
from pathlib import Path

from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.profile import Profile, read_values


@cache
def load_preset(name: str) -> Profile:
    """Return the settings ``retrieve``, ``encoder`` (an encoder with weights) or ``evaluate`` (an API's model)."""
    path = Path(__file__).with_suffix(".yaml")
    values = read_values(path)
    changes = {"retrieve": {}, **values.pop("changes")}
    return Profile(path, values | {"profile": name}).with_overrides(
        look_up("preset", name, changes)
    )
