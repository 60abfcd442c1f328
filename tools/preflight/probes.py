"""The two probes of models, run in their own environments: a merged model, and a served one, against transformers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from deepsearch_rl.core.errors import CheckFailedError
from deepsearch_rl.core.files import read_json
from tools.preflight.figures import Figures
from tools.preflight.project import Project

# The largest mean differences of log-probabilities that rounding explains
ROUNDING = 1e-3
ROUNDING_16_BIT = 0.1
# A share: a model that knows little writes some turns that no template renders
MOST_OTHER_TURNS = 0.2


def probe_merge(project: Project, start: str, adapter: str, merged: str) -> Figures:
    """Compare a merged model with its start and adapter; raise CheckFailedError where they differ."""
    result = project.work / f"{merged}.json"
    folders = [project.models / name for name in (start, adapter, merged)]
    project.run("sft", "tools.preflight.merge_probe", *folders, result)
    figures = read_json(result)
    limit = project.profile.values["unsloth_merge"]["tolerance"]

    if not figures["parity"] <= limit:
        raise CheckFailedError(
            f"log-probabilities of {folders[2]} differ by {figures['parity']:.2g} nats on average from those of "
            f"its start with the adapter, more than {limit:g}: the merge lost something."
        )

    return figures


def probe_server(
    project: Project,
    name: str,
    served: str = "base",
    merged: str = "base",
    overrides: Mapping[str, object] = MappingProxyType({}),
    must_call: bool = True,
) -> Any:
    """Serve one of the copy's models and return the figures of its answers, compared with the model ``merged``.

    ``must_call``: the model has learnt to call the tool, and is no good where no call was parsed or
    turns come back with other tokens; one that was moved at random writes turns that no template
    renders. Raise CheckFailedError there, and where log-probabilities differ.
    """
    result = project.work / f"{name}.json"
    params = project.write_params(overrides, f"{name}.yaml")
    folders = [project.models / served, project.models / merged]
    project.run("serve", "tools.preflight.serve_probe", *folders, result, params=params)
    probe = read_json(result)

    if must_call and not any(answer["called"] for answer in probe["answers"]):
        raise CheckFailedError(
            f"the server parsed no tool call in {len(probe['answers'])} answers of a model that writes them; check "
            f"serving's tool_call_parser and the model's chat template. The answers are in {result}."
        )

    if must_call and probe["other_turns"] > MOST_OTHER_TURNS * probe["second_turns"]:
        raise CheckFailedError(
            f"{probe['other_turns']} of {probe['second_turns']} turns with a call come back to the model with "
            "other tokens than it wrote: the agent, the server's parser or the chat template changes a turn on its "
            f"way, and RL would leave out its rollout. The first one: {probe['first_other_turn']!r}."
        )

    limit = ROUNDING if probe["dtype"] == "float32" else ROUNDING_16_BIT

    if not probe["parity"] <= limit:
        raise CheckFailedError(
            f"the server's log-probabilities differ from transformers' by {probe['parity']:.2g} nats on average, "
            f"more than {limit:g} in {probe['dtype']}: the two render prompts or compute in different ways."
        )

    return probe
