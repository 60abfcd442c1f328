"""What is secret in a name, an address or a text, and how it is left out of logs, errors and artifacts."""

import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import SplitResult, quote, unquote, urlsplit

from deepsearch_rl.core.errors import ConfigError

MASK = "***"
# Holds the names that the project's ``.env`` has set (stages/environment.py), separated by commas
ENV_FILE_NAMES = "DEEPSEARCH_ENV_FILE_NAMES"
# A last word of ``token``: HF_TOKEN and AWS_SESSION_TOKEN are secrets, ``max_tokens`` and
# ``token_limit`` are none
_SECRET_NAME = re.compile(
    r"api_key|secret|passwor?d|passphrase|passwd|credential|private_key|auth_string|access_token|auth_token"
    r"|apikey|connection_string|(^|[_.])(token|login|pat|cookie|bearer)$|[_.]pwd$"
    r"|(^|[_.])(access|account|storage|openai|kaggle|serper|tavily|brave|exa|search)_key$",
    re.IGNORECASE,
)
# The token of a retrieval server that asks for one, wherever the project's own clients search
RETRIEVAL_TOKEN = "DEEPSEARCH_RETRIEVAL_TOKEN"
# Holds name:password
_LOGIN_NAME = re.compile(r"login$|auth_string$", re.IGNORECASE)
# A long word with a digit: what a key in ``.env`` looks like, and no path, address, number or
# switch
_KEY_LIKE = re.compile(r"(?=.*\d)[\w.+=~-]{16,}")
# What libraries read in different ways, or drop, in an address
_MISREAD = re.compile(r"[\s\\#]")
_KEY = re.compile(r"[\x21-\x7e]+")
# Up to the last '@': a password may hold an unencoded one, or a slash
_USER = re.compile(r"(?<=://)\S*@")


def is_secret(name: str) -> bool:
    """Return whether a setting of this name, dotted or not, holds a value that nobody may see."""
    return _SECRET_NAME.search(name) is not None


def environment_secrets(environment: Mapping[str, str]) -> list[str]:
    """Return the values of an environment that nobody may see.

    They are those of secret names, the password of a login (``name:password``), user and password
    of addresses, and whatever looks like a key among the names that the project's ``.env`` has set.
    """
    own_names = set(environment.get(ENV_FILE_NAMES, "").split(","))
    secrets: list[str] = []

    for name, value in environment.items():
        if is_secret(name):
            secrets.append(value)
            if _LOGIN_NAME.search(name):
                secrets += value.split(":", 1)[1:]
        elif name in own_names and _KEY_LIKE.fullmatch(value):
            secrets.append(value)

        # Of any variable: an address may hold a login whatever its name is
        if user := _USER.search(value):
            login = user[0].removesuffix("@")
            secrets += [login, *login.split(":", 1)[1:]]

    return [secret for secret in secrets if secret]


def split_address(address: str) -> SplitResult | None:
    """Return the parts of an address; None where a reader could take a password for another part.

    An unencoded '/', '?' or '#' in a password ends the host too early and leaves an '@' after it.
    """
    try:
        parts = urlsplit(address)
        _ = parts.port
        # As a look-up by name will spell it
        (parts.hostname or "").encode("idna")
    except ValueError:
        # UnicodeError is one
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
    spellings = set[str]()
    for secret in secrets:
        if secret:
            escaped = secret.replace("/", "\\/")
            spellings |= {secret, quote(secret, safe=""), unquote(secret), escaped}

    # The longest first: one secret may be the beginning of another.
    for spelling in sorted(spellings, key=lambda spelling: (-len(spelling), spelling)):
        text = text.replace(spelling, MASK)
    return text


def read_key(variable: str, place: str) -> str:
    """Return the key of a server from an environment variable; raise ConfigError where it holds none.

    An error names the server by ``place``, without user and password where that is an address.
    """
    key = os.environ.get(variable, "").strip()
    if not _KEY.fullmatch(key):
        raise ConfigError(
            f"set the environment variable {variable} to the key of {mask_users(place)}: it is not set, or holds "
            "spaces, control or non-ASCII characters, which no key has."
        )

    return key


def bearer(variable: str, place: str) -> dict[str, str]:
    """Return the header that sends a server's token, empty where the variable is not set.

    Raises as :func:`read_key`.
    """
    if not os.environ.get(variable):
        return {}
    return {"Authorization": f"Bearer {read_key(variable, place)}"}
