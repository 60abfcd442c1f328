"""Documents -> chunks of a bounded number of tokens."""

from deepsearch_rl.corpora.chunking import ChunkConfig, chunk_corpora
from stages.entry import Params, run


def main(params: Params) -> None:
    """Write data/<profile>/chunks."""
    chunk_corpora(params.data / "corpora", params.data / "chunks", params.section("chunk", ChunkConfig))


if __name__ == "__main__":
    run(main)
