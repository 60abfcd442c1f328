"""Run a command that works on a profile in its turn; for the make targets of several DVC commands.

    python -m flows.in_turn PROFILE WHAT COMMAND...

The command takes the place of this process, so that Ctrl-C, terminal and exit status are its own.
It and what it starts hold the profile's lock until the last of them has ended.
"""

import functools
import os
import sys
from pathlib import Path

from deepsearch_rl.core.profile import require_profile
from flows.command_line import one_paragraph_errors
from flows.dvc_calls import CANCELLED_STATUS, find_foreign_run
from flows.locks import take_run_lock


def main() -> None:
    """Command line; an error ends it with status 1 and one paragraph."""
    profile, what, *command = sys.argv[1:]
    root = Path.cwd()

    with one_paragraph_errors(CANCELLED_STATUS):
        require_profile(root, profile)
        find_other = functools.partial(find_foreign_run, root, profile)
        lock = take_run_lock(
            root, profile, what, lambda text: sys.stderr.write(f"{text}\n"), find_other=find_other
        )

    if lock is not None:
        # The command takes this process's place, and holds the lock until it ends
        os.set_inheritable(lock, True)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
