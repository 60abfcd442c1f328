"""The body of a chat completion's response, whole or a stream of events, as one object.

A server may send events although it was asked for a whole reply, and the other way round, so the
body itself says which it is.

Servers differ in how they tell the tool calls of a stream apart. OpenAI numbers them with ``index``
and gives id and name once. Others leave ``index`` out (openai-python#2806, #3246), number every
call 0 (smolagents#1569, #1958, nanobot#3943), or repeat id and name in every piece. So a piece
continues the last call of its number or id, unless it has another id or that call is complete.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from deepsearch_rl.chat.model_failures import FailedGenerationError
from deepsearch_rl.core.records import json_object

END_OF_STREAM = "[DONE]"
# Fields that a piece repeats and does not continue
_REPEATED = frozenset(
    {"format", "id", "index", "name", "role", "signature", "thought_signature", "type"}
)


def read_body(body: bytes) -> dict[str, Any]:
    """Return the fields of a response.

    Raise FailedGenerationError where it is no JSON object, or a stream that cannot be read or that
    ended before the answer did.
    """
    try:
        text = body.decode("utf-8-sig").strip()
        is_stream = re.match(r"(data|event|id|retry)?:", text) is not None
        fields = _join(_events(text)) if is_stream else json.loads(text)
        if (
            isinstance(fields, dict)
            and not is_stream
            and fields.get("object") == "chat.completion.chunk"
        ):
            fields = _join([fields, None])
    except (ValueError, RecursionError) as error:
        raise FailedGenerationError(f"the endpoint's response is not JSON ({error})") from error

    if not isinstance(fields, dict):
        raise FailedGenerationError("the endpoint's response is not JSON with fields")
    return fields


def _events(text: str) -> Iterator[dict[str, Any] | None]:
    """Yield the objects of a stream, and None for the mark of its end; pings and comments are skipped."""
    for event in re.split(r"\n{2,}", re.sub(r"\r\n?", "\n", text)):
        lines = event.split("\n")
        data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
        is_ping = any(re.match(r"event: ?(ping|keep)", line) for line in lines)
        if data == [END_OF_STREAM]:
            yield None
        elif any(data) and not is_ping:
            fields = json.loads("\n".join(data))
            if isinstance(fields, dict):
                yield fields


def _join(events: Iterable[dict[str, Any] | None]) -> dict[str, Any]:
    """Return the reply whose pieces the events of a stream are; of its choices, only the first was asked for."""
    reply: dict[str, Any] = {}
    choice: dict[str, Any] = {}
    message: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    is_ended = False

    for event in events:
        if event is None:
            # Some servers name no reason after calls; without the mark, the last may be cut
            is_ended = is_ended or (bool(calls) and all(map(_is_complete, calls)))
            break
        reply |= {name: value for name, value in event.items() if value is not None}
        choices = event.get("choices")
        for piece in choices if isinstance(choices, list) else ():
            if not isinstance(piece, dict) or piece.get("index") not in (None, 0, "0"):
                continue
            choice |= {name: value for name, value in piece.items() if value is not None}
            delta = piece.get("delta") or piece.get("message")
            for name, value in delta.items() if isinstance(delta, dict) else ():
                if name != "tool_calls":
                    _add(message, name, value)
                elif isinstance(value, list):
                    for call in filter(_is_call, value):
                        _add_call(calls, call)
        is_ended = is_ended or bool(choice.get("finish_reason") or reply.get("error"))

    if not is_ended and (choice or not {"message", "detail"} & reply.keys()):
        said = reply.get("message")
        raise FailedGenerationError(
            "the provider's stream ended before the answer did" + (f": {said}" if said else "")
        )
    message |= {"tool_calls": calls} if calls else {}
    return reply | {"choices": [{**choice, "message": message}] if choice else None}


def _add(whole: dict[str, Any], name: str, value: Any) -> None:
    """Continue a field by its next piece: a text, an object, or a list, whose items may have an ``index``."""
    before = whole.get(name)
    if before is None or name in _REPEATED:
        whole[name] = before if value is None else value
    elif isinstance(before, str) and isinstance(value, str):
        whole[name] = before + value
    elif isinstance(before, dict) and isinstance(value, dict):
        for key, part in value.items():
            _add(before, key, part)
    elif isinstance(before, list) or isinstance(value, list):
        whole[name] = _joined_items(_as_items(before), _as_items(value))
    elif value is not None:
        whole[name] = value


def _as_items(value: Any) -> list[Any]:
    """Return a list of parts; a text is one (Mistral sends a list while it thinks, and then texts)."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}] if value else []
    return value if isinstance(value, list) else []


def _joined_items(items: list[Any], more: list[Any]) -> list[Any]:
    joined = list(items)
    for item in more:
        if joined and _continues(item, joined[-1]):
            for key, part in item.items():
                _add(joined[-1], key, part)
        else:
            joined.append(item)
    return joined


def _continues(item: Any, last: Any) -> bool:
    """Return whether an item of a list is a piece of the last one.

    Its number says so. LiteLLM numbers no pieces of Claude's thoughts, which end with their
    signature (litellm#29428).
    """
    if not isinstance(item, dict) or not isinstance(last, dict):
        return False
    if any(item.get(name) != last.get(name) for name in ("type", "index")):
        return False
    return item.get("index") is not None or ("thinking" in item and not last.get("signature"))


def _is_call(piece: Any) -> bool:
    return isinstance(piece, dict) and isinstance(piece.get("function"), dict)


def _add_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    """Continue the call that a piece belongs to, or begin another one."""
    index = piece.get("index")
    at_place = [call for call in calls if index is None or call.get("index") in (None, index)]
    same_id = [call for call in at_place if piece.get("id") and call.get("id") == piece["id"]]
    call = (same_id or at_place or [None])[-1]
    function = piece["function"]
    name = function.get("name")
    arguments = _arguments(function)

    if call is None or _begins(call, piece):
        name = name or (call and call["function"]["name"])
        calls.append({**piece, "function": {**function, "name": name, "arguments": arguments}})
        return

    whole = call["function"]
    # A name in pieces ends before the arguments begin; what comes later repeats it
    if name and name != whole["name"] and not whole["arguments"]:
        whole["name"] = (whole["name"] or "") + name
    if arguments and whole["arguments"] == "{}":
        # It held the place
        whole["arguments"] = arguments
    elif not _is_complete(call):
        whole["arguments"] += arguments
    for key, value in function.items():
        if key not in ("name", "arguments"):
            _add(whole, key, value)
    for key, value in piece.items():
        if key not in ("function", "id"):
            _add(call, key, value)
    call["id"] = call.get("id") or piece.get("id")


def _begins(call: dict[str, Any], piece: dict[str, Any]) -> bool:
    """Return whether a piece at the place of a call begins another one."""
    function = piece["function"]
    arguments = _arguments(function).strip()
    has_other_id = bool(piece.get("id") and call.get("id")) and piece["id"] != call["id"]
    if _is_complete(call):
        is_repeated = arguments == call["function"]["arguments"].strip()
        begins_anew = bool(arguments) and (has_other_id or not is_repeated)
        return begins_anew or (has_other_id and bool(function.get("name")))
    # Some servers draw an id for every piece
    return has_other_id and bool(function.get("name")) and not call["function"]["arguments"]


def _arguments(function: dict[str, Any]) -> str:
    """Return the arguments of a piece as text, also where the server sends an object."""
    arguments = function.get("arguments")
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _is_complete(call: dict[str, Any]) -> bool:
    return bool(json_object(call["function"]["arguments"]))
