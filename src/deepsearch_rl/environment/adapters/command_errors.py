"""How the commands of this folder end where something is wrong that their user can fix."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from deepsearch_rl.core.errors import DeepsearchError


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Exit with status 1 and the error's paragraph where the block raises one of the project's errors."""
    try:
        yield
    except DeepsearchError as error:
        sys.exit(f"error: {error}")
