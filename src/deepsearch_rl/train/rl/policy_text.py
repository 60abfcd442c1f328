"""How rewards read a policy: from its tokenizer and chat template."""

from deepsearch_rl.chat.chat_format import ChatFormat
from deepsearch_rl.train.rewards import PolicyText, ThinkLength


def policy_text(chat_format: ChatFormat, think_length: ThinkLength) -> PolicyText:
    """Return how to read the texts of a policy with this tokenizer and template."""
    tokenizer = chat_format.tokenizer

    def count_tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    return PolicyText(count_tokens, think_length, chat_format.prompt_opens_thought())
