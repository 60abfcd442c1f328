"""Loopback ports that no other program takes between the choice and the use.

The kernel gives a connection that asks for any port one of ``ip_local_port_range``, on Linux 32768 and above. The ports
here lie below. A process of the tests holds a block of them by listening on the block's first one.
"""

import functools
import itertools
import socket
from collections.abc import Iterator

from deepsearch_rl.processes import LOOPBACK

FIRST, LAST, BLOCK = 18_000, 32_000, 200


def free_port() -> int:
    """Return a port that nothing listens on and that no other process of the tests is given."""
    return next(port for port in _ports() if _is_free(port))


@functools.cache
def _ports() -> Iterator[int]:
    holder = socket.socket()
    for first in range(FIRST, LAST, BLOCK):
        try:
            holder.bind((LOOPBACK, first))
            holder.listen()
        except OSError:
            continue
        _held.append(holder)
        return itertools.cycle(range(first + 1, first + BLOCK))
    raise RuntimeError(f"every block of ports from {FIRST} to {LAST} is held.")


_held: list[socket.socket] = []
"""Sockets that stay open as long as the process."""


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
