"""Title and text of one file, by its kind: text, Markdown, HTML, PDF, Word.

HTML, PDF and Word are read by libraries (`pip install 'deepsearch-rl[documents]'`): trafilatura
keeps the article of a web page and leaves out its menus, pypdf reads a PDF page by page, and
python-docx a Word file with its tables. docs/own_data.md has what was measured.

A file that cannot be read, or holds no words, raises :class:`UnreadableError` with the reason.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deepsearch_rl.core.errors import UnavailableError, install_hint
from deepsearch_rl.core.records import MAX_TITLE_BYTES

if TYPE_CHECKING:
    from docx.document import Document as WordDocument


class UnreadableError(Exception):
    """A file whose text cannot be read; says why, without the file's name."""


class TitledText(NamedTuple):
    """What a file says; ``title`` is one line, empty where the file names none."""

    title: str
    text: str


_LIGATURE = re.compile("[\ufb00-\ufb06]")
# A typesetter's hyphen at the end of a line. A plain ``-`` may be the word's own and is kept.
_HYPHENATED = re.compile("(?<=\\w)[\u00ad\u2010]\n(?=\\w)")
_MARKDOWN_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE)
_MARKDOWN_SETEXT = re.compile(r"\A\s*(\S[^\n]*)\n=+[ \t]*(?:\n|\Z)")


def read_text(path: Path) -> TitledText:
    """Return the title and the text of a file.

    Raise UnreadableError where it cannot be read or no text is in it, UnavailableError where the
    package that reads its kind is not installed.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        kind = path.suffix or "no suffix"
        raise UnreadableError(f"{kind} is none of {', '.join(READERS)}")

    try:
        # A reader of a library would call it damaged, and say where it is
        with path.open("rb") as file:
            file.read(1)
        title, text = reader(path)
    except OSError as error:
        raise UnreadableError(f"it cannot be read: {error.strerror or error}") from error

    text = _clean(text)
    if not text.strip():
        raise UnreadableError("there is no text in it; a scanned page needs OCR first")

    one_line = " ".join(_clean(title).split())
    fits = len(one_line.encode("utf-8", "surrogatepass")) <= MAX_TITLE_BYTES
    return TitledText(one_line if fits else "", text.strip())


def _clean(text: str) -> str:
    """Return a text whose lines end as on Unix, without zeros and halves of surrogate pairs."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")
    return text.encode("utf-8", "replace").decode("utf-8")


def _read_plain(path: Path) -> TitledText:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"byte {error.start} is not UTF-8; save the file as UTF-8") from error
    return TitledText("", text)


def _read_markdown(path: Path) -> TitledText:
    """Return the first heading as the title, and the text without it where it is the first line."""
    text = _clean(_read_plain(path).text)
    underlined = _MARKDOWN_SETEXT.match(text)
    if underlined:
        return TitledText(underlined[1], text[underlined.end() :])

    heading = _MARKDOWN_HEADING.search(text)
    if heading is None:
        return TitledText("", text)
    before = text[: heading.start()]
    return TitledText(heading[1], text if before.strip() else text[heading.end() :])


def _read_html(path: Path) -> TitledText:
    try:
        import trafilatura  # noqa: PLC0415 - only a folder with HTML loads it
    except ImportError as error:
        raise _not_installed("trafilatura", path) from error

    # Bytes, because the page itself names its encoding
    page = trafilatura.load_html(path.read_bytes())
    metadata = None if page is None else trafilatura.extract_metadata(page)
    text = page is not None and trafilatura.extract(
        page, include_comments=False, include_tables=True
    )
    if not text:
        raise UnreadableError("no article was found in the page")
    title = (metadata.title if metadata else None) or ""

    first_line, _, rest = text.partition("\n")
    is_repeated = bool(title) and first_line.strip("# ").strip() == title.strip()
    return TitledText(title, rest if is_repeated else text)


def _read_pdf(path: Path) -> TitledText:
    try:
        import pypdf  # noqa: PLC0415 - only a folder with PDF files loads it
        from pypdf.errors import PyPdfError  # noqa: PLC0415
    except ImportError as error:
        raise _not_installed("pypdf", path) from error

    try:
        document = pypdf.PdfReader(path)
        # Many files are encrypted with an empty password, to forbid printing
        if document.is_encrypted and not document.decrypt(""):
            raise UnreadableError("it is encrypted; save a copy without the password")
        title = document.metadata.title if document.metadata else None
        text = "\n".join(page.extract_text() for page in document.pages)
    except UnreadableError:
        raise
    except Exception as error:
        kind = "pypdf" if isinstance(error, PyPdfError) else type(error).__name__
        raise UnreadableError(f"it is a damaged PDF ({kind}: {error})") from error

    return TitledText(title or "", _without_typesetting(text))


def _without_typesetting(text: str) -> str:
    """Return a text with words that a line's end had cut, and with letters in place of ligatures."""
    text = _LIGATURE.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    return _HYPHENATED.sub("", text)


def _read_word(path: Path) -> TitledText:
    try:
        import docx  # noqa: PLC0415 - only a folder with Word files loads it
    except ImportError as error:
        raise _not_installed("python-docx", path) from error

    try:
        document = docx.Document(str(path))
        lines = list(_word_lines(document))
        title = document.core_properties.title
    except Exception as error:
        raise UnreadableError(f"it is a damaged Word file ({type(error).__name__})") from error

    if title:
        return TitledText(title, "\n".join(text for _, text in lines))
    # Word's own style of a document's title, or else its first heading
    if lines and lines[0][0].startswith(("Title", "Heading")):
        return TitledText(lines[0][1], "\n".join(text for _, text in lines[1:]))
    return TitledText("", "\n".join(text for _, text in lines))


def _word_lines(document: "WordDocument") -> Iterator[tuple[str, str]]:
    """Yield the style and the text of every paragraph, and a line per row of a table, in their order."""
    from docx.table import Table  # noqa: PLC0415 - as above

    for block in document.iter_inner_content():
        if not isinstance(block, Table):
            style = block.style.name if block.style is not None else None
            yield style or "", block.text
            continue

        for row in block.rows:
            # A cell that spans columns is there once for each of them
            cells = [cell for cell, _ in itertools.groupby(row.cells)]
            yield "", " | ".join(cell.text for cell in cells)


def _not_installed(package: str, path: Path) -> UnavailableError:
    return UnavailableError(f"{path} needs the package {package}: {install_hint('documents')}.")


# Readers by suffix, in lower case
READERS: dict[str, Callable[[Path], TitledText]] = {
    ".txt": _read_plain,
    ".text": _read_plain,
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".xhtml": _read_html,
    ".pdf": _read_pdf,
    ".docx": _read_word,
}
