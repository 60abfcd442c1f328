"""Where a model behind an API answers, and its name there: `python -m stages.endpoint params.yaml api`.

DVC compares what this stage writes, and so sees that $OPENAI_MODEL names another model.
"""

from deepsearch_rl.chat.endpoint import RemoteConfig, write_endpoint
from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Stage, run

STAGE = Stage(sections=("endpoints",), packages=("core", "chat"))


def main(profile: Profile, item: str) -> None:
    """Write ``models/<profile>/<name>/endpoint.json``."""
    endpoints = profile.mapping("endpoints", RemoteConfig)
    write_endpoint(look_up("name in endpoints", item, endpoints), profile.models / item)


if __name__ == "__main__":
    run(STAGE, main)
