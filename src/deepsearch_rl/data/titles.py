"""The one rule by which titles of documents are compared.

Question sets and corpora spell the same title in many ways: in quotes (wiki-18), with doubled or
curled quotes, ``New_York``, ``AT&amp;T``, ``Zo%C3%AB``, composed and decomposed accents, invisible
characters. Accents count: Resume and Résumé are different titles.
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
    """Return a key that all spellings of a title share; empty if it has only quotes and blanks."""
    plain = _BACKSLASH.sub(_unescaped, html.unescape(html.unescape(title)))
    plain = _PERCENT.sub(_decoded, plain)
    # Before NFKC, which turns a double prime into two single ones
    plain = plain.translate(_DOUBLE_QUOTES).translate(_LIKE_ASCII)
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", plain).casefold())
    # Zero-width blanks, soft hyphens, writing directions, byte order marks
    plain = "".join(letter for letter in plain if unicodedata.category(letter) != "Cf")
    return " ".join(plain.translate(_LIKE_ASCII).split())


def _unescaped(match: re.Match[str]) -> str:
    code, character = match.groups()
    if code:
        return chr(int(code, 16))
    return " " if character in "nrt" else character


def _decoded(match: re.Match[str]) -> str:
    """Return percent-encoded bytes as text, unchanged if they are not UTF-8."""
    try:
        return unquote(match[0], errors="strict")
    except UnicodeDecodeError:
        return match[0]
