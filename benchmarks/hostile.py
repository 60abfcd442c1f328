"""Malformed and hostile requests over all routes of the retrieval server: does it stay up, small and right?

    .venv/bin/python -m benchmarks.hostile                      # 10,000 requests, a few minutes
    .venv/bin/python -m benchmarks.hostile --count 1000 --seed 7

Starts the server over a small hybrid index, asks some honest questions, sends the seeded requests
of ``benchmarks/hostile_requests.py`` over many connections, and asks the same questions again.
Status 1 if any request was answered 5xx (a full queue's 503 with Retry-After is none) or left
without an answer, if anonymous memory grew by more than 50 MB, or if an honest answer changed.
"""

import asyncio
import contextlib
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks import data
from benchmarks import hostile_requests as requests
from benchmarks.measure import parse_options, publish
from benchmarks.servers import ServerProcess, running_server
from deepsearch_rl.core.processes import LOOPBACK

MAX_GROWTH_MB = 50
CONNECTIONS = 32
SETTLE_S = 15
RECONNECT_S = 0.1
MAX_KEPT_BYTES = 2**20
"""Of an answer; the rest is read and dropped."""
_STATUS = re.compile(rb"^HTTP/1\.[01] (\d{3})", re.MULTILINE)
_STREAM = re.compile(rb"^content-type: text/event-stream", re.MULTILINE | re.IGNORECASE)
_RETRY = re.compile(rb"^retry-after: \d", re.MULTILINE | re.IGNORECASE)
_SESSION_ID = re.compile(rb"session_id=([0-9a-f]{32})")


@dataclass(slots=True)
class Siege:
    """What hostile requests did to a server."""

    statuses: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """By kind of request: how often each status came, or ``closed`` where the connection ended without one."""
    problems: list[str] = field(default_factory=list)
    growth_mb: float = 0.0
    """Of the server's anonymous memory, from before the first hostile request to after the last."""
    session: bytes = requests.LIVE_SESSION
    """The id of an open event stream, so that some of the hostile messages reach a living session."""

    async def attack(self, port: int, drawn: Iterator[requests.Hostile]) -> None:
        """Send every request over a connection of its own, many of them at a time."""

        async def client() -> None:
            for hostile in drawn:
                self._note(hostile, *await _send(port, hostile, self.session))

        stream = asyncio.create_task(self._keep_stream_open(port))
        await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
        stream.cancel()

    def _note(self, hostile: requests.Hostile, answer: bytes, ended: bool) -> None:
        statuses = [status.decode() for status in _STATUS.findall(answer)]
        self.statuses[hostile.kind].update(statuses or ["closed"])
        fine = "503" if _RETRY.search(answer) else ""  # how a full queue answers
        if any(status.startswith("5") and status != fine for status in statuses):
            self.problems.append(f"{hostile.kind}: {answer[:300]!r} to {hostile.payload[:300]!r}")
        if hostile.patience_s == requests.WHOLE_S and not ended:
            self.problems.append(f"{hostile.kind}: no answer to {hostile.payload[:300]!r}")

    async def _keep_stream_open(self, port: int) -> None:
        while True:
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            writer.write(requests.head("GET", "/sse", (("Accept", "text/event-stream"),)))

            with contextlib.suppress(ConnectionError):
                async for line in reader:
                    if match := _SESSION_ID.search(line):
                        self.session = match[1]

            writer.close()
            # A server without such a route must not be flooded with attempts
            await asyncio.sleep(RECONNECT_S)


async def _send(port: int, hostile: requests.Hostile, session: bytes) -> tuple[bytes, bool]:
    """Return what came back, and whether the server came to an end with it."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(hostile.payload.replace(requests.LIVE_SESSION, session))
    answer = b""
    ended = False

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(hostile.patience_s):
            # Refused while sending: what was answered before counts
            with contextlib.suppress(ConnectionError):
                while (
                    hostile.patience_s
                    and not _STREAM.search(answer)
                    and (data := await reader.read(2**16))
                ):
                    answer = (answer + data)[:MAX_KEPT_BYTES]

            ended = True

    writer.transport.abort()
    return answer, ended


def besiege(server: ServerProcess, count: int, seed: int, settle_s: float) -> Siege:
    """Send ``count`` hostile requests to a running server and compare it with itself.

    ``settle_s`` seconds pass before its memory is measured for the second time; it gives back what
    was freed every ten.
    """
    siege = Siege()
    before = _honest_answers(server)
    memory_mb = server.anonymous_mb()
    asyncio.run(siege.attack(server.port, requests.draw_requests(count, seed)))
    time.sleep(settle_s)
    siege.growth_mb = server.anonymous_mb() - memory_mb
    if siege.growth_mb > MAX_GROWTH_MB:
        siege.problems.append(f"anonymous memory grew by {siege.growth_mb:.0f} MB")
    after = _honest_answers(server)
    for route in before:
        if before[route] != after[route]:
            siege.problems.append(f"the answer of {route} changed")

    return siege


def _honest_answers(server: ServerProcess) -> dict[str, tuple[int, bytes]]:
    """Return status and body of an honest request per route; bodies hold nothing that changes between calls."""
    answers = {}
    for route in ("/retrieve", "/access", "/mcp"):
        answer = httpx.post(
            server.url + route,
            json=requests.DIALECTS[route][0],
            headers=requests.JSON_HEADERS,
            timeout=60,
        )
        answers[route] = answer.status_code, answer.content

    return answers


def main() -> None:
    """Besiege a server; print the number of each status by kind and the verdict, on stderr every problem."""
    options = parse_options(__doc__, count=10_000, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        index = data.prepare_index(
            data.wiki18_passages(least=1000)[:1000], Path(folder, "hybrid"), data.index_config()
        )
        pages = data.write_pages(Path(folder, "pages.jsonl"), requests.PAGE)
        arguments = ["--retriever", "hybrid", "--top-k", "3", "--pages", str(pages)]
        with running_server(index, arguments, core=None) as server:
            siege = besiege(server, options.count, options.seed, SETTLE_S)

    total = sum(siege.statuses.values(), Counter())
    kinds = sorted(siege.statuses.items(), key=lambda item: -item[1].total())
    rows: list[tuple[object, ...]] = []
    for kind, counts in (*kinds, ("all", total)):
        rows.append((kind, *(counts[status] for status in sorted(total))))

    fine = "none answered 5xx, none without an answer, no honest answer changed"
    outcome = f"{len(siege.problems)} problems" if siege.problems else fine
    note = f"{options.count:,} requests, seed {options.seed}: {outcome}, anonymous memory {siege.growth_mb:+.1f} MB."
    publish(options, "hostile_requests", ("kind", *sorted(total)), rows, before=note)
    sys.exit("\n".join(siege.problems) or 0)


if __name__ == "__main__":
    main()
