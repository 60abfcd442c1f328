"""Whether a chat template shows tools, calls and their results: one that does not leaves them out in silence."""

from pathlib import Path

from deepsearch_rl.chat.agent_config import FUNCTION_CALLING, AgentConfig
from deepsearch_rl.chat.chat_format import ChatFormat, ConversationError
from deepsearch_rl.chat.chat_messages import (
    RETRIEVE_TOOL,
    RETRIEVE_TOOL_NAME,
    chat_messages,
    search_call,
)
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.records import Message

_QUERY = "the query of a probe"
_PASSAGE = "the passage of a probe"


def require_tool_template(chat_format: ChatFormat, agent: AgentConfig, folder: Path) -> None:
    """Raise ConfigError where the model's template cannot show the agent's tool calls.

    Search-R1's tags need no tool role.
    """
    if agent.protocol != FUNCTION_CALLING:
        return

    call = search_call(_QUERY, 1)
    messages = [
        Message(role="user", content="?"),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", content=_PASSAGE, tool_call_id=call.id),
    ]
    try:
        tokens = chat_format.prompt_ids(chat_messages(messages), [RETRIEVE_TOOL])
    except ConversationError as error:
        raise ConfigError(f"{_refusal(folder)} refuses them ({error.__cause__}). {_FIX}") from error

    # Through the tokens: a template may be fine and its tokenizer lose what it writes
    text = chat_format.tokenizer.decode(tokens)
    parts = {"tools": RETRIEVE_TOOL_NAME, "calls": _QUERY, "their results": _PASSAGE}
    missing = [name for name, part in parts.items() if part not in text]
    if missing:
        raise ConfigError(f"{_refusal(folder)} leaves out {', '.join(missing)}. {_FIX}")


def _refusal(folder: Path) -> str:
    return f"the agent searches by tool calls, and the chat template of {folder}"


_FIX = (
    "Set agent.protocol: search_tags with the prompt search_tags, which need no tool role, or start from a model whose "
    "template has one."
)
