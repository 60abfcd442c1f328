"""A folder of files as documents: one for each file, with its path as id and source."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.records import Document
from deepsearch_rl.data.document_texts import UnreadableError, read_text

# Unreadable files in the log; the file beside the corpus has all of them
NAMED = 10
_LOG = logging.getLogger(__name__)


class DocumentFolder:
    """The documents of a folder, read while they are iterated, in the order of their paths.

    Hidden files and folders are left out, and links to folders are followed. ``unreadable`` holds
    the path and the reason of every file or folder that the last iteration could not read.
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
            # Folders of git, and what editors and systems leave behind
            inner = [name for name in folders if not name.startswith(".")]
            folders[:] = [name for name in inner if not self._leads_back(here / name)]
            for name in names:
                path = here / name
                if name.startswith("."):
                    continue
                if path.is_file():
                    files.append(path)
                elif path.is_symlink():
                    self._note(path, "it is a link to something that is not there")

        if not files and not self.unreadable:
            raise ArtifactError(f"{self._folder} holds no file; put your documents there.")
        return sorted(files)

    def _leads_back(self, folder: Path) -> bool:
        """Return whether a folder is a link to one of those that it lies in; it is noted as unreadable."""
        if not folder.is_symlink() or not folder.parent.resolve().is_relative_to(folder.resolve()):
            return False
        self._note(folder, "it is a link to a folder that it lies in")
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
