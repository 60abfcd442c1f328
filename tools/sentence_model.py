"""Install NLTK's sentence model into this environment: IFEval's official prompts need it (`make gpu-environments`).

A few megabytes from NLTK's own server, into ``nltk_data/`` of the environment, where NLTK looks for
it by itself. Does nothing where it is installed.
"""

import sys
from pathlib import Path

import nltk

MODEL = "punkt_tab"


def is_installed() -> bool:
    """Return whether NLTK finds the model."""
    try:
        nltk.data.find(f"tokenizers/{MODEL}")
    except LookupError:
        return False

    return True


def install(folder: Path) -> bool:
    """Download the model into a folder unless NLTK finds it; return whether it is there afterwards."""
    return is_installed() or (
        bool(nltk.download(MODEL, download_dir=str(folder))) and is_installed()
    )


if __name__ == "__main__":
    if not install(Path(sys.prefix, "nltk_data")):
        sys.exit(
            f"error: NLTK's sentence model {MODEL!r} was not downloaded; its own words are above. IFEval's official "
            f"prompts need it: copy tokenizers/{MODEL} of https://github.com/nltk/nltk_data into "
            f"{sys.prefix}/nltk_data, or set NLTK_DATA to a folder that holds it."
        )
