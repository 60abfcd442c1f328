"""Messages and the search tool in the Chat Completions form.

A server returns the reasoning of a turn in one of three places: a field of its own, where it runs a
reasoning parser (vLLM calls it ``reasoning``, older versions and others ``reasoning_content``; both
are :attr:`Message.reasoning` here); in the text between ``<think>`` and ``</think>``; or in the
text before ``</think>`` alone, where the opening tag belongs to the prompt, as with Qwen3's
Thinking models. Models of the gpt-oss family have channels instead, which a server without their
parser leaves in the text, with or without their marks; :data:`OTHER_THOUGHTS` lists the tags of
further models. :func:`split_thought` reads all of it, and a thought that was never
closed: everything after its opening tag is thought. :func:`spoken_text` is what a turn says, and
the only text that may hold an answer. Agent, rewards, training rows and IFEval read thoughts with
these two functions alone.

Where the prompt opens the thought, a text without a closing tag may be a thought that was cut or an
answer without one: the text alone does not say. A server that this project starts is known; of any
other one the option ``begins_in_thought`` says it.

Requests carry reasoning in the fields and nowhere else: Qwen3's templates read the field first, and
newer ones would render a block inside the text a second time. Both names are sent, because vLLM
from 0.16 on reads ``reasoning`` alone, and others ``reasoning_content`` alone.

The tool's schema is part of every prompt that a model is trained on and served with. So it is
frozen here, and the MCP server's own schema, which is longer (titles, defaults, an argument for
callers), is not used.
"""

import json
import logging
import re
from collections.abc import Iterable
from functools import cache
from typing import Final, NamedTuple, Protocol

from pydantic import JsonValue

from deepsearch_rl.core.records import Message, ToolCall

_LOG = logging.getLogger(__name__)
OPEN_THINK = "<think>"
CLOSE_THINK = "</think>"
RETRIEVE_TOOL_NAME: Final = "retrieve"
# The tool in OpenAI's function format. Changing a character of it needs new training of every
# model.
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


# Tags of models whose templates do not know ``<think>``, and where they come from.
#
# They stay in the text of a turn, which such a template renders as it is, but what they hold was
# not said.
OTHER_THOUGHTS = (
    ("<thinking>", "</thinking>", "Claude's prompts and models trained on its answers"),
    ("<thought>", "</thought>", "Gemma, ExaOne; Gemini's OpenAI endpoint"),
    ("<reasoning>", "</reasoning>", "prompts of GRPO recipes"),
    ("<start_working_out>", "<end_working_out>", "prompts of Unsloth's GRPO notebooks"),
    ("<ifm|think>", "</ifm|think>", "K2: vLLM's k2_horizon_reasoning_parser"),
    ("<ifm|think_fast>", "</ifm|think_fast>", "K2 at medium effort"),
    ("<ifm|think_faster>", "</ifm|think_faster>", "K2 at low effort"),
    ("<seed:think>", "</seed:think>", "Seed-OSS: vLLM's seedoss_reasoning_parser"),
    ("<mm:think>", "</mm:think>", "MiniMax M3: vLLM's minimax_m3_reasoning_parser"),
    ("<longcat_think>", "</longcat_think>", "LongCat: vLLM's longcat_reasoning_parser"),
    ("<think:opensource>", "</think:opensource>", "Hunyuan: SGLang's reasoning_parser"),
    ("[THINK]", "[/THINK]", "Magistral: vLLM's mistral_reasoning_parser"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7", "Kimi: SGLang's reasoning_parser"),
    ("<|channel>", "<channel|>", "Gemma 4: lmstudio-bug-tracker#2013"),
    ("<|START_THINKING|>", "<|END_THINKING|>", "Command: vLLM's cohere_command_reasoning_parser"),
    ("<|inner_prefix|>", "<|inner_suffix|>", "Apertus: vLLM's apertus_reasoning_parser"),
    ("<|think:start|>", "<|think:end|>", "Solar: vLLM's solar_open2_reasoning_parser"),
    ("<|begin_of_thought|>", "<|end_of_thought|>", "Sky-T1 and OpenThinker: their system prompt"),
    ("<unused94>", "<unused95>", "MedGemma: its model card"),
    ("[unused16]", "[unused17]", "openPangu: its model card"),
)
_ATTRIBUTE = r"""\s+[\w:-]+\s*=\s*(?:"[^"<>]*"|'[^'<>]*'|[^\s"'<>]+)"""


def _variants(tag: str) -> str:
    """Return a pattern of a tag as models write it: in any case, with white space or attributes in front of its end."""
    if not tag.endswith(">"):
        return re.escape(tag)
    attributes = "" if tag.startswith("</") else f"(?:{_ATTRIBUTE})*"
    return rf"{re.escape(tag.removesuffix('>'))}{attributes}\s*>"


_OPEN_THINK = re.compile(_variants(OPEN_THINK), re.IGNORECASE)
_CLOSE_THINK = re.compile(_variants(CLOSE_THINK), re.IGNORECASE)
_OPENING_TAGS, _CLOSING_TAGS, _ = zip((OPEN_THINK, CLOSE_THINK, ""), *OTHER_THOUGHTS, strict=True)
_OPENING = "|".join(map(_variants, _OPENING_TAGS))
_CLOSING = "|".join(map(_variants, _CLOSING_TAGS))
_THINK_TAG = re.compile(f"(?P<opening>{_OPENING})|(?P<closing>{_CLOSING})", re.IGNORECASE)
_BLANK_LINES = re.compile(r"\A\s*\n")
# A message of the harmony format (gpt-oss): analysis is thought, final is said, commentary calls
# tools
_CHANNEL = re.compile(
    r"<\|channel\|>(?P<header>[^<]*(?:<\|constrain\|>[^<]*)?)<\|message\|>(?P<text>.*?)"
    r"(?:(?P<ended>(?=<\|(?:end|return|call|start|channel)\|>))|\Z)",
    re.DOTALL,
)
_CHANNEL_MARK = "<|channel|>"
# What is left of such marks where a server drops special tokens: no word goes on like this
_BARE_MARK = re.compile(
    r"\A\s*(?:assistant)?analysis(?=[A-Z\"'<]|.*assistantfinal)|assistant(?:analysis|commentary|final)",
    re.DOTALL,
)
_UNOPENED = (
    "A turn ends a thought that it did not begin. If the model's prompts open its thoughts, a turn "
    "that is cut in its thought cannot be told from an answer: say so with begins_in_thought: true "
    "among the options of its requests (docs/contracts.md, section 5)."
)


class Thought(NamedTuple):
    """The reasoning of a turn without tags and outer newlines, None where there is none, and the other text."""

    reasoning: str | None
    text: str
    # False where the turn ended in the middle of its thought, so that it says nothing
    closed: bool = True


def split_thought(message: Message) -> Thought:
    """Return the reasoning of a turn and the text after it, wherever the server put the reasoning.

    Only a block at the very beginning of the text is reasoning; it is dropped if it is empty or
    repeats the field. A block without a closing tag is all of the text. A text without such a block
    stays as it is.
    """
    block = Thought(None, message.content)
    if message.role != "assistant":
        return block
    content = message.content
    channels = _split_channels(content)
    opening = _OPEN_THINK.search(content)
    closing = _CLOSE_THINK.search(content)
    begins = opening is not None and not content[: opening.start()].strip()
    start = opening.end() if opening and begins else 0

    if channels is not None:
        block = channels
    elif closing and (begins or opening is None or opening.start() > closing.start()):
        # The prompt opened it where no tag begins it
        thought = _thought(content[start : closing.start()])
        block = Thought(thought, content[closing.end() :].lstrip("\n"))
    elif begins and closing is None:
        block = Thought(_thought(content[start:]), "", closed=False)

    reasoning = _thought(message.reasoning or "")
    if reasoning is None:
        return block
    # Some servers give a thought twice, in its field and in the text: the text loses its copy
    is_block = channels is not None or block.reasoning in (None, reasoning)
    text = block.text if is_block else content
    return Thought(reasoning, text.lstrip("\n"), block.closed)


def _split_channels(text: str) -> Thought | None:
    """Return what a turn in channels thinks and says; None for a turn without any."""
    if _CHANNEL_MARK not in text:
        # With its marks, the text is read as any other
        text = _BARE_MARK.sub(_whole_mark, text)
    if _CHANNEL_MARK not in text:
        return None

    # The prompt opened what stands before the first mark
    thoughts = [text.partition("<|")[0]]
    answers: list[str] = []
    closed = False

    for message in _CHANNEL.finditer(text):
        channel = message["header"].split()[:1]
        if channel == ["final"]:
            answers.append(message["text"])
        elif channel == ["analysis"]:
            thoughts.append(message["text"])
        closed = channel != ["analysis"] or message["ended"] is not None

    return Thought(_thought("\n".join(filter(None, thoughts))), "".join(answers), closed)


def _whole_mark(bare: re.Match[str]) -> str:
    channel = bare[0].strip().removeprefix("assistant")
    return f"<|start|>assistant{_CHANNEL_MARK}{channel}<|message|>"


def _thought(text: str) -> str | None:
    """Return a thought without the newlines around it, which are the template's; None where it is blank.

    A blank line with white space in front goes too: it would share a token with the template's
    newline. Other white space is the model's, and is sent back as it was sampled.
    """
    return _BLANK_LINES.sub("", text).rstrip("\n") if text.strip() else None


def spoken_text(message: Message) -> str:
    """Return the text of a turn outside all of its thoughts, wherever they stand, closed or not."""
    text = split_thought(message).text
    spoken: list[str] = []
    depth = 0
    end = 0

    for tag in _THINK_TAG.finditer(text):
        if depth == 0:
            spoken.append(text[end : tag.start()])
        if tag["opening"]:
            depth += 1
        elif depth > 0:
            depth -= 1
        else:
            # The prompt opened it: the text before it was a thought, too
            spoken.clear()

        end = tag.end()

    if depth == 0:
        spoken.append(text[end:])
    return "".join(spoken)


def has_unclosed_thought(messages: Iterable[Message]) -> bool:
    """Return whether a turn ended, or called a tool, in the middle of its thought: a template would close it."""
    return any(not split_thought(message).closed for message in messages)


@cache
def warn_once(text: str) -> None:
    """Log a warning that concerns a whole run."""
    _LOG.warning("%s", text)


def assistant_turn(
    text: str,
    reasoning: str | None,
    calls: tuple[ToolCall, ...] = (),
    *,
    begins_in_thought: bool = False,
) -> Message:
    """Return a turn as a model wrote it.

    ``begins_in_thought``: the prompt ends in an opening tag, and the server leaves thoughts in the
    text. A text without a closing tag is then an unclosed thought, and gets the prompt's tag, by
    which every reader knows it.
    """
    closing = _CLOSE_THINK.search(text)
    before = text[: closing.start()] if closing else text

    if reasoning is None and begins_in_thought:
        if closing is None and not _OPEN_THINK.match(text.lstrip()):
            text = OPEN_THINK + text
    elif reasoning is None and closing and not _OPEN_THINK.search(before):
        warn_once(_UNOPENED)

    return Message(role="assistant", content=text, reasoning=reasoning, tool_calls=calls)


def spoken_reply(text: str, reasoning: str | None, *, begins_in_thought: bool) -> str:
    """Return what a model's reply says outside of its thoughts; the arguments are :func:`assistant_turn`'s."""
    return spoken_text(assistant_turn(text, reasoning, begins_in_thought=begins_in_thought))


def chat_messages(
    messages: Iterable[Message],
    *,
    with_reasoning: bool = False,
    history_reasoning: str = "agent",
) -> list[dict[str, JsonValue]]:
    """Return messages as requests carry them: texts may be empty, but not null, which some servers refuse.

    ``history_reasoning``: the option of this name of a model's requests; its ``agent`` leaves it to
    ``with_reasoning``. What a server alone understands goes back to it.
    """
    chat: list[dict[str, JsonValue]] = []
    for message in messages:
        reasoning, text, _ = split_thought(message)
        fields: dict[str, JsonValue] = {"role": message.role, "content": text}
        fields |= json.loads(message.provider_fields or "{}")
        if history_reasoning == "omit":
            fields.pop("reasoning_details", None)
        elif reasoning is not None and history_reasoning != "agent":
            fields[history_reasoning] = reasoning
        elif reasoning is not None and with_reasoning:
            # Servers and templates read either of the two names
            fields |= {"reasoning": reasoning, "reasoning_content": reasoning}
        if message.tool_call_id is not None:
            fields["tool_call_id"] = message.tool_call_id
        if message.tool_calls:
            fields["tool_calls"] = list(map(_chat_call, message.tool_calls))

        chat.append(fields)

    return chat


def _chat_call(call: ToolCall) -> dict[str, JsonValue]:
    """Return a call as requests carry it."""
    kept: dict[str, JsonValue] = json.loads(call.provider_fields or "{}")
    of_function = kept.get("function")
    function: dict[str, JsonValue] = dict(of_function) if isinstance(of_function, dict) else {}
    function |= {"name": call.name, "arguments": call.arguments}
    return kept | {"id": call.id, "type": "function", "function": function}


def call_id(number: int) -> str:
    """Return an id in the strictest provider's form, nine letters and digits (langchain#24668)."""
    return f"call{number:05}"


def search_call(query: str, number: int) -> ToolCall:
    """Return the call of a search; ``number`` distinguishes it from others of a conversation."""
    arguments = json.dumps({"query": query}, ensure_ascii=False)
    return ToolCall(id=call_id(number), name=RETRIEVE_TOOL_NAME, arguments=arguments)


# The text for a model when a search succeeded without a hit
NO_PASSAGES = "No passages found."


class PassageText(Protocol):
    """A chunk, or anything else with a title, a newline and a text."""

    @property
    def contents(self) -> str:
        """Title, newline and text."""
        ...


def format_passages(passages: Iterable[PassageText]) -> str:
    """Write passages, best first, as ``[rank] Title`` and text; a blank line stands between two of them."""
    texts = [f"[{rank}] {passage.contents}" for rank, passage in enumerate(passages, 1)]
    return "\n\n".join(texts) or NO_PASSAGES
