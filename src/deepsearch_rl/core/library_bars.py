"""Libraries' progress bars: stages and commands show their own, and a library's would be written over them."""

import os

# A library reads its variable when it is imported
_VARIABLES = {
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    # Ms-swift's
    "LOG_LEVEL": "ERROR",
}


def hide_library_bars() -> None:
    """Have libraries show no bars in this process and in those that it starts, where they are imported after this call.

    A variable that the user set stays.
    """
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
