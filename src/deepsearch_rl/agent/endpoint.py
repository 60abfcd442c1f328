"""Where a model answers."""

from dataclasses import dataclass, field

NO_KEY = "none"
"""What is sent to a server that wants no key."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI Chat Completions server and the model to ask it for; the key never appears in its repr.

    Args:
        base_url: address up to and including ``/v1``.
        model: name of the model as the server lists it.
        api_key: bearer token; any non-empty text for a local server.
    """

    base_url: str
    model: str
    api_key: str = field(default=NO_KEY, repr=False)

    def redact(self, text: str) -> str:
        """The text, such as an error's, without the key that the server may have repeated in it."""
        return text if self.api_key in {"", NO_KEY} else text.replace(self.api_key, "***")
