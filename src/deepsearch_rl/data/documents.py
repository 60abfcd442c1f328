"""A folder of files as a corpus, one document a file (:mod:`.file_texts` reads the files)."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.records import Document
from deepsearch_rl.data.file_texts import (
    TitledText,
    UnreadableError,
    join_hyphenated,
    read_text,
    words_of,
)

# Files that the log names
NAMED = 10

_LOG = logging.getLogger(__name__)


class DocumentFolder:
    """The documents of a folder, in the order of their paths, read when iteration begins.

    The path below the folder is a document's id and ``source``. Hidden files and folders are
    skipped, links are followed. ``unreadable`` maps the path of every file or folder that the last
    iteration could not read, or read only in part, to the reason.
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
        texts = dict(self._texts())
        if self.unreadable:
            _LOG.warning("%s", self._problem())
        if not texts:
            raise ArtifactError(f"{self._problem()} A corpus needs at least one readable file.")

        # Whether a hyphen at a line's end is the typesetter's, only the other files can say
        pdfs = {name for name in texts if name.lower().endswith(".pdf")}
        words = words_of(each.text for each in texts.values()) if pdfs else frozenset()
        for name, (title, text, _) in texts.items():
            whole = join_hyphenated(text, words) if name in pdfs else text
            yield Document(id=name, contents=f"{title}\n{whole}", metadata={"source": name})

    def _texts(self) -> Iterator[tuple[str, TitledText]]:
        """Yield path and text of the readable files, and note what the others lack."""
        for path in self._files():
            name = path.relative_to(self._folder).as_posix()
            if os.fsencode(name).decode("utf-8", "backslashreplace") != name:
                self._note(path, "its name is not UTF-8; rename it")
                continue

            try:
                with _named_messages(path):
                    read = read_text(path)
            except UnreadableError as error:
                self._note(path, str(error))
                continue

            if read.unread:
                self._note(path, f"only in part: {read.unread}")
            yield name, read

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
        named = "; ".join(problems[:NAMED])
        return (
            f"{self._folder}: {len(problems)} {files} cannot be read, or not whole ({named}{rest})."
        )


@contextmanager
def _named_messages(path: Path) -> Iterator[None]:
    """Log what a library says of a file that it can read with the file's name, which it leaves out."""
    libraries = [logging.getLogger(name) for name in ("pypdf", "trafilatura")]
    said = BufferingHandler(capacity=sys.maxsize)
    for library in libraries:
        library.addHandler(said)
        library.propagate = False
    try:
        yield
    finally:
        for library in libraries:
            library.removeHandler(said)
            library.propagate = True

    for message in dict.fromkeys(record.getMessage() for record in said.buffer):
        _LOG.warning("%s: %s", path, message)
