"""Where a model answers: the address of its server, its name there, and the key.

Without the OpenAI client, which takes a second to load: a command that starts a server needs the
client only when that answers.
"""

import base64
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from deepsearch_rl.chat.request_options import USUAL, RequestOptions
from deepsearch_rl.core.redaction import redact

# The key for a server that needs none
NO_KEY = "none"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and its model; ``base_url`` ends in ``/v1`` and may hold a password, which no repr shows."""

    base_url: str = field(repr=False)
    model: str
    api_key: str = field(default=NO_KEY, repr=False)
    # The chat template opens a thought at the end of every prompt, and the server leaves thoughts
    # in the text
    begins_in_thought: bool = False
    options: RequestOptions = field(default=USUAL, hash=False)

    def redact(self, text: str) -> str:
        """Replace the key, user and password, which a server may repeat in an error, by asterisks."""
        user = urlsplit(self.base_url).netloc.rpartition("@")[0]
        as_header = base64.b64encode(unquote(user).encode()).decode()
        return redact(text, (user, as_header, None if self.api_key == NO_KEY else self.api_key))
