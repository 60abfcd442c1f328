"""Where a model answers."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

NO_KEY = "none"
"""What is sent to a server that wants no key."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI Chat Completions server and the model to ask it for; no secret appears in its repr.

    Args:
        base_url: address up to and including ``/v1``; may hold a user and a password.
        model: name of the model as the server lists it.
        api_key: bearer token; any non-empty text for a local server.
    """

    base_url: str = field(repr=False)
    model: str
    api_key: str = field(default=NO_KEY, repr=False)

    def redact(self, text: str) -> str:
        """The text, such as an error's, without the key, user and password that a server may have repeated in it."""
        for secret in self._secrets():
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> Iterator[str]:
        user = urlsplit(self.base_url).netloc.rpartition("@")[0]
        if user:
            yield user
            yield base64.b64encode(unquote(user).encode()).decode()  # as the header spells them
        if self.api_key not in {"", NO_KEY}:
            yield self.api_key
