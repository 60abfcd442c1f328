"""How all of a profile is run: some profiles have sections of stages that cannot run, and name a target.

All profiles have the same graph. One that trains nothing has no base model, one without SFT has no
teacher, and a run without a target stops there.
"""

from deepsearch_rl.agent.config import SCRIPTED
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.profile import Profile, dvc_file

# The first stage of training
BASE_MODEL = "prepare_model"
# The last stage of the graph: it needs all that a profile's table needs, and nothing else
LAST = "track"
# Profiles that the Makefile has a target for, which also asks a new OPENAI_MODEL again
TARGETS = ("own", "multihoprag")
# Of the model that `make api-stages` evaluates
API_MODEL = "api"


def blocked_stage(profile: Profile) -> str | None:
    """Return the first stage of the graph that cannot run with the profile's params; None where all can."""
    # A project with another graph has other sections
    if not {BASE_MODEL, "synthesize"} <= profile.values.keys():
        return None
    base = profile.value(BASE_MODEL)
    if not base.get(base["source"]):
        return BASE_MODEL

    teacher = profile.value("synthesize")
    if teacher["teacher"].rstrip("/") == SCRIPTED and not teacher["scripted"]:
        return "synthesize"
    return None


def run_command(profile: Profile) -> str:
    """Return the command that runs all of a profile that can run."""
    graph = dvc_file(profile.name)
    blocked = blocked_stage(profile)
    if blocked is None:
        return f"dvc repro {graph}"

    if blocked == BASE_MODEL and API_MODEL in profile.value("models"):
        if profile.name in TARGETS:
            return f"make {profile.name}"
        return f"make api-stages PROFILE={profile.name}"
    return f"dvc repro {graph}:{LAST}"


def require_base_model(profile: Profile) -> None:
    """Raise ConfigError, with the command that runs the profile, where it trains no model."""
    if blocked_stage(profile) == BASE_MODEL:
        raise ConfigError(
            f"the profile {profile.name} trains no model, so it has no training path. "
            f"`{run_command(profile)}` runs it, and `deepsearch doctor` says what it needs."
        )


def require_target(profile: Profile, targets: tuple[str, ...]) -> None:
    """Raise ConfigError, with the command to run, where a run of the whole graph would stop on its way."""
    blocked = blocked_stage(profile)
    if targets or blocked is None:
        return

    reason = "trains no model" if blocked == BASE_MODEL else "has no teacher"
    raise ConfigError(
        f"the profile {profile.name} {reason}: a run of its whole graph would stop at the stage "
        f"{blocked}. Use `{run_command(profile)}`; a flow run takes `{LAST}` as its target."
    )
