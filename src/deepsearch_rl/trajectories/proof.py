"""The proof that what ms-swift trains on is what the server sees, token by token, for every single row.

Two renderings of a conversation must agree:

- ms-swift's training encoding of the row: the tokens and the loss mask that ``swift sft`` computes;
- the chat template in the model's tokenizer, through which every server and the RL trainer see a conversation: the
  whole of it, and the prompt of every turn as the server computes it.

Trained are the tokens that the model is to write: each assistant turn from its first token through ``<|im_end|>``, and
the newline that closes the turn, which ms-swift trains as part of its suffix and no server waits for. Nothing else is.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue
from swift.model import get_processor
from swift.template import get_template

from deepsearch_rl.agent.tool import RETRIEVE_TOOL
from deepsearch_rl.errors import CheckFailedError
from deepsearch_rl.records import Trajectory
from deepsearch_rl.serving.chat_format import load_chat_format
from deepsearch_rl.trajectories.convert import SwiftRow, chat_messages

IGNORED = -100
"""Label of a token without loss."""
NO_LIMIT = 1 << 24
"""ms-swift refuses longer conversations; how long is too long is decided after the proof."""


class TokenProof:
    """Checks rows against one model folder.

    Args:
        folder: Hugging Face folder with tokenizer, chat template and config.
        template: ms-swift's name of the chat template that training uses.
        agent_template: ms-swift's name of the tool rendering that training uses.
    """

    def __init__(self, folder: Path, template: str, agent_template: str) -> None:
        self._chat_format = load_chat_format(folder)
        processor = get_processor(str(folder), model_type="qwen3")
        self._training = get_template(
            processor, template_type=template, agent_template=agent_template, max_length=NO_LIMIT
        )
        self._training.set_mode("train")

    def check(self, trajectory: Trajectory, row: SwiftRow) -> int:
        """Prove one row and return its length in tokens.

        Raises:
            CheckFailedError: tokens or loss mask differ; says where and shows both sides.
        """
        messages = chat_messages(trajectory.messages)
        encoded = self._training.encode({"tools": row.tools, "messages": [dict(message) for message in row.messages]})
        tokens = self._render(messages)
        self._compare(trajectory.id, "training tokens", encoded["input_ids"], tokens)
        labels = [IGNORED] * len(tokens)
        for turn, message in enumerate(messages):
            if message["role"] == "assistant":
                prompt = self._chat_format.prompt_ids(messages[:turn], [RETRIEVE_TOOL])
                self._compare(trajectory.id, "tokens before a turn", tokens[: len(prompt)], prompt)
                end = len(self._render(messages[: turn + 1]))
                labels[len(prompt) : end] = tokens[len(prompt) : end]
        self._compare(trajectory.id, "trained tokens", encoded["labels"], labels)
        return len(tokens)

    def _render(self, messages: list[dict[str, JsonValue]]) -> list[int]:
        tokenizer = self._chat_format.tokenizer
        text = tokenizer.apply_chat_template(messages, tools=[RETRIEVE_TOOL], tokenize=False)  # pyright: ignore
        return tokenizer.encode(str(text), add_special_tokens=False)

    def _compare(self, id_: str, what: str, swift: Sequence[int], tokenizer: Sequence[int]) -> None:
        if list(swift) == list(tokenizer):
            return
        pairs = enumerate(zip(swift, tokenizer, strict=False))
        place = next((i for i, (ours, theirs) in pairs if ours != theirs), min(len(swift), len(tokenizer)))
        raise CheckFailedError(
            f"trajectory {id_}: {what} differ at token {place}: ms-swift has {self._shown(swift, place)}, the model's "
            f"chat template {self._shown(tokenizer, place)}. Choose the ms-swift template that fits the model "
            "(filter.template, filter.agent_template)."
        )

    def _shown(self, tokens: Sequence[int], place: int) -> str:
        if tokens[place : place + 1] == [IGNORED]:
            return "no trained token"
        shown = [token for token in tokens[place : place + 8] if token != IGNORED]
        return repr(self._chat_format.tokenizer.decode(shown))
