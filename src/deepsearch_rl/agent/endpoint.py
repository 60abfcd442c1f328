"""Where a model answers."""

from dataclasses import dataclass, field


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
    api_key: str = field(default="none", repr=False)
