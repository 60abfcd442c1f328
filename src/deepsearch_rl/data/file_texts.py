"""The title and text of a file: text, Markdown, HTML, PDF and Word.

The extra ``documents`` brings the libraries: trafilatura keeps the article of a web page and drops
its menus, pypdf reads PDF page by page, python-docx opens Word files. docs/own_data.md compares
them with others.
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deepsearch_rl.core.errors import UnavailableError, install_hint
from deepsearch_rl.core.records import MAX_TITLE_BYTES

if TYPE_CHECKING:
    from pypdf import PageObject
    from pypdf.generic import DictionaryObject

# What a program writes where the author gave no title: words of its own with numbers, or a file's name
_PLACEHOLDER = re.compile(
    r"(?=.*[^\W\d_])(?:untitled|unbenannt|sans titre|sin título|sem título|senza titolo|无标题|無題|без названия"
    r"|anonymous|unspecified|unknown|no title|new|blank|microsoft|office|word|powerpoint|excel|document|documento"
    r"|dokument|a?pr[eéä]senta\w+|page|slide|scan|d[eo] (?=powerpoint)|[\W\d_])+"
    r"|\(?microsoft \w+ - .*"
    r"|.*\.(?:docx?|rtf|odt|txt|html?|pptx?|xlsx?|pdf|tex|dvi|e?ps|indd|pmd|qxd|tiff?|jpe?g|png)",
    re.IGNORECASE,
)
_LIGATURE = re.compile("[\ufb00-\ufb06]")
# A typesetter's hyphen at the end of a line; a plain ``-`` may belong to the word
_HYPHENATED = re.compile("(?<=\\w)[\u00ad\u2010]\n(?=\\w)")
_PLAIN_HYPHEN = re.compile(r"([^\W\d_]+)- *\n([^\W\d_]+)")
_WORD = re.compile(r"[^\W\d_]+")
# Pages without text that a reason names
_PAGES_NAMED = 10
# Annotations that hold no text of their own
_NO_NOTES = frozenset({"/Link", "/Popup"})
# Those that often repeat the text that they mark
_MARKS = frozenset({"/Highlight", "/Underline", "/Squiggly", "/StrikeOut"})
# Without a blank line after the dashes, which would make them a rule
_FRONT_MATTER = re.compile(
    r"\A(---|\+\+\+)[ \t]*\n(?=[ \t]*\S)(.*?)^(?:\1|\.\.\.)[ \t]*$", re.MULTILINE | re.DOTALL
)
_KEY = re.compile(r"^[\w-]+[ \t]*[:=]", re.MULTILINE)
# A plain scalar, with or without quotes: authors often write colons that YAML refuses
_TITLE_KEY = re.compile(
    r"""^title[ \t]*[:=][ \t]*(?:(["'])(.+?)\1|(?!null[ \t]*$)([^\s>|\[{&*"'~].*?))(?:[ \t]+#.*)?[ \t]*$""",
    re.MULTILINE | re.IGNORECASE,
)
_FENCED_BLOCK = re.compile(
    r"^ {0,3}(```+(?=[^`\n]*$)|~~~+)[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
# With number signs, or underlined
_MARKDOWN_HEADING = re.compile(r"^(?:#{1,6}[ \t]+(.+?)[ \t#]*|(\S[^\n]*)\n=+[ \t]*)$", re.MULTILINE)


class UnreadableError(Exception):
    """The text of a file cannot be read; the message says why, without the file's name."""


class TitledText(NamedTuple):
    """The text of a file and its title, one line, empty if the file has none.

    ``unread`` says what of the file is not in the text; it is empty if nothing is missing.
    """

    title: str
    text: str
    unread: str = ""


def read_text(path: Path) -> TitledText:
    """Return title and text of a file.

    Raises:
        UnreadableError: the file is damaged, encrypted, of an unknown kind or without text.
        UnavailableError: the package that reads its kind is not installed.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        kind = path.suffix or "no suffix"
        raise UnreadableError(f"{kind} is none of {', '.join(READERS)}")

    try:
        # A library would call a file without read permission damaged
        with path.open("rb") as file:
            file.read(1)
        title, text, unread = reader(path)
    except OSError as error:
        raise UnreadableError(f"it cannot be read: {error.strerror or error}") from error

    text = _clean(text)
    if not text.strip():
        raise UnreadableError("there is no text in it; a scanned page needs OCR first")

    one_line = " ".join(_clean(title).split())
    fits = len(one_line.encode("utf-8", "surrogatepass")) <= MAX_TITLE_BYTES
    return TitledText(one_line if fits else "", text.strip(), unread)


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """Return the words of texts in lower case, for :func:`join_hyphenated`."""
    return frozenset(word for text in texts for word in _WORD.findall(text.casefold()))


def join_hyphenated(text: str, words: Collection[str]) -> str:
    """Join the halves around a plain hyphen at a line's end where they make one of the words.

    "exam-", "ple" becomes "example" if that is a word elsewhere; "well-", "known" stays.
    """

    def joined(match: re.Match[str]) -> str:
        word = match[1] + match[2]
        return word if word.casefold() in words else match[0]

    return _PLAIN_HYPHEN.sub(joined, text)


def _clean(text: str) -> str:
    """Return a text with Unix line ends, without NUL and lone surrogates."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")
    return text.encode("utf-8", "replace").decode("utf-8")


def _read_plain(path: Path) -> TitledText:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"byte {error.start} is not UTF-8; save the file as UTF-8") from error
    if "\0" in text:
        raise UnreadableError("it has NUL bytes, as UTF-16 does; save the file as UTF-8")
    return TitledText("", text)


def _read_markdown(path: Path) -> TitledText:
    """Return the front matter's title and the text, or else the first heading, which is cut where it comes first."""
    text = _clean(_read_plain(path).text)
    title, front = front_matter(text)
    if title:
        return TitledText(title, text)

    # A comment in a code block looks like a heading; blanks keep the offsets
    without_code = _FENCED_BLOCK.sub(lambda block: " " * len(block[0]), text[front:])
    heading = _MARKDOWN_HEADING.search(without_code)
    if heading is None:
        return TitledText("", text)
    before = text[: front + heading.start()]
    title = heading[1] or heading[2]
    return TitledText(title, text if before.strip() else text[front + heading.end() :])


def front_matter(text: str) -> tuple[str, int]:
    """Return the title in a text's front matter (YAML or TOML), empty without one, and where the matter ends."""
    block = _FRONT_MATTER.match(text)
    if block is None or not _KEY.search(block[2]):
        return "", 0
    found = _TITLE_KEY.search(block[2])
    quote, quoted, plain = found.groups() if found else ("", "", "")
    # As YAML and TOML write a quote in quotes
    escape = "''" if quote == "'" else '\\"'
    return quoted.replace(escape, quote) if quoted else plain or "", block.end()


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
    title = _or_name(metadata.title if metadata else None, path)

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
        pages = [page.extract_text() for page in document.pages]
        is_xfa = "/NeedsRendering" in document.root_object
        has_files = "/EmbeddedFiles" in document.root_object.get("/Names", {})
        lines = [
            line
            for page, text in zip(document.pages, pages, strict=True)
            for line in (text, *_typed_on(page, text))
        ]
    except UnreadableError:
        raise
    except Exception as error:
        kind = "pypdf" if isinstance(error, PyPdfError) else type(error).__name__
        raise UnreadableError(f"it is a damaged PDF ({kind}: {error})") from error

    text = _without_typesetting("\n".join(lines))
    form = "its form (XFA) is not in it; print it to a PDF" if is_xfa else ""
    attached = "its attached files are not in it; save them beside it" if has_files else ""
    unread = "; ".join(filter(None, (_pages_without_text(pages), form, attached)))
    return TitledText(_or_name(title, path), text, unread)


def _typed_on(page: "PageObject", text: str) -> Iterator[str]:
    """Yield the values of a page's form fields and the texts of its annotations, but no mark that repeats its text."""
    from pypdf.generic import DictionaryObject  # noqa: PLC0415 - as above

    for annotation in page.annotations or ():
        note = annotation.get_object()
        # References to annotations that were removed are common
        if not isinstance(note, DictionaryObject) or note.get("/Subtype") in _NO_NOTES:
            continue
        kind, contents = note.get("/Subtype"), note.get("/Contents")
        line = _field_line(note) if kind == "/Widget" else contents
        if isinstance(line, str) and line and not (kind in _MARKS and line in text):
            yield line


def _field_line(widget: "DictionaryObject") -> str:
    """Return a form field as ``name: value``; empty for one without a value and for a box that is not ticked."""
    name = widget.get_inherited("/TU") or widget.get_inherited("/T", "")
    value = widget.get_inherited("/V", "")
    values = value if isinstance(value, list) else [value]
    # A signature is no text
    text = ", ".join(str(each) for each in values if isinstance(each, str))
    if not text or "/Off" in (value, widget.get("/AS")):
        return ""
    return f"{name}: {text.removeprefix('/') if '/AS' in widget else text}"


def _pages_without_text(pages: list[str]) -> str:
    empty = [str(number) for number, page in enumerate(pages, 1) if not page.strip()]
    if not empty:
        return ""
    named = ", ".join(empty[:_PAGES_NAMED]) + (", ..." if len(empty) > _PAGES_NAMED else "")
    return f"{len(empty)} of {len(pages)} pages have no text ({named}); scans need OCR first"


def _without_typesetting(text: str) -> str:
    """Join words hyphenated at a line's end and replace ligatures by letters."""
    text = _LIGATURE.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    return _HYPHENATED.sub("", text)


def _read_word(path: Path) -> TitledText:
    try:
        import docx  # noqa: PLC0415 - only a folder with Word files loads it

        from deepsearch_rl.data.word_text import unread_parts, word_blocks  # noqa: PLC0415
    except ImportError as error:
        raise _not_installed("python-docx", path) from error

    try:
        document = docx.Document(str(path))
        blocks = list(word_blocks(document))
        title = document.core_properties.title
        unread = unread_parts(document)
    except Exception as error:
        problem = f"it is a damaged Word file ({type(error).__name__})"
        other = "or encrypted, Strict or with macros; save it as a plain .docx"
        raise UnreadableError(f"{problem}, {other}") from error

    # A logo has a paragraph of its own
    while blocks and not blocks[0].text.strip():
        del blocks[0]
    # Word's own style of a document's title, or else its first heading
    is_headed = bool(blocks) and blocks[0].style.startswith(("Title", "Heading"))
    if is_headed and (not title or _PLACEHOLDER.fullmatch(title)):
        return TitledText(blocks[0].text, "\n".join(block.text for block in blocks[1:]), unread)
    return TitledText(_or_name(title, path), "\n".join(block.text for block in blocks), unread)


def _or_name(title: str | None, path: Path) -> str:
    """Return the title that a file was given; the file's name where it is a program's placeholder."""
    return path.stem if title and _PLACEHOLDER.fullmatch(title.strip()) else title or ""


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
