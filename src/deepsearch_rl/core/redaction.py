"""Secrets in names, addresses and texts, and how logs, errors and artifacts leave them out."""

import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import SplitResult, quote, unquote, urlsplit

from deepsearch_rl.core.environment import ENV_FILE_NAMES
from deepsearch_rl.core.errors import ConfigError

MASK = "***"
# HF_TOKEN and AWS_SESSION_TOKEN are secrets, ``max_tokens`` and ``token_limit`` are not
_SECRET_NAME = re.compile(
    r"api_key|secret|passwor?d|passphrase|passwd|credential|private_key|auth_string|access_token|auth_token"
    r"|apikey|connection_string|(^|[_.])(token|login|pat|cookie|bearer)$|[_.]pwd$"
    r"|(^|[_.])(access|account|storage|openai|kaggle|serper|tavily|brave|exa|search)_key$",
    re.IGNORECASE,
)
# The token that the project's clients send to a retrieval server
RETRIEVAL_TOKEN = "DEEPSEARCH_RETRIEVAL_TOKEN"
# The value is name:password
_LOGIN_NAME = re.compile(r"login$|auth_string$", re.IGNORECASE)
# A long word with a digit, which is no path, address, number or switch
_KEY_LIKE = re.compile(r"(?=.*\d)[\w.+=~-]{16,}")
# Characters that libraries interpret differently in an address
_MISREAD = re.compile(r"[\s\\#]")
_KEY = re.compile(r"[\x21-\x7e]+")
# Up to the last '@', because a password may contain one unencoded, or a slash
_USER = re.compile(r"(?<=://)\S*@")


def is_secret(name: str) -> bool:
    """Return whether a setting of this name, dotted or not, is a secret."""
    return _SECRET_NAME.search(name) is not None


def environment_secrets(environment: Mapping[str, str]) -> list[str]:
    """Return the secrets of an environment.

    These are values of secret names, passwords of logins (``name:password``), users and passwords in
    addresses, and what looks like a key among the variables from the project's ``.env``.
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

        if user := _USER.search(value):
            login = user[0].removesuffix("@")
            secrets += [login, *login.split(":", 1)[1:]]

    return [secret for secret in secrets if secret]


def split_address(address: str) -> SplitResult | None:
    """Return the parts of an address; None if part of a password could be taken for another part.

    An unencoded '/', '?' or '#' in a password ends the host too early.
    """
    try:
        parts = urlsplit(address)
        _ = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError:
        return None

    tail = f"{parts.path}{parts.query}{parts.fragment}"
    return None if "@" in tail or _MISREAD.search(address) else parts


def public_address(address: str) -> str | None:
    """Return an address without user, password and query; None if :func:`split_address` cannot read it."""
    parts = split_address(address)
    return parts and f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def mask_users(text: str) -> str:
    """Mask user and password of every address in a text."""
    return _USER.sub(f"{MASK}@", text)


def redact(text: str, secrets: Iterable[str | None]) -> str:
    """Mask every secret in a text, also percent-encoded, decoded or with JSON's escaped slashes."""
    spellings = set[str]()
    for secret in secrets:
        if secret:
            escaped = secret.replace("/", "\\/")
            spellings |= {secret, quote(secret, safe=""), unquote(secret), escaped}

    # Longest first: one secret may be the beginning of another
    for spelling in sorted(spellings, key=lambda spelling: (-len(spelling), spelling)):
        text = text.replace(spelling, MASK)
    return text


def read_key(variable: str, place: str) -> str:
    """Return the key of the server ``place`` from an environment variable; raise ConfigError if it has none."""
    key = os.environ.get(variable, "").strip()
    if not _KEY.fullmatch(key):
        raise ConfigError(
            f"set the environment variable {variable} to the key of {mask_users(place)}: it is not set, or contains "
            "spaces, control or non-ASCII characters, which no key has."
        )

    return key


def bearer(variable: str, place: str) -> dict[str, str]:
    """Return the header with a server's token, empty if the variable is not set; raise as :func:`read_key`."""
    if not os.environ.get(variable):
        return {}
    return {"Authorization": f"Bearer {read_key(variable, place)}"}
