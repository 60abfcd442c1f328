"""An MLflow store in a folder: a SQLite database, with the artifacts beside it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

from deepsearch_rl.core.errors import EndpointError

SQLITE = "sqlite:///"
ARTIFACTS = "artifacts"
# Tables and columns in which MLflow keeps absolute paths of artifacts
_LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("trace_tags", "value"),
)


def local_store(folder: Path) -> str:
    """Return the URI of the store in ``folder``; absolute, so that no working directory changes it."""
    return f"{SQLITE}{folder.resolve() / 'mlflow.db'}"


def database_file(uri: str) -> Path | None:
    """Return the database of a local store; None for the URI of a server."""
    return Path(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else None


def follow_folder(uri: str) -> None:
    """Make a local store's paths of artifacts those of the folder where its database lies, if it exists.

    A store that was moved or copied would go on reading and writing in its first folder. Raise
    EndpointError where the database cannot be read.
    """
    database = database_file(uri)
    if database is None or not database.is_file():
        return
    try:
        with closing(sqlite3.connect(database)) as connection, connection:
            for old in _first_folders(connection):
                _replace(connection, old.as_uri(), database.parent.as_uri())
                _replace(connection, str(old), str(database.parent))
    except sqlite3.DatabaseError as error:
        remedy = "Restore it from a backup, or move it away to begin a new one."
        raise EndpointError(
            f"MLflow's store {database} cannot be opened: {error}. {remedy}"
        ) from error


def has_report(database: Path, digest: str) -> bool:
    """Return whether a local store has the whole report of this digest; asked of its file, in milliseconds.

    The upload marks a report's own run, which has no parent, as finished when all is there. Without
    a database, or with one that cannot be read, the answer is no: the upload says what is wrong.
    """
    query = """
        SELECT 1 FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid
        WHERE tags.key = 'report.digest' AND tags.value = ? AND runs.status = 'FINISHED'
        AND runs.lifecycle_stage = 'active' AND NOT EXISTS (
            SELECT 1 FROM tags AS parents WHERE parents.run_uuid = runs.run_uuid AND parents.key = 'mlflow.parentRunId'
        )
    """
    if not database.is_file():
        return False
    try:
        with closing(sqlite3.connect(database)) as connection:
            return connection.execute(query, [digest]).fetchone() is not None
    except sqlite3.DatabaseError:
        return False


def _first_folders(connection: sqlite3.Connection) -> set[Path]:
    """Return the folders in which experiments keep artifacts beside the database; none in an unfinished database."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'experiments'").fetchone():
        return set()
    query = "SELECT artifact_location FROM experiments WHERE artifact_location LIKE ?"
    locations = connection.execute(query, [f"file:///%/{ARTIFACTS}"]).fetchall()
    return {Path(unquote(urlsplit(location).path)).parent for (location,) in locations}


def _replace(connection: sqlite3.Connection, old: str, new: str) -> None:
    if old != new:
        for table, column in _LOCATIONS:
            change = f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?"
            connection.execute(change, [new, len(old) + 1, len(old) + 1, f"{old}/"])
