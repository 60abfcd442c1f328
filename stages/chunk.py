"""Documents -> chunks of a bounded number of tokens."""

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage_entry import run
from deepsearch_rl.data.chunking import ChunkConfig, chunk_corpora


def main(profile: Profile) -> None:
    """Write data/<profile>/chunks."""
    chunk_corpora(
        profile.data / "corpora", profile.data / "chunks", profile.section("chunk", ChunkConfig)
    )


if __name__ == "__main__":
    run(main)
