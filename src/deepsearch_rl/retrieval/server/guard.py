"""Who may ask: the bearer token, and on loopback the names that a browser was led to.

A page in a browser on this machine can make a foreign name resolve to 127.0.0.1 (DNS rebinding) and then reads whatever
answers there. Such a request carries that name as its Host, so a server that listens on loopback answers to loopback's
names alone. Programs that send no Host or Origin are no browsers.
"""

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from deepsearch_rl.retrieval.server.bodies import RequestError


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's own, reachable from nowhere else."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, repr=False)
class Guard:
    """What a request must bring. ``token`` None: nothing; ``loopback``: names of this machine in Host and Origin."""

    token: bytes | None
    loopback: bool

    def check_names(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a foreign Host or Origin.

        Raises:
            RequestError: 421 or 403.
        """
        if not self.loopback:
            return
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host and not _names_loopback(b"//" + host):
            raise RequestError(421, "this server answers on loopback, and the Host header names another machine.")
        if origin and not _names_loopback(origin):
            raise RequestError(403, "this server answers on loopback, and the request comes from a page elsewhere.")

    def check_token(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a request without the token.

        Raises:
            RequestError: 401.
        """
        if self.token is None:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token):
            wanted = ((b"www-authenticate", b"Bearer"),)
            raise RequestError(401, "this server wants the header `Authorization: Bearer <token>`.", wanted)


@lru_cache(maxsize=256)
def _names_loopback(url: bytes) -> bool:
    try:
        return is_loopback(urlsplit(url.decode("latin-1")).hostname or "")
    except ValueError:
        return False
