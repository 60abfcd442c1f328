"""The search tool as the model sees it: a frozen schema, and the text that a search returns.

The schema is part of every prompt that a model is trained on and served with, so it is frozen here and not taken from
the MCP server (whose own schema is longer: titles, defaults, an argument for the caller alone). A model that was
trained with one schema must be served with the same.

What the model reads is the text of the MCP result: ``result.content[0].text``, exactly :func:`format_passages` of the
hits. Which chunks it was shown is in the same result, beside the text and never in the prompt:
``result.structured_content["result"]`` is a list of ``{"chunk": contents, "chunk_id": id, "score": float}``, best
first. With the Agents SDK, take it in ``MCPServerStreamableHttp(custom_data_extractor=...)``: the extractor's context
carries ``structured_content`` and ``is_error``, and what it returns travels with the tool output item. A failed search
has ``is_error`` set and no structured content, and its text is the error; it is never an empty list.
"""

from typing import Final

from pydantic import JsonValue

from deepsearch_rl.retrieval.passages import NO_PASSAGES, format_passages

__all__ = ["NO_PASSAGES", "RETRIEVE_TOOL", "format_passages"]

RETRIEVE_TOOL: Final[dict[str, JsonValue]] = {
    "type": "function",
    "function": {
        "name": "retrieve",
        "description": "Search the corpus for passages.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        },
    },
}
"""The tool in OpenAI's function format. Changing a character of it needs new training of every model."""
