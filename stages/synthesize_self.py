"""Let a model answer the training questions itself: the stage `synthesize` where its teacher is `self`."""

from pathlib import Path

from deepsearch_rl.conversation.agent_config import AgentConfig
from deepsearch_rl.conversation.trained_with import require_trained_with, served_with
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.scratch import Scratch
from deepsearch_rl.serving.adapters import digest_weights, tokenizer_folder
from deepsearch_rl.serving.launch import ServingConfig, serve_model
from deepsearch_rl.trajectories.synthesis.synthesize import SynthesizeConfig
from stages.running.entry import run
from stages.synthesize import answer


def main(profile: Profile, scratch: Scratch) -> None:
    """Write ``data/<profile>/trajectories/teacher.jsonl``."""
    config = profile.section("synthesize", SynthesizeConfig)
    serving = profile.section("serving", ServingConfig)
    teacher = config.self

    if teacher is None or config.teacher != "self":
        raise ConfigError(
            f"synthesize.teacher is {config.teacher!r} and synthesize.self {'null' if teacher is None else 'a model'}, "
            "but in this graph a model answers: set both in profile.yaml and run `make params deps`."
        )

    folder = Path(teacher.model)
    agent = profile.section("agent", AgentConfig)
    served = served_with(tokenizer_folder(folder), agent.prompt_digests())
    require_trained_with(folder, served, f"the agent (agent.prompt: {agent.prompt})")
    with serve_model(folder, serving) as endpoint:
        weights = digest_weights(folder)
        answer(profile, scratch, (endpoint, [weights, endpoint.model, serving.digest_of_answers()]))


if __name__ == "__main__":
    run(main, "synthesize")
