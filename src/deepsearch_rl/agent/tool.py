"""The search tool as the model sees it: a frozen schema.

The schema is part of every prompt that a model is trained on and served with. So it is frozen here, and the MCP
server's own schema, which is longer (titles, defaults, an argument for callers), is not used.

The retrieval server's MCP tool answers twice: ``result.content[0].text`` is ``format_passages`` of the hits, what
any MCP client's model reads; ``result.structured_content["result"]`` is a list of ``{"chunk": contents, "chunk_id": id,
"score": float}``, best first, which the agent writes in the form of its protocol and records by id. A failed search
has ``is_error`` set and no structured content, and its text is the error; it is never an empty list.
"""

import json
from typing import Final

from pydantic import JsonValue

from deepsearch_rl.records import ToolCall

RETRIEVE_TOOL_NAME: Final = "retrieve"
RETRIEVE_TOOL: Final[dict[str, JsonValue]] = {
    "type": "function",
    "function": {
        "name": RETRIEVE_TOOL_NAME,
        "description": "Search the corpus for passages.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        },
    },
}
"""The tool in OpenAI's function format. Changing a character of it needs new training of every model."""


def search_call(query: str, number: int) -> ToolCall:
    """Return the call of a search; ``number`` distinguishes it from others of a conversation."""
    arguments = json.dumps({"query": query}, ensure_ascii=False)
    return ToolCall(id=f"call_{number}", name=RETRIEVE_TOOL_NAME, arguments=arguments)
