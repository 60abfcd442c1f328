"""Corpora and question sets: generated, from a folder, or from the hub."""

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Stage, run
from deepsearch_rl.data.download import DownloadConfig, download

STAGE = Stage(
    sections=("seed", "download"),
    packages=("core", "data", "toy"),
    inputs=("{download.path}",),
)


def main(profile: Profile) -> None:
    """Write data/<profile>/corpora and data/<profile>/questions."""
    config = profile.section("download", DownloadConfig)
    download(config, profile.value("seed"), profile.data / "corpora", profile.data / "questions")


if __name__ == "__main__":
    run(STAGE, main)
