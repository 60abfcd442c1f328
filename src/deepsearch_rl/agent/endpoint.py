"""Address, model name and key of a model server."""

import base64
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from deepsearch_rl.redaction import redact

NO_KEY = "none"
"""The key for a server that needs none."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI Chat Completions server and the model to ask it for; no secret appears in its repr.

    ``base_url`` goes up to and including ``/v1`` and may hold a user and a password.
    """

    base_url: str = field(repr=False)
    model: str
    api_key: str = field(default=NO_KEY, repr=False)

    def redact(self, text: str) -> str:
        """Replace the key, user and password, which a server may repeat in an error, by asterisks."""
        user = urlsplit(self.base_url).netloc.rpartition("@")[0]
        as_header = base64.b64encode(unquote(user).encode()).decode()
        return redact(text, (user, as_header, None if self.api_key == NO_KEY else self.api_key))
