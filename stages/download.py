"""Corpora and question sets: generated, from a folder, or from the hub."""

from deepsearch_rl.corpora.download import DownloadConfig, download
from stages.entry import Params, run


def main(params: Params) -> None:
    """Write data/<profile>/corpora and data/<profile>/questions."""
    config = params.section("download", DownloadConfig)
    download(config, params.value("seed"), params.data / "corpora", params.data / "questions")


if __name__ == "__main__":
    run(main)
