r"""The JSON of an endpoint's answer, also of one that has cut a text in the middle of a character.

An emoji is two escapes in JSON (``\ud83d\ude00``). A server that cuts excerpts by UTF-16 units may
leave the first half alone, which is no character, and for which strict parsers refuse the whole answer.
"""

import re

import orjson
from pydantic import JsonValue

# A backslash that is escaped, or a whole pair, or half of one
_ESCAPES = re.compile(
    r"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


def parse_answer(text: str) -> JsonValue:
    """Return the value of a JSON text, in which half of a surrogate pair becomes ``?``; raise as orjson."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # What was wrong is said by the second attempt, unless it was such a half
        return orjson.loads(_ESCAPES.sub(lambda match: match[1] or "?", text))
