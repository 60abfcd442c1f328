"""Whether a profile trains a model at all; `make rft` asks before anything runs.

python -m flows.trains PROFILE
"""

import sys
from pathlib import Path

from deepsearch_rl.cli.planning.whole_run import require_base_model
from deepsearch_rl.core.profile import find_profile
from flows.command_line import one_paragraph_errors


def main() -> None:
    """Command line; status 1 and one paragraph where the profile trains none."""
    [profile] = sys.argv[1:]
    with one_paragraph_errors():
        require_base_model(find_profile(Path.cwd(), profile))


if __name__ == "__main__":
    main()
