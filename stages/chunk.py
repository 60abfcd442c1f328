"""Documents -> chunks of a bounded number of tokens."""

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Stage, run
from deepsearch_rl.data.chunking import ChunkConfig, chunk_corpora

STAGE = Stage(
    sections=("chunk",),
    packages=("core", "data"),
    inputs=("data/{profile}/corpora",),
)


def main(profile: Profile) -> None:
    """Write data/<profile>/chunks."""
    chunk_corpora(
        profile.data / "corpora", profile.data / "chunks", profile.section("chunk", ChunkConfig)
    )


if __name__ == "__main__":
    run(STAGE, main)
