"""Let the teacher answer the training questions."""

from pathlib import Path

from deepsearch_rl.agent.collect import RolloutSetting
from deepsearch_rl.agent.synthesize import SynthesizeConfig, synthesize
from deepsearch_rl.chat.endpoint import read_remote
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.scratch import Scratch
from deepsearch_rl.core.stage_entry import run
from deepsearch_rl.serve.launch import ServingConfig


def main(profile: Profile, scratch: Scratch) -> None:
    """Write ``data/<profile>/trajectories/teacher.jsonl``.

    The answers are kept where they cost money, so that a run of the same state need not ask for
    them again, and where a server failed some, so that it asks for those alone.
    """
    config = profile.section("synthesize", SynthesizeConfig)
    serving = profile.section("serving", ServingConfig)
    setting = RolloutSetting.of(profile, config.dataset)
    out = profile.data / "trajectories" / "teacher.jsonl"
    artifact = synthesize(config, setting, serving, out, scratch.path)
    if read_remote(Path(config.teacher)) or artifact.server_failures:
        scratch.keep()


if __name__ == "__main__":
    run(main)
