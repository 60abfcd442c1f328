"""What stands beside the teacher's trajectories: the digests of the prompt and the tool that they were made with."""

from collections.abc import Iterable
from pathlib import Path

from deepsearch_rl.chat.agent_config import AgentConfig
from deepsearch_rl.chat.prompt_digests import PromptDigests, parts_text, text_digest
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_record, write_json
from deepsearch_rl.core.records import Record, Trajectory

MANIFEST = "manifest.json"


class TrajectoriesManifest(Record):
    """``manifest.json``."""

    made_with: PromptDigests


def write_manifest(trajectories: Path, agent: AgentConfig) -> None:
    """Write the manifest of a file of trajectories that this agent has just made."""
    manifest = TrajectoriesManifest(made_with=agent.prompt_digests())
    write_json(trajectories.with_name(MANIFEST), manifest.model_dump())


def require_made_with(trajectories: Path, agent: AgentConfig) -> None:
    """Raise ConfigError where trajectories were made with another prompt or tool than this agent's.

    Raise ArtifactError where there is no manifest.
    """
    manifest = read_record(trajectories.with_name(MANIFEST), TrajectoriesManifest)
    other = manifest.made_with.other_parts(agent.prompt_digests())
    if other:
        raise ConfigError(_refusal(f"{trajectories} was made", parts_text(other), agent))


def require_prompts(trajectories: Iterable[Trajectory], agent: AgentConfig) -> None:
    """Raise ConfigError where a trajectory does not begin with the agent's own system prompt."""
    expected = agent.prompt_digests().prompt
    for trajectory in trajectories:
        opening = trajectory.messages[0] if trajectory.messages else None
        system = opening.content if opening and opening.role == "system" else ""
        if text_digest(system) != expected:
            raise ConfigError(
                _refusal(f"trajectory {trajectory.id} was made", "system prompt", agent)
            )


def _refusal(what: str, parts: str, agent: AgentConfig) -> str:
    return (
        f"{what} with another {parts} than the agent's (agent.prompt {agent.prompt!r}), so that "
        "rows of it would train what is never served; run the stage synthesize again, or set the "
        "old text back."
    )
