"""Let the teacher answer the training questions."""

from deepsearch_rl.agent.collect import RolloutSetting
from deepsearch_rl.agent.synthesize import SynthesizeConfig, synthesize
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Scratch, Stage, run
from deepsearch_rl.serve.launch import ServingConfig

STAGE = Stage(
    sections=("seed", "synthesize", "agent", "retrieval", "serving", "datasets"),
    packages=("core", "data", "chat", "search", "server", "serve", "agent", "toy"),
    inputs=(
        "{synthesize.teacher}",
        "{agent.prompt}",
        "data/{profile}/index",
        "data/{profile}/chunks",
        "data/{profile}/questions",
    ),
)


def main(profile: Profile, scratch: Scratch) -> None:
    """Write ``data/<profile>/trajectories/teacher.jsonl``."""
    config = profile.section("synthesize", SynthesizeConfig)
    serving = profile.section("serving", ServingConfig)
    setting = RolloutSetting.of(profile, config.dataset)
    out = profile.data / "trajectories" / "teacher.jsonl"
    synthesize(config, setting, serving, out, scratch.path)


if __name__ == "__main__":
    run(STAGE, main)
