"""The errors that a user can cause or fix.

Messages say what is wrong, where, and how to fix it, in one paragraph. Entry points print the
message alone; a traceback appears only with ``--debug``.
"""

import contextlib
import difflib
import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

ValueT = TypeVar("ValueT")

# Full disks in errors of safetensors, faiss, torch and numpy, which have no errno
_FULL_DISK = re.compile(
    r"No space left on device|PytorchStreamWriter failed|unexpected pos \d+ vs \d+|\d+ requested and \d+ written"
)


class DeepsearchError(Exception):
    """Root of the tree; its message is fit for a user."""


class ConfigError(DeepsearchError):
    """A parameter has an invalid value."""


class UnknownNameError(ConfigError):
    """A profile, backend, prompt, reward or dataset name that does not exist."""

    def __init__(self, kind: str, name: str, valid: Iterable[str]) -> None:
        names = sorted(valid)
        nearest = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(map(repr, nearest))}? " if nearest else ""
        super().__init__(f"unknown {kind} {name!r}. {hint}Valid names: {', '.join(names)}.")


def look_up(kind: str, name: str, valid: Mapping[str, ValueT]) -> ValueT:
    """Return ``valid[name]``; raise UnknownNameError for an unknown name."""
    if name not in valid:
        raise UnknownNameError(kind, name, valid)
    return valid[name]


class RecordError(DeepsearchError):
    """A record does not fit its schema."""

    def __init__(self, path: Path | str, line: int, field: str, problem: str) -> None:
        self.path = str(path)
        self.line = line
        self.field = field
        self.problem = problem
        where = f"field {field!r}: " if field else ""
        super().__init__(f"{path}, line {line}: {where}{problem}")


class ArtifactError(DeepsearchError):
    """An artifact is missing, damaged or was built from other inputs."""


class UnavailableError(DeepsearchError):
    """Hardware or a package is missing."""


class EndpointError(DeepsearchError):
    """A server does not answer, or not usefully."""


class EndpointDownError(EndpointError):
    """A server fails for every request, not only for this one."""


class CommandError(DeepsearchError):
    """A child process failed; the message has its last lines."""


class LostProcessError(CommandError):
    """A program lost one of its processes; a restart continues from its last checkpoint."""


class CheckFailedError(DeepsearchError):
    """A check of a stage's own output failed, so the output is not kept."""


class StalePolicyError(CheckFailedError):
    """The served policy's log-probabilities are not the trained policy's."""


@contextlib.contextmanager
def full_disk_named(place: Path | str) -> Iterator[None]:
    """Turn the error of a full disk or quota into an ArtifactError that names the file, or ``place``."""
    try:
        yield
    except DeepsearchError:
        raise
    except Exception as error:
        number = getattr(error, "errno", None)
        if number not in (errno.ENOSPC, errno.EDQUOT) and not _FULL_DISK.search(str(error)):
            raise

        raise ArtifactError(
            f"the disk is full ({getattr(error, 'filename', None) or place}). Free some space and "
            "run the command again; what it can resume from is kept."
        ) from error


def install_hint(extra: str) -> str:
    """Return how the packages of an extra are installed, in any environment and in the project's."""
    return (
        f"`pip install 'deepsearch-rl[{extra}]'`, or in the project "
        f"`make environment EXTRAS='--extra {extra}'`"
    )
