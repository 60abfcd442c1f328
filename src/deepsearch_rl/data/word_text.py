"""The text of a Word file as its final view shows it, with all tracked changes accepted.

python-docx opens the file, and its elements are walked here, whatever stands around them: tracked
insertions and moves, fields, smart tags, content controls, text boxes, tables in tables, footnotes
and endnotes. Comments, headers and footers are left out.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from docx.oxml import parse_xml

if TYPE_CHECKING:
    from docx.document import Document
    from docx.oxml.xmlchemy import BaseOxmlElement as Element

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_PARAGRAPH, _TABLE, _ROW, _CELL, _BOX = (
    f"{_W}{name}" for name in ("p", "tbl", "tr", "tc", "txbxContent")
)
_TEXTS = frozenset({f"{_W}t", "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"})
_ALTERNATIVES = "{http://schemas.openxmlformats.org/markup-compatibility/2006}AlternateContent"
# Properties, what was deleted or moved away, and reading aids above a word
_NOT_SHOWN = frozenset(
    f"{_W}{name}" for name in ("pPr", "rPr", "tblPr", "sdtPr", "del", "moveFrom", "rt")
)
_CHARACTERS = {
    f"{_W}tab": "\t",
    f"{_W}ptab": "\t",
    f"{_W}br": "\n",
    f"{_W}cr": "\n",
    f"{_W}noBreakHyphen": "-",
}
_SYMBOL = f"{_W}sym"
# What symbol fonts (Symbol, Wingdings) have of their own, which is no letter elsewhere
_PRIVATE = range(0xE000, 0xF900)
# By the last part of a relationship's type
_UNREAD = {
    "chart": "a chart",
    "diagramData": "a diagram",
    "aFChunk": "an embedded file",
    "oleObject": "an embedded object",
    "package": "an embedded object",
}
# Fields whose value is in no text
_CHOICES = (f"{_W}checkBox", f"{_W}ddList")


class Block(NamedTuple):
    """A paragraph with the name of its style, or a table row: its cells, joined by ``|``."""

    style: str
    text: str


def word_blocks(document: "Document") -> Iterator[Block]:
    """Yield the paragraphs and table rows of the body, in order, and the footnotes and endnotes after them."""
    styles = {style.style_id: style.name or "" for style in document.styles}
    for style_id, text in _blocks(document.element.body):
        yield Block(styles.get(style_id, ""), text)

    for relation in document.part.rels.values():
        if relation.reltype.endswith(("/footnotes", "/endnotes")):
            for _, text in _blocks(parse_xml(relation.target_part.blob)):
                if text.strip():
                    yield Block("", text)


def unread_parts(document: "Document") -> str:
    """Return what of a document :func:`word_blocks` does not read; empty if nothing."""
    body = document.element.body
    kinds = [relation.reltype.rpartition("/")[2] for relation in document.part.rels.values()]
    unread = [_UNREAD[kind] for kind in kinds if kind in _UNREAD]
    unread += ["a check box or drop-down list" for _ in body.iter(*_CHOICES)]
    unread += ["a symbol" for symbol in body.iter(_SYMBOL) if not _characters(symbol)]
    counts = Counter(unread)
    named = [what if count == 1 else f"{what} ({count} times)" for what, count in counts.items()]
    return f"without {', '.join(named)}" if named else ""


def _blocks(parent: "Element") -> Iterator[tuple[str, str]]:
    """Yield style id and text of the paragraphs and rows below an element, text boxes after their paragraph."""
    for child in _shown(parent):
        if child.tag == _PARAGRAPH:
            inner = list(_below(child, _BOX))
            yield child.style or "", "".join(map(_characters, inner))
            for box in inner:
                if box.tag == _BOX:
                    yield from _blocks(box)
        elif child.tag == _TABLE:
            yield from (("", row) for row in _rows(child))
        else:
            yield from _blocks(child)


def _rows(table: "Element") -> Iterator[str]:
    """Yield the rows of a table; a cell that spans rows is in each of them, one that spans columns once."""
    by_column: dict[int, str] = {}
    for row in _below(table, _ROW):
        if row.tag != _ROW or row.find(f"{_W}trPr/{_W}del") is not None:
            continue

        cells: list[str] = []
        column = row.grid_before
        for cell in _below(row, _CELL):
            if cell.tag != _CELL:
                continue
            if cell.vMerge != "continue":
                by_column[column] = "\n".join(text for _, text in _blocks(cell))
            cells.append(by_column.get(column, ""))
            column += cell.grid_span
        yield " | ".join(cells)


def _below(parent: "Element", outermost: str) -> Iterator["Element"]:
    """Yield what is shown below an element, in order, but nothing inside of elements of the tag ``outermost``."""
    for child in _shown(parent):
        yield child
        if child.tag != outermost:
            yield from _below(child, outermost)


def _shown(parent: "Element") -> list["Element"]:
    """Return the children that the final view shows; of a drawing's alternatives, the first with text."""
    if parent.tag == _ALTERNATIVES:
        return [each for each in parent if any(text.tag in _TEXTS for text in each.iter())][:1]
    return [child for child in parent if child.tag not in _NOT_SHOWN]


def _characters(element: "Element") -> str:
    if element.tag == _SYMBOL:
        code = int(element.get(f"{_W}char", "F000"), 16)
        return "" if code in _PRIVATE else chr(code)
    return (element.text or "") if element.tag in _TEXTS else _CHARACTERS.get(element.tag, "")
