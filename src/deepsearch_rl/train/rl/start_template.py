"""Whether the start model's chat template can show what the agent does in its protocol.

For tool calls :mod:`deepsearch_rl.chat.tool_template` says it. A text in Search-R1's tags is
one message that grows, and has to stay as it was written. Templates of models that think, as those
of Qwen3, take a message apart at its thoughts and write it anew. A server cannot continue such a
message: it refuses every turn after the first search.
"""

from pathlib import Path

from deepsearch_rl.chat.agent_config import SEARCH_TAGS, AgentConfig
from deepsearch_rl.chat.chat_format import OPEN_THINK, ChatFormat, ConversationError
from deepsearch_rl.chat.tool_template import require_tool_template
from deepsearch_rl.core.errors import ConfigError

_THOUGHT = "<think>one</think>\n"
_SEARCH = "<search>two</search>\n\n<information>three</information>\n\n"


def require_template(chat_format: ChatFormat, agent: AgentConfig, folder: Path) -> None:
    """Raise ConfigError where the model's template cannot show the agent's tool calls, or does not keep its tags."""
    if agent.protocol == SEARCH_TAGS:
        _require_tags_kept(chat_format, agent, folder)
    else:
        require_tool_template(chat_format, agent, folder)


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
