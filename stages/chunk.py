"""Documents -> chunks of a bounded number of tokens."""

from deepsearch_rl.corpora.chunking import ChunkConfig, chunk_corpora
from deepsearch_rl.profile import Profile
from stages.entry import run


def main(profile: Profile) -> None:
    """Write data/<profile>/chunks."""
    chunk_corpora(
        profile.data / "corpora", profile.data / "chunks", profile.section("chunk", ChunkConfig)
    )


if __name__ == "__main__":
    run(main)
