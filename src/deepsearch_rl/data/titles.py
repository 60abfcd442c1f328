"""When two titles are the same: the one rule by which titles of documents are compared.

Sets and corpora spell one title in many ways: in quotes (wiki-18), with quotes doubled or curled,
``New_York``, ``AT&amp;T``, ``Zo%C3%AB``, an accent as a part of its letter or as a mark of its own,
with marks that nobody sees. Accents themselves count: Resume and Résumé are two titles.
"""

import html
import re
import unicodedata
from functools import lru_cache
from urllib.parse import unquote

_PERCENT = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_BACKSLASH = re.compile(r"\\u([0-9A-Fa-f]{4})|\\(.)")
_DOUBLE_QUOTES = dict.fromkeys(
    map(ord, '"\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033\u301d\u301e\u301f\uff02')
)
_LIKE_ASCII = {
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b\u2032\u02bc`\u00b4"), "'"),
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"), "-"),
    ord("_"): " ",
    # Of a fraction
    ord("\u2044"): "/",
}


@lru_cache(maxsize=65_536)
def title_key(title: str) -> str:
    """Return what is the same for all spellings of a title; empty where a title has nothing but quotes and blanks."""
    plain = _BACKSLASH.sub(_unescaped, html.unescape(html.unescape(title)))
    plain = _PERCENT.sub(_decoded, plain)
    # Before the compatible forms, which take a double prime for two single ones.
    plain = plain.translate(_DOUBLE_QUOTES).translate(_LIKE_ASCII)
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", plain).casefold())
    # Marks that nobody sees: zero-width blanks, soft hyphens, directions of writing, a byte order
    # mark.
    plain = "".join(letter for letter in plain if unicodedata.category(letter) != "Cf")
    return " ".join(plain.translate(_LIKE_ASCII).split())


def _unescaped(match: re.Match[str]) -> str:
    code, character = match.groups()
    if code:
        return chr(int(code, 16))
    return " " if character in "nrt" else character


def _decoded(match: re.Match[str]) -> str:
    """Return the letters that escaped bytes stand for; bytes that are no UTF-8 stay as they are."""
    try:
        return unquote(match[0], errors="strict")
    except UnicodeDecodeError:
        return match[0]
