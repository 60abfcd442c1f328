"""A folder of files as documents: one for each file, with its path as id and source."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.records import Document
from deepsearch_rl.corpora.documents.texts import UnreadableError, read_text

# Unreadable files in the log; the file beside the corpus has all of them
NAMED = 10
_LOG = logging.getLogger(__name__)


class DocumentFolder:
    """The documents of a folder, read while they are iterated, in the order of their paths.

    Hidden files and folders are left out. ``unreadable`` holds the path and the reason of every
    file that the last iteration could not read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.unreadable: dict[str, str] = {}

    def __iter__(self) -> Iterator[Document]:
        """Yield a document for each file that can be read; name and count the others in the log.

        Raise ArtifactError where the folder does not exist, holds no file, or none that can be
        read; UnavailableError where the package that reads a kind of file is not installed.
        """
        # Each iteration reads the folder anew
        self.unreadable = {}
        count = 0
        for path in self._files():
            name = path.relative_to(self._folder).as_posix()
            in_utf8 = os.fsencode(name).decode("utf-8", "backslashreplace")
            if in_utf8 != name:
                self.unreadable[in_utf8] = "its name is not UTF-8; rename it"
                continue

            try:
                title, text = read_text(path)
            except UnreadableError as error:
                self.unreadable[name] = str(error)
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
        for path in sorted(self._folder.rglob("*")):
            parts = path.relative_to(self._folder).parts
            # Folders of git, and what editors and systems leave behind
            is_hidden = any(part.startswith(".") for part in parts)
            if path.is_file() and not is_hidden:
                files.append(path)

        if not files:
            raise ArtifactError(f"{self._folder} holds no file; put your documents there.")
        return files

    def _problem(self) -> str:
        problems = [f"{name}: {reason}" for name, reason in self.unreadable.items()]
        more = len(problems) - NAMED
        rest = f"; and {more} more" if more > 0 else ""
        files = "file" if len(problems) == 1 else "files"
        return f"{self._folder}: {len(problems)} {files} cannot be read ({'; '.join(problems[:NAMED])}{rest})."
