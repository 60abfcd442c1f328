"""The tokens of an episode: what the model read, what it wrote, and which of them carry loss.

A prompt is rendered from the agent's request as the model server renders it. What the model wrote
is never rendered again: its own token ids stay in the row, and the tokens that the chat template
puts after them are added behind. Where the server's rendering of the conversation begins with the
tokens of the row, which is always so for a model that was trained on that template, the two are the
same tokens.

One row is one sequence to train on. An episode is one row, except where the agent's next prompt
does not repeat what the model wrote. With ``agent.history_reasoning: false``, or a chat template
that shows no earlier thoughts, a thought is dropped from the conversation, and the next turn begins
a new row. So it does where a template rewrites what came before. In Search-R1's tags, a text that
grows, the row keeps the tokens as they were sampled; a server that reads the text anew may join two
of them at a seam.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from deepsearch_rl.agent.protocols import AgentProtocol, SearchTags
from deepsearch_rl.chat.chat_format import ChatFormat
from deepsearch_rl.chat.chat_messages import split_thought
from deepsearch_rl.chat.completion import Completion
from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.records import Message
from deepsearch_rl.serve.chat_answer import AnswerText
from deepsearch_rl.serve.chat_request import ChatCompletionRequest


@dataclass(slots=True)
class TokenRow:
    """A sequence: the first ``prompt_tokens`` of the ids are the first prompt, and the mask is 1 where the model wrote.

    ``logprobs`` are those of the sampler, 0 for tokens that the model did not write; None where
    none were given.
    """

    prompt_tokens: int
    ids: list[int]
    mask: list[int]
    logprobs: list[float] | None = None

    @property
    def prompt_ids(self) -> list[int]:
        """The tokens before the first turn."""
        return self.ids[: self.prompt_tokens]

    @property
    def completion_ids(self) -> list[int]:
        """The tokens after the first prompt: turns and observations."""
        return self.ids[self.prompt_tokens :]

    @property
    def completion_mask(self) -> list[int]:
        """1 for each of the completion's tokens that the model wrote, 0 for observations."""
        return self.mask[self.prompt_tokens :]

    @property
    def completion_logprobs(self) -> list[float] | None:
        """The sampler's log-probabilities of the completion's tokens."""
        return None if self.logprobs is None else self.logprobs[self.prompt_tokens :]


@dataclass(frozen=True, slots=True)
class TokenTurn:
    """A turn as tokens, without those after its end, and as the completion that the model server would send."""

    ids: list[int]
    completion: Completion


def end_ids(folder: Path, chat_format: ChatFormat) -> tuple[int, ...]:
    """Return the tokens that end a turn of a model folder: its tokenizer's, then others of its generation config."""
    ends: list[int] = []
    first = chat_format.tokenizer.eos_token_id
    if isinstance(first, int):
        ends.append(first)

    # Qwen's chat models end with one token and pretraining with another: servers stop at both
    if (folder / GENERATION_CONFIG_NAME).is_file():
        others = GenerationConfig.from_pretrained(folder).eos_token_id
        if isinstance(others, list):
            ends += others
        elif others is not None:
            ends.append(others)

    if not ends:
        raise ArtifactError(
            f"{folder} names no end token, so nothing says where a turn of its model ends."
        )

    return tuple(dict.fromkeys(ends))


@dataclass(slots=True)
class TokenRecord:
    """Reads and records the tokens of one episode; one of ``end_ids`` ends a turn, the first is the template's own."""

    chat_format: ChatFormat
    protocol: AgentProtocol
    end_ids: tuple[int, ...]
    rows: list[TokenRow] = field(default_factory=list)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens that the model continues: the last row's and what it reads next, or a new row's prompt."""
        request = self._request(messages)
        rendered = self._render(request)
        if not self.rows:
            return rendered
        ids = self._open_ids()
        # The template writes the conversation as the model read it: nothing is dropped or moved
        if rendered[: len(ids)] == ids:
            return rendered

        unread = messages[_first_unread(messages) :]
        if isinstance(self.protocol, SearchTags):
            # Tags are plain text, which no template surrounds
            text = "".join(message.content for message in unread)
            return ids + self.chat_format.tokenizer.encode(text, add_special_tokens=False)

        read_next = self._after_turn(messages[: -len(unread)], rendered)
        return rendered if read_next is None else ids + read_next

    def begin_turn(self, prompt: list[int]) -> None:
        """Record what :meth:`prompt` returned: the model continues it now."""
        ids = self._open_ids() if self.rows else []
        if not ids or prompt[: len(ids)] != ids:
            self.rows.append(TokenRow(len(prompt), list(prompt), [0] * len(prompt)))
            return

        row = self.rows[-1]
        added = len(prompt) - len(ids)
        row.ids = list(prompt)
        row.mask = [*row.mask[: len(ids)], *[0] * added]
        if row.logprobs is not None:
            row.logprobs = [*row.logprobs[: len(ids)], *[0.0] * added]

    def read(
        self,
        written: str | Sequence[int],
        messages: Sequence[Message],
        max_tokens: int,
        truncated: bool | None,
    ) -> TokenTurn:
        """Return a turn of at most ``max_tokens`` tokens; what comes after its end or its stop string is left out.

        ``truncated`` says whether the limit ended it; None: it did if no end token and no stop
        string is there.
        """
        request = self._request(messages)
        last = request.messages[-1].content if request.continue_final_message else ""
        text = AnswerText(
            self.chat_format.tokenizer,
            stops=request.stop or (),
            keep_stop=bool(request.include_stop_str_in_output),
            in_thought=self.chat_format.opens_thought(self.rows[-1].ids, last or ""),
            # As vLLM: where no tool is offered, a call is a text
            may_call=bool(request.tools),
        )
        ids = self._ids_of(written, ended=not truncated)[:max_tokens]

        for number, token in enumerate(ids, 1):
            if text.add(token) or token in self.end_ids:
                ids = ids[:number]
                break

        text.finish(ids)

        ended = bool(ids) and (ids[-1] in self.end_ids or text.stop_string is not None)
        was_cut = not ended if truncated is None else truncated
        message = text.message()
        finish_reason = "tool_calls" if message.get("tool_calls") else "stop"
        # A turn that its limit cut off ends so, whatever it holds
        if was_cut:
            finish_reason = "length"

        choice = {
            "message": message,
            "finish_reason": finish_reason,
            "stop_reason": text.stop_string,
        }
        usage = {"prompt_tokens": len(self.rows[-1].ids), "completion_tokens": len(ids)}
        return TokenTurn(ids, Completion.model_validate({"choices": [choice], "usage": usage}))

    def end_turn(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> None:
        """Record the tokens of a turn, and their log-probabilities where the sampler gave them."""
        row = self.rows[-1]
        if any(row.mask) and (row.logprobs is None) != (logprobs is None):
            raise ValueError(
                "either all turns of an episode have log-probabilities, or none of them has"
            )

        if logprobs is not None:
            # What the model only read has none; the mask leaves these zeros out
            before = [0.0] * len(row.ids) if row.logprobs is None else row.logprobs
            row.logprobs = [*before, *logprobs[: len(ids)]]

        row.ids = [*row.ids, *ids]
        row.mask = [*row.mask, *[1] * len(ids)]

    def _open_ids(self) -> list[int]:
        """Return the last row's tokens, which the next prompt continues.

        A text that grows (Search-R1's tags) has no end token in its middle: the server's prompt has
        none either.
        """
        ids = self.rows[-1].ids
        grows = isinstance(self.protocol, SearchTags)
        return ids[:-1] if grows and ids[-1] in self.end_ids else ids

    def _ids_of(self, written: str | Sequence[int], *, ended: bool) -> list[int]:
        if not isinstance(written, str):
            return list(written)
        ids = self.chat_format.tokenizer.encode(written, add_special_tokens=False)
        return [*ids, self.end_ids[0]] if ended else ids

    def _request(self, messages: Sequence[Message]) -> ChatCompletionRequest:
        """Return the agent's request as the model server reads it."""
        fields = self.protocol.request(messages)
        options: dict[str, Any] = fields.pop("extra_body", {})
        return ChatCompletionRequest.model_validate({"model": "environment", **fields, **options})

    def _render(self, request: ChatCompletionRequest) -> list[int]:
        messages = [message.for_template() for message in request.messages]
        return self.chat_format.prompt_ids(
            messages, request.tools, bool(request.continue_final_message)
        )

    def _after_turn(self, messages: Sequence[Message], rendered: list[int]) -> list[int] | None:
        """Return the tokens that the template writes after the last turn; None where it rewrites what came before.

        The end of a turn is its end token. The model wrote it, or else the template's own belongs
        to what comes next.
        """
        closed = self._render_closed(messages)
        if not self._keeps_thought(messages, closed):
            return None
        places = [place for place, token in enumerate(closed) if token in self.end_ids]
        end = places[-1] if places else len(closed)
        # The template rewrites an earlier turn, now that another one follows
        if rendered[:end] != closed[:end]:
            return None
        model_ended = self.rows[-1].ids[-1] in self.end_ids
        return rendered[end + 1 :] if places and model_ended else rendered[end:]

    def _render_closed(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a conversation without those that open the next turn."""
        request = self._request(messages)
        conversation = self.chat_format.tokenizer.apply_chat_template(
            [message.for_template() for message in request.messages],
            tools=cast(Any, request.tools),
            add_generation_prompt=False,
            return_dict=False,
        )
        return cast(list[int], conversation)

    def _keeps_thought(self, messages: Sequence[Message], closed: list[int]) -> bool:
        """Return whether ``closed``, a conversation's tokens, still holds what the model thought in its last turn."""
        thought = split_thought(messages[-1]).reasoning
        if thought is None:
            return True
        prompt = self._render(self._request(messages[:-1]))
        shared = 0
        while shared < min(len(prompt), len(closed)) and prompt[shared] == closed[shared]:
            shared += 1
        return thought.strip() in str(self.chat_format.tokenizer.decode(closed[shared:]))


def _first_unread(messages: Sequence[Message]) -> int:
    """Return the position after the last turn: from there on the messages are new to the model."""
    position = len(messages)
    while messages[position - 1].role != "assistant":
        position -= 1
    return position
