"""Parcels that wait for a server.

A stage must not fail because a server is away: its parcel then waits in a folder named by its digest until it is sent.
Every report waits in a folder of its own, so that a newer one takes no other's place.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from deepsearch_rl.errors import ConfigError, DeepsearchError, EndpointDownError
from deepsearch_rl.files import atomic_directory
from deepsearch_rl.tracking.parcel import read_parcel
from deepsearch_rl.tracking.send import send


@dataclass(frozen=True, slots=True)
class Delivered:
    """A report that the store has: its name, and whether it was sent now or had arrived before."""

    name: str
    now: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """A parcel that the store has not: its folder, and why."""

    folder: Path
    error: DeepsearchError


def keep(parcel: Path, waiting: Path) -> Path:
    """Copy a parcel to where the unsent ones wait, and return its folder there.

    Raises:
        ArtifactError: the parcel is missing or malformed.
    """
    kept = waiting / read_parcel(parcel).digest
    if parcel.resolve() != kept.resolve():
        with atomic_directory(kept) as partial:
            shutil.copytree(parcel, partial, dirs_exist_ok=True)
    return kept


def deliver(parcel: Path, waiting: Path, uri: str, timeout_s: float) -> list[Delivered | Failed]:
    """Send a parcel, and after it whatever waits; what has arrived waits no longer.

    Each is sent on its own: one that is malformed or refused holds up no other. After an address that cannot be read,
    or a store that does not answer, nothing more is tried.
    """
    own = [parcel] if parcel.exists() or not _unsent(waiting) else []
    outcomes: list[Delivered | Failed] = []
    for folder in chain(own, _from(waiting)):
        try:
            outcomes.append(_deliver(folder, waiting, uri, timeout_s))
        except DeepsearchError as error:
            outcomes.append(Failed(folder, error))
            if isinstance(error, ConfigError | EndpointDownError):
                break
    return outcomes


def _from(waiting: Path) -> Iterator[Path]:
    """What waits, read when it is asked for: the parcel that was sent before may have waited, too."""
    yield from _unsent(waiting)


def _unsent(waiting: Path) -> list[Path]:
    return sorted(waiting.glob("[!.]*"))  # what begins with a dot is being copied


def _deliver(parcel: Path, waiting: Path, uri: str, timeout_s: float) -> Delivered:
    described = read_parcel(parcel)
    now = send(parcel, uri, timeout_s)
    shutil.rmtree(waiting / described.digest, ignore_errors=True)
    return Delivered(described.name, now)
