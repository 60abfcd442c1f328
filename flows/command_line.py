"""How the commands of flows/ end where something is wrong: with status 1 and one paragraph."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from deepsearch_rl.core.errors import DeepsearchError, full_disk_named

CANCELLED = "cancelled"
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def one_paragraph_errors(cancelled: int | str = CANCELLED) -> Iterator[None]:
    """End this process where the block raises an error of the user or of the system, or is interrupted.

    ``cancelled`` is what ends it after Ctrl-C: a text with status 1, or a status.
    """
    try:
        with full_disk_named("while writing"):
            yield
    except DeepsearchError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {system_problem(error)}")
    except KeyboardInterrupt:
        if isinstance(cancelled, int):
            sys.stderr.write(f"{CANCELLED}\n")
        sys.exit(cancelled)


def system_problem(error: OSError) -> str:
    """Return a sentence with the file of an error of the system, and what to do about one that may not be written."""
    place = f"{error.filename}: " if error.filename else ""
    problem = f"{place}{error.strerror or error}."
    if error.errno not in _NOT_WRITABLE:
        return problem
    return (
        f"{problem} A run writes into the project's folder, so your user has to own it or may write there; change its "
        "permissions, or work in a clone of your own."
    )
