"""Answers of endpoints that cost money: asked once, kept for good.

Other logs belong to one state of code and params. This one is keyed by the request alone, so that
after an edit, a kill or in a fresh scratch folder no answer is paid for twice. Errors are not kept.
The file is never cleaned: to ask again, change the seed or delete it.

One SQLite file serves all stages and processes of a project. An answer is written before it is
used, so that a killed process loses only the ones that had not arrived.
"""

import ipaddress
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.core.files import sha256_json

# Below a project's folder; a folder without `work/` keeps no answers
FILE = Path("work/answers.sqlite")

# How long a process waits while another one writes
_BUSY_S = 60.0


def is_paid(base_url: str) -> bool:
    """Return whether an endpoint may cost money: one on this machine or in its own network does not.

    A server of your own may also load other weights under the same name, which a key cannot tell.
    """
    host = httpx.URL(base_url).host
    try:
        return not ipaddress.ip_address(host).is_private
    except ValueError:
        return "." in host and not host.endswith((".local", ".localhost", ".internal", ".lan"))


def answer_key(endpoint: Endpoint, request: Mapping[str, Any], sample: int) -> str:
    """Return the digest of address, model, request and options; ``sample`` tells answers to one request apart."""
    options = endpoint.options.of_answers()
    return sha256_json([endpoint.base_url, endpoint.model, options, dict(request), sample])


def read_answer(key: str) -> str | None:
    """Return the kept answer of a request, None where there is none."""
    if not FILE.is_file():
        return None
    with _opened() as answers:
        row = answers.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None


def keep_answer(key: str, answer: str) -> None:
    """Keep an answer for good."""
    if not FILE.parent.is_dir():
        return
    with _opened() as answers:
        answers.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, answer))


@contextmanager
def _opened() -> Iterator[sqlite3.Connection]:
    """Open the file for one statement, which is committed at the end of the block."""
    # A connection of its own for each statement needs no care with threads and forks
    connection = sqlite3.connect(FILE, timeout=_BUSY_S, isolation_level=None)
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL)"
        )
        yield connection
    finally:
        connection.close()
