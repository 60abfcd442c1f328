"""A folder of files as documents: text, Markdown, HTML, PDF and Word.

The extra ``documents`` brings the libraries: trafilatura keeps the article of a web page and drops
its menus, pypdf reads PDF page by page, python-docx reads Word with its tables. docs/own_data.md
compares them with others.
"""

import itertools
import logging
import os
import re
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deepsearch_rl.core.errors import ArtifactError, UnavailableError, install_hint
from deepsearch_rl.core.records import MAX_TITLE_BYTES, Document

if TYPE_CHECKING:
    from docx.document import Document as WordDocument

# Unreadable files named in the log
NAMED = 10

_LOG = logging.getLogger(__name__)
_LIGATURE = re.compile("[\ufb00-\ufb06]")
# A typesetter's hyphen at the end of a line; a plain ``-`` may belong to the word
_HYPHENATED = re.compile("(?<=\\w)[\u00ad\u2010]\n(?=\\w)")
_FENCED_BLOCK = re.compile(
    r"^ {0,3}(```+|~~~+)[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_MARKDOWN_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE)
_MARKDOWN_SETEXT = re.compile(r"\A\s*(\S[^\n]*)\n=+[ \t]*(?:\n|\Z)")


class DocumentFolder:
    """The documents of a folder, in the order of their paths, read during iteration.

    The path below the folder is a document's id and ``source``. Hidden files and folders are
    skipped, links are followed. ``unreadable`` maps the path of every file or folder that the last
    iteration could not read to the reason.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.unreadable: dict[str, str] = {}

    def __iter__(self) -> Iterator[Document]:
        """Yield a document per readable file; log the names and the number of the others.

        Raises:
            ArtifactError: the folder does not exist or contains no readable file.
            UnavailableError: the package that reads a kind of file is not installed.
        """
        self.unreadable = {}
        count = 0
        for path in self._files():
            name = path.relative_to(self._folder).as_posix()
            if os.fsencode(name).decode("utf-8", "backslashreplace") != name:
                self._note(path, "its name is not UTF-8; rename it")
                continue

            try:
                title, text = read_text(path)
            except UnreadableError as error:
                self._note(path, str(error))
                continue

            yield Document(id=name, contents=f"{title}\n{text}", metadata={"source": name})
            count += 1

        if self.unreadable:
            _LOG.warning("%s", self._problem())
        if count == 0:
            raise ArtifactError(f"{self._problem()} A corpus needs at least one readable file.")

    def _files(self) -> list[Path]:
        if not self._folder.is_dir():
            raise ArtifactError(
                f"{self._folder} is not a folder; name the folder of your documents (download.path)."
            )

        files: list[Path] = []
        for folder, folders, names in os.walk(
            self._folder, onerror=self._note_folder, followlinks=True
        ):
            here = Path(folder)
            inner = [name for name in folders if not name.startswith(".")]
            folders[:] = [name for name in inner if not self._leads_back(here / name)]
            for name in names:
                path = here / name
                if name.startswith("."):
                    continue
                if path.is_file():
                    files.append(path)
                elif path.is_symlink():
                    self._note(path, "its link is broken")

        if not files and not self.unreadable:
            raise ArtifactError(f"{self._folder} is empty; put your documents there.")
        return sorted(files)

    def _leads_back(self, folder: Path) -> bool:
        """Return whether a folder is a link to one of its own parents, which would recurse for ever."""
        if not folder.is_symlink() or not folder.parent.resolve().is_relative_to(folder.resolve()):
            return False
        self._note(folder, "it links to a folder that contains it")
        return True

    def _note_folder(self, error: OSError) -> None:
        self._note(Path(error.filename), f"the folder cannot be read: {error.strerror}")

    def _note(self, path: Path, reason: str) -> None:
        name = os.fsencode(path.relative_to(self._folder).as_posix())
        self.unreadable[name.decode("utf-8", "backslashreplace")] = reason

    def _problem(self) -> str:
        problems = [f"{name}: {reason}" for name, reason in self.unreadable.items()]
        more = len(problems) - NAMED
        rest = f"; and {more} more" if more > 0 else ""
        files = "file" if len(problems) == 1 else "files"
        return f"{self._folder}: {len(problems)} {files} cannot be read ({'; '.join(problems[:NAMED])}{rest})."


class UnreadableError(Exception):
    """The text of a file cannot be read; the message says why, without the file's name."""


class TitledText(NamedTuple):
    """The text of a file and its title, one line, empty if the file has none."""

    title: str
    text: str


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
    """Return a text with Unix line ends, without NUL and lone surrogates."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")
    return text.encode("utf-8", "replace").decode("utf-8")


def _read_plain(path: Path) -> TitledText:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"byte {error.start} is not UTF-8; save the file as UTF-8") from error
    return TitledText("", text)


def _read_markdown(path: Path) -> TitledText:
    """Return the first heading as the title, and the text without it if it comes first."""
    text = _clean(_read_plain(path).text)
    underlined = _MARKDOWN_SETEXT.match(text)
    if underlined:
        return TitledText(underlined[1], text[underlined.end() :])

    # A comment in a code block looks like a heading; blanks keep the offsets
    without_code = _FENCED_BLOCK.sub(lambda block: " " * len(block[0]), text)
    heading = _MARKDOWN_HEADING.search(without_code)
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
    """Join words hyphenated at a line's end and replace ligatures by letters."""
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
    """Yield style and text of every paragraph and of every table row, in order."""
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
