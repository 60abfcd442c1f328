"""Whether the start model's chat template can show what the agent does in its protocol.

A template without tools leaves calls and their results out in silence. A text in Search-R1's tags
is one message that grows, and has to stay as it was written. Templates of models that think, as
those of Qwen3, take a message apart at its thoughts and write it anew. A server cannot continue
such a message: it refuses every turn after the first search.
"""

from pathlib import Path

from deepsearch_rl.agent.config import SEARCH_TAGS, AgentConfig
from deepsearch_rl.chat.chat_format import OPEN_THINK, ChatFormat, ConversationError
from deepsearch_rl.chat.chat_messages import (
    RETRIEVE_TOOL,
    RETRIEVE_TOOL_NAME,
    chat_messages,
    search_call,
)
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.records import Message

_THOUGHT = "<think>one</think>\n"
_QUERY = "the query of a probe"
_PASSAGE = "the passage of a probe"
_SEARCH = "<search>two</search>\n\n<information>three</information>\n\n"


def require_template(chat_format: ChatFormat, agent: AgentConfig, folder: Path) -> None:
    """Raise ConfigError where the model's template cannot show the agent's tool calls, or does not keep its tags."""
    if agent.protocol == SEARCH_TAGS:
        _require_tags_kept(chat_format, agent, folder)
    else:
        _require_tools_shown(chat_format, folder)


def _require_tags_kept(chat_format: ChatFormat, agent: AgentConfig, folder: Path) -> None:
    """Raise ConfigError where a text in tags does not stay as it is, with a thought if the prompt asks for one."""
    text = _THOUGHT + _SEARCH if OPEN_THINK in agent.load_instruction() else _SEARCH
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]
    try:
        chat_format.prompt_ids(messages, None, continue_last=True)
    except ConversationError as error:
        raise ConfigError(
            "the agent searches by tags, in one message that grows (agent.protocol: search_tags), and the chat "
            f"template of {folder} does not keep such a message as it was written, so that no turn after the first "
            f"search could be asked for ({error.__cause__}). Set agent.protocol: function_calling and a prompt of it, "
            "or start from a model whose template writes messages as they are, as Qwen2.5's does."
        ) from error


def _require_tools_shown(chat_format: ChatFormat, folder: Path) -> None:
    call = search_call(_QUERY, 1)
    messages = [
        Message(role="user", content="?"),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", content=_PASSAGE, tool_call_id=call.id),
    ]
    subject = f"the agent searches by tool calls, and the chat template of {folder}"
    remedy = (
        "Set agent.protocol: search_tags with the prompt search_tags, which need no tool role, or "
        "start from a model whose template has one."
    )
    try:
        tokens = chat_format.prompt_ids(chat_messages(messages), [RETRIEVE_TOOL])
    except ConversationError as error:
        raise ConfigError(f"{subject} refuses them ({error.__cause__}). {remedy}") from error

    # Through the tokens: a template may be fine and its tokenizer lose what it writes
    text = chat_format.tokenizer.decode(tokens)
    parts = {"tools": RETRIEVE_TOOL_NAME, "calls": _QUERY, "their results": _PASSAGE}
    missing = [name for name, part in parts.items() if part not in text]
    if missing:
        raise ConfigError(f"{subject} leaves out {', '.join(missing)}. {remedy}")
