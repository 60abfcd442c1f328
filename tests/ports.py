"""Loopback ports that no other program takes between the choice and the use.

The kernel gives a connection that asks for any port one of ``ip_local_port_range``, on Linux 32768
and above. The ports here lie below. A process of the tests holds a block of them by listening on
the block's first one.
"""

import functools
import itertools
import socket
from collections.abc import Iterator

from deepsearch_rl.core import processes

FIRST, LAST, BLOCK = 18_000, 32_000, 200


def free_port() -> int:
    """Return a port that nothing listens on and that no other process of the tests is given."""
    _, ports = _block()
    return next(port for port in ports if processes.free_port(port) == port)


@functools.cache
def _block() -> tuple[socket.socket, Iterator[int]]:
    """Return the socket that holds this process's block, and the block's other ports again and again."""
    for first in range(FIRST, LAST, BLOCK):
        try:
            holder = socket.create_server((processes.LOOPBACK, first))
        except OSError:
            continue
        return holder, itertools.cycle(range(first + 1, first + BLOCK))
    raise RuntimeError(f"every block of ports from {FIRST} to {LAST} is held.")
