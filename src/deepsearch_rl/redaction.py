"""What is secret in a name, an address or a text, and how it is left out of logs, errors and artifacts."""

import os
import re
from collections.abc import Iterable
from urllib.parse import SplitResult, quote, unquote, urlsplit

from deepsearch_rl.errors import ConfigError

MASK = "***"
_SECRET_NAME = re.compile(r"api_key|secret|password|credential|auth_token|access_token", re.IGNORECASE)
_MISREAD = re.compile(r"[\s\\#]")  # what libraries read in different ways, or drop, in an address
_KEY = re.compile(r"[\x21-\x7e]+")
_USER = re.compile(r"(?<=://)\S*@")  # up to the last '@': a password may hold an unencoded one, or a slash


def is_secret(name: str) -> bool:
    """Return whether a setting of this name, dotted or not, holds a value that nobody may see."""
    return _SECRET_NAME.search(name) is not None


def split_address(address: str) -> SplitResult | None:
    """Return the parts of an address; None where a reader could take a password for another part.

    An unencoded '/', '?' or '#' in a password ends the host too early and leaves an '@' after it.
    """
    try:
        parts = urlsplit(address)
        _ = parts.port
        (parts.hostname or "").encode("idna")  # as a look-up by name will spell it
    except ValueError:  # UnicodeError is one
        return None
    tail = f"{parts.path}{parts.query}{parts.fragment}"
    return None if "@" in tail or _MISREAD.search(address) else parts


def public_address(address: str) -> str | None:
    """Return an address without user, password and query; None where it cannot be read and any part may be secret."""
    parts = split_address(address)
    return parts and f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def mask_users(text: str) -> str:
    """Return a text with user and password of every address in it masked."""
    return _USER.sub(f"{MASK}@", text)


def redact(text: str, secrets: Iterable[str | None]) -> str:
    """Return a text with every secret masked, as it is, percent-encoded, decoded or with JSON's escaped slashes."""
    spellings = {
        spelling
        for secret in secrets
        if secret
        for spelling in (secret, quote(secret, safe=""), unquote(secret), secret.replace("/", "\\/"))
    }
    for spelling in sorted(spellings, key=lambda spelling: (-len(spelling), spelling)):
        text = text.replace(spelling, MASK)
    return text


def read_key(variable: str, place: str) -> str:
    """Return the key of a server from an environment variable; raise ConfigError where it holds none."""
    key = os.environ.get(variable, "").strip()
    if not _KEY.fullmatch(key):
        raise ConfigError(
            f"set the environment variable {variable} to the key of {place}: it is not set, or holds spaces, control "
            f"or non-ASCII characters, which no key has."
        )
    return key
