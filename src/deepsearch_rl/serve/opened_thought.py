"""Whether the prompts of a model end in the middle of a thought, as those of Qwen3's Thinking models do."""

from pathlib import Path

from deepsearch_rl.chat.chat_messages import OPEN_THINK
from deepsearch_rl.chat.trained_with import chat_template


def prompt_opens_thought(folder: Path) -> bool:
    """Return whether the chat template of a model folder ends every prompt in an opening think tag."""
    if OPEN_THINK not in chat_template(folder):
        return False
    from deepsearch_rl.chat.chat_format import load_chat_format  # noqa: PLC0415 - most templates need no tokenizer

    return load_chat_format(folder).prompt_opens_thought()
