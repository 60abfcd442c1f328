"""How a model asks for searches and is shown their results, and who writes its turns: an endpoint or a script.

``function_calling`` has native tool calls, several in one turn if the model likes.

``search_tags`` has Search-R1's tags (Jin et al. 2025; docs/contracts.md, section 4): one text that
model and search engine write.

    <think> ... </think> <search> query </search>

    <information>Doc 1(Title: ...) ...
    Doc 2(Title: ...) ...</information>

    <think> ... </think> <answer> ... </answer>

The instruction and the question are one user message; everything after it is one assistant message
that grows. A request asks the server to continue it (``continue_final_message``, known to vLLM,
SGLang and our own server) up to a closing tag; what a server writes after that is cut off. The
first ``<search>`` or ``<answer>`` of a turn is its action; after a turn without one the model reads
a correction. A turn has one search: there are no parallel calls.

Every protocol records a rollout in the same form: an assistant message with the calls that were
read from it, then a tool message per call. What the model saw is the content of the messages,
character for character.

Calls of an endpoint are plain, non-streaming ``chat.completions`` through ``AsyncOpenAI``, so that
libraries which capture rollouts there (openpipe-art does) see every call.
"""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import openai
from pydantic import JsonValue

from deepsearch_rl.agent.config import FUNCTION_CALLING, AgentConfig
from deepsearch_rl.agent.transcript import RolloutStopped
from deepsearch_rl.chat.chat_messages import (
    CLOSE_THINK,
    NO_PASSAGES,
    OPEN_THINK,
    RETRIEVE_TOOL,
    PassageText,
    assistant_turn,
    call_id,
    chat_messages,
    format_passages,
    search_call,
    split_thought,
    spoken_text,
    warn_once,
)
from deepsearch_rl.chat.client import complete
from deepsearch_rl.chat.completion import Completion
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.chat.model_failures import left_call
from deepsearch_rl.chat.request_options import USUAL, RequestOptions
from deepsearch_rl.core.answers import has_answer_tags
from deepsearch_rl.core.records import Message, StopReason, TokenUsage, ToolCall

# The tool's schema and the words that a template writes around it
_SCHEMA_CHARACTERS = len(json.dumps(RETRIEVE_TOOL)) + 400
# What a template writes around a message or a call
_MESSAGE_CHARACTERS = 24
# What a template writes around the two messages of search_tags
_TAGS_CHARACTERS = 60
# Ids that go back as they are: the strictest provider's form, Kimi's, which its template renders, and
# LiteLLM's, which hold a thought signature
_KEPT_ID = re.compile(r"[A-Za-z0-9]{9}|functions\.\w+:\d+|.+__thought__.+", re.DOTALL)
# What servers leave of a format around the name of a tool: gpt-oss's and Kimi's namespace and channel, Gemini's
# namespace
_AROUND_NAME = re.compile(r"\A\s*((functions|default_api)[.:])?|(<\|.*)?\s*\Z", re.DOTALL)
_RAW_CALLS = re.compile(r"(?:<tool_call>.*?</tool_call>\s*)+", re.DOTALL)
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_STOPS = ("</search>", "</answer>")
_ANSWER_IN_REASONING = (
    "a turn without a text: the answer stands in the reasoning field, where the server's reasoning "
    "parser put it, and counts as none. For a model or a request that does not think, start vLLM "
    "or SGLang without --reasoning-parser (llama.cpp: --reasoning-format none); for a model that "
    "does, name its own parser, e.g. qwen3 in place of deepseek_r1, which takes every text without "
    "</think> for a thought."
)
# What the model reads after a turn without an action
INVALID_ACTION = (
    "\nThat was neither a search nor an answer. A query stands between <search> and </search>, "
    "the final answer between <answer> and </answer>.\n"
)


@dataclass(frozen=True, slots=True)
class FunctionCalling:
    """The tool calls of Chat Completions; ``instruction`` is the system prompt. All rollouts of an agent share it."""

    instruction: str
    history_reasoning: bool = False
    offer_tool: bool = True
    # The prompt of a turn ends in an opening think tag, and the server leaves thoughts in the text
    begins_in_thought: bool = False
    options: RequestOptions = USUAL

    def opening(self, question: str) -> list[Message]:
        """Return the messages that a conversation begins with."""
        return [
            Message(role="system", content=self.instruction),
            Message(role="user", content=question),
        ]

    def request(self, messages: Sequence[Message]) -> dict[str, Any]:
        """Return the protocol's arguments of a chat completion: ``messages``, and tools or stop strings."""
        tools = {"tools": [RETRIEVE_TOOL]} if self.offer_tool else {}
        return {"messages": self._chat(messages), **tools}

    def _chat(self, messages: Sequence[Message]) -> list[dict[str, JsonValue]]:
        return chat_messages(
            messages,
            with_reasoning=self.history_reasoning,
            history_reasoning=self.options.history_reasoning,
        )

    def characters(self, messages: Sequence[Message]) -> int:
        """Return the length of a request, with an estimate of what a template writes around it."""
        texts: list[str] = []
        for message in self._chat(messages):
            reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
            texts.append(f"{message['content']}{reasoning}")
        for message in messages:
            texts += [call.name + call.arguments for call in message.tool_calls]

        characters = _MESSAGE_CHARACTERS * len(texts) + sum(map(len, texts))
        return _SCHEMA_CHARACTERS * self.offer_tool + characters

    def turn(self, completion: Completion, messages: Sequence[Message]) -> Message:
        """Return the model's reply to a conversation; its calls have ids that are new to the conversation."""
        message = completion.message
        content = message.text

        if message.tool_calls:
            # Some servers repeat the calls; a template would render them twice. A thought may quote one
            before, closed, after = content.rpartition(CLOSE_THINK)
            content = before + closed + _RAW_CALLS.sub("", after)
            # The template writes the newline between a text and its calls
            content = content.removesuffix("\n")

        # Servers may number the calls of every turn anew
        used_ids: set[str] = set()
        for earlier in messages:
            used_ids.update(call.id for call in earlier.tool_calls)

        calls: list[ToolCall] = []
        # OpenRouter's reasoning_details of Gemini name the call that they belong to
        provider_fields = _as_text(message.provider_fields)

        for call in message.tool_calls or ():
            id_ = call.id
            is_kept = id_ and (_KEPT_ID.fullmatch(id_) or json.dumps(id_) in provider_fields)
            if not id_ or id_ in used_ids or not is_kept:
                names = map(call_id, itertools.count(1))
                id_ = next(name for name in names if name not in used_ids)

            used_ids.add(id_)
            calls.append(
                ToolCall(
                    id=id_,
                    name=_AROUND_NAME.sub("", call.function.name),
                    arguments=_compact(call.function.arguments),
                    provider_fields=_as_text(call.returned_fields),
                )
            )

        turn = assistant_turn(
            content, message.thought, tuple(calls), begins_in_thought=self.begins_in_thought
        )
        return turn.model_copy(update={"provider_fields": provider_fields})

    def search_turn(self, query: str, number: int = 1, note: str = "") -> Message:
        """Return a conversation's search of this number as a model would write it, after a note."""
        return Message(role="assistant", content=note, tool_calls=(search_call(query, number),))

    def complete(self, turn: Message) -> bool:
        """Return whether a turn can be carried out although its token limit ended it."""
        return has_answer_tags(spoken_text(turn))

    def correction(self, turn: Message) -> None:
        """Return what the model reads after an invalid action, None after a valid one; it may raise RolloutStopped."""
        text = spoken_text(turn)
        if turn.tool_calls or has_answer_tags(text):
            return
        # Channels that call tools are never said, and a reasoning parser may swallow a call
        hidden = turn.reasoning or ("" if OPEN_THINK in turn.content else turn.content)
        advice = left_call(text if text.strip() else hidden)
        if advice:
            warn_once(advice)
            raise RolloutStopped(StopReason.TOOL_CALL_UNPARSABLE, advice)
        if "<tool_call>" in text:
            raise RolloutStopped(
                StopReason.TOOL_CALL_UNPARSABLE, "a tool call that the server could not parse"
            )

        if not split_thought(turn).closed:
            raise RolloutStopped(StopReason.NO_ANSWER_TAG, "a thought that was never closed")
        if not text.strip() and turn.reasoning:
            raise RolloutStopped(StopReason.NO_ANSWER_TAG, _all_reasoning(turn.reasoning))
        if not text:
            raise RolloutStopped(StopReason.NO_ANSWER_TAG, "an empty turn")

    def observation(self, passages: Sequence[PassageText]) -> str:
        """Return what the model reads after a search: passages, best first."""
        return format_passages(passages)

    def notice(self, text: str, observation: str = "") -> str:
        """Return what the model reads instead of passages, or after an observation."""
        return f"{observation}\n\n{text}" if observation else text


def _all_reasoning(reasoning: str) -> str:
    """Return what to do about a turn that a server returned in its reasoning field alone; an answer in it is warned of.

    vLLM does so with thoughts that never end, and with a parser that does not fit the model or its
    template.
    """
    if not has_answer_tags(reasoning):
        return f"a turn without a text: all {len(reasoning)} characters are in the reasoning field"
    warn_once(_ANSWER_IN_REASONING)
    return _ANSWER_IN_REASONING


def _as_text(fields: dict[str, JsonValue]) -> str:
    return json.dumps(fields, ensure_ascii=False) if fields else ""


def _compact(arguments: str) -> str:
    """Return arguments as `json.dumps` writes and training renders them; what is no storable JSON stays as it is."""
    try:
        value = json.loads(arguments)
        # Some servers write JSON in a text of JSON
        value = json.loads(value) if isinstance(value, str) else value
        compact = json.dumps(value, ensure_ascii=False)
        compact.encode()
    except (ValueError, RecursionError):
        return arguments

    return compact


@dataclass(frozen=True, slots=True)
class SearchTags:
    """Tags in plain text, with the methods of :class:`FunctionCalling`; ``instruction`` stands before the question."""

    instruction: str

    def opening(self, question: str) -> list[Message]:  # noqa: D102
        return [Message(role="user", content=f"{self.instruction}\n\nQuestion: {question}")]

    def request(self, messages: Sequence[Message]) -> dict[str, Any]:  # noqa: D102
        chat = [{"role": "user", "content": messages[0].content}]
        options: dict[str, Any] = {"include_stop_str_in_output": True}
        if text := "".join(message.content for message in messages[1:]):
            chat.append({"role": "assistant", "content": text})
            options |= {"continue_final_message": True, "add_generation_prompt": False}
        return {"messages": chat, "stop": list(_STOPS), "extra_body": options}

    def characters(self, messages: Sequence[Message]) -> int:  # noqa: D102
        return _TAGS_CHARACTERS + sum(len(message.content) for message in messages)

    def turn(self, completion: Completion, messages: Sequence[Message]) -> Message:
        """Return a completion up to its first closing tag, with the search that it asks for as a tool call."""
        text = completion.message.text
        if end := re.search("|".join(_STOPS), text):
            text = text[: end.end()]
        elif (stop := completion.stop_string) in _STOPS:
            # The server stopped at it and left it out
            text += stop

        # A server's reasoning parser took it out of the text
        if thought := completion.message.thought:
            text = f"<think>{thought}</think>{text}"
        action = _ACTION.search(text)
        query = action[2].strip() if action and action[1] == "search" else ""
        calls = (search_call(query, len(messages)),) if query else ()
        return Message(role="assistant", content=text, tool_calls=calls)

    def search_turn(self, query: str, number: int = 1, note: str = "") -> Message:  # noqa: D102
        thought = f"<think>{note}</think>\n" if note else ""
        text = f"{thought}<search>{query}</search>"
        return Message(role="assistant", content=text, tool_calls=(search_call(query, number),))

    def complete(self, turn: Message) -> bool:  # noqa: D102
        return _ACTION.search(turn.content) is not None

    def correction(self, turn: Message) -> str | None:  # noqa: D102
        action = _ACTION.search(turn.content)
        return None if action and (turn.tool_calls or action[1] == "answer") else INVALID_ACTION

    def observation(self, passages: Sequence[PassageText]) -> str:  # noqa: D102
        documents: list[str] = []
        for rank, passage in enumerate(passages, 1):
            title, _, text = passage.contents.partition("\n")
            documents.append(f"Doc {rank}(Title: {title}) {text}")

        return self.notice("\n".join(documents) or NO_PASSAGES)

    def notice(self, text: str, observation: str = "") -> str:  # noqa: D102
        return f"{observation}\n\n<information>{text}</information>\n\n"


AgentProtocol: TypeAlias = FunctionCalling | SearchTags


def open_protocol(
    config: AgentConfig,
    *,
    offer_tool: bool = True,
    begins_in_thought: bool = False,
    options: RequestOptions = USUAL,
) -> AgentProtocol:
    """Return the protocol that the settings name, with their prompt; ``options`` are those of the model's requests."""
    instruction = config.load_instruction()
    if config.protocol == FUNCTION_CALLING:
        return FunctionCalling(
            instruction, config.history_reasoning, offer_tool, begins_in_thought, options
        )
    return SearchTags(instruction)


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn; ``usage`` is None where tokens are not counted, ``truncated``: the token limit ended the turn."""

    turn: Message
    usage: TokenUsage | None = None
    truncated: bool = False


class RolloutPolicy(Protocol):
    """Writes the turns of one rollout; made anew for every rollout."""

    async def reply(self, messages: Sequence[Message], max_tokens: int) -> Reply:
        """Return the next turn of a conversation, of at most ``max_tokens`` tokens."""
        ...


@dataclass(frozen=True, slots=True)
class EndpointPolicy(RolloutPolicy):
    """A model behind an endpoint; a ``seed`` of None leaves sampling to the server."""

    client: openai.AsyncOpenAI
    endpoint: Endpoint
    protocol: AgentProtocol
    temperature: float
    seed: int | None = None
    logprobs: bool = False

    async def reply(self, messages: Sequence[Message], max_tokens: int) -> Reply:
        """Return the next turn; raises as :func:`complete`."""
        request = self.protocol.request(messages)
        request |= {"temperature": self.temperature, "max_tokens": max_tokens}
        if self.seed is not None:
            request["seed"] = self.seed
        if self.logprobs:
            request["logprobs"] = True
        completion = await complete(self.client, self.endpoint, sample=self.seed, **request)
        turn = self.protocol.turn(completion, messages)
        truncated = completion.truncated(max_tokens) and not self.protocol.complete(turn)
        return Reply(turn, completion.usage, truncated)
