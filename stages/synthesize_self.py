"""Let a model answer the training questions itself: the stage `synthesize` where its teacher is `self`."""

from pathlib import Path

from deepsearch_rl.errors import ConfigError
from deepsearch_rl.profile import Profile
from deepsearch_rl.scratch import Scratch
from deepsearch_rl.serving.adapters import digest_weights
from deepsearch_rl.serving.launch import ServingConfig, serve_model
from deepsearch_rl.trajectories.synthesize import SynthesizeConfig
from stages.entry import run
from stages.synthesize import answer


def main(profile: Profile, scratch: Scratch) -> None:
    """Write ``data/<profile>/trajectories/teacher.jsonl``."""
    config, serving = profile.section("synthesize", SynthesizeConfig), profile.section("serving", ServingConfig)
    teacher = config.self
    if teacher is None or config.teacher != "self":
        raise ConfigError(
            f"synthesize.teacher is {config.teacher!r} and synthesize.self {'null' if teacher is None else 'a model'}, "
            "but in this graph a model answers: set both in profile.yaml and run `make params deps`."
        )
    with serve_model(Path(teacher.model), serving) as endpoint:
        weights = digest_weights(Path(teacher.model))
        answer(profile, scratch, (endpoint, [weights, endpoint.model, serving.digest_of_answers()]))


if __name__ == "__main__":
    run(main, "synthesize")
