"""Half an hour of mixed load at 64 clients: is memory flat, and is p99 at the end what it was at the start?

    .venv/bin/python -m benchmarks.soak                                   # 30 minutes
    .venv/bin/python -m benchmarks.soak --minutes 0.5 --period 5          # a trial

The server runs over a hybrid index with its cache on. Clients speak every dialect at once: /retrieve with and without
scores, one query or eight, fresh or repeated; /access; MCP at /mcp. Beside them one client opens an MCP session over
SSE for every question, as DeepSearch-RL's original does. Each period ends all connections and samples the server.

Status 1 if an answer was wrong or missing, if the last third's mean anonymous memory is more than ``--max-growth-mb``
above the first third's, or its median p99 more than half above the first third's. Results go to
``work/benchmarks/soak.{md,csv}``.
"""

import argparse
import asyncio
import itertools
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

import mcp
import uvloop
from mcp.client.sse import sse_client

from benchmarks import data
from benchmarks.hostile import JSON_HEADERS, MCP_ENVELOPE, PAGE
from benchmarks.http_load import Load, Request, drive, json_request
from benchmarks.measure import parse_options, publish
from benchmarks.servers import ServerProcess, running_server, spare_core

MAX_P99_RATIO = 1.5
FRESH_QUERIES, REPEATED_QUERIES = 1000, 500


@dataclass(frozen=True, slots=True)
class Period:
    """What one period of the soak measured."""

    end_minute: float
    load: Load
    sse_questions: int
    anonymous_mb: float
    server_cpu_s: float

    @property
    def row(self) -> dict[str, object]:
        """The columns of the table."""
        return {
            "minute": f"{self.end_minute:.1f}",
            "requests/s": f"{self.load.rate_per_s:.0f}",
            "p50 ms": f"{self.load.percentile_ms(50):.1f}",
            "p99 ms": f"{self.load.percentile_ms(99):.1f}",
            "SSE questions": self.sse_questions,
            "errors": self.load.errors,
            "RssAnon MB": f"{self.anonymous_mb:.1f}",
            "server CPU %": f"{100 * self.server_cpu_s / self.load.elapsed_s:.0f}",
        }


def _request(rng: random.Random, query: Callable[[], str]) -> Request:
    drawn = rng.random()
    if drawn < 0.5:
        return json_request({"queries": [query()], "topk": 3, "return_scores": True}, b'{"result":[[')
    if drawn < 0.65:
        queries = [query() for _ in range(8)]
        return json_request({"queries": queries, "topk": 5, "return_scores": False}, b'{"result":[[')
    if drawn < 0.75:
        return json_request({"urls": [PAGE]}, b"A city.", "/access")
    call = {"name": "retrieve", "arguments": {"query": query()}}
    headers = "".join(f"{name}: {value}\r\n" for name, value in JSON_HEADERS if name != "Content-Type")
    return json_request(
        {**MCP_ENVELOPE, "method": "tools/call", "params": call}, b'"structuredContent"', "/mcp", headers
    )


async def _ask_over_sse(url: str, queries: Sequence[str], seconds: float) -> int:
    """Ask every question in a session of its own, one after the other; return the number of answers."""
    end = time.monotonic() + seconds
    for number, query in enumerate(itertools.cycle(queries)):
        if time.monotonic() > end:
            return number
        async with sse_client(f"{url}/sse") as streams, mcp.ClientSession(*streams) as session:
            await session.initialize()
            answer = await session.call_tool("retrieve", {"query": query})
            if answer.is_error:
                raise RuntimeError(f"the server answered a question over SSE with an error: {answer.content}")
    raise AssertionError("a cycle has no end")


def soak(server: ServerProcess, texts: list[str], options: argparse.Namespace) -> list[Period]:
    """Load the server until the time is up, period by period; progress goes to stderr."""
    rng, fresh, known = random.Random(0), data.queries(texts, 0), data.draw_queries(texts, 1, REPEATED_QUERIES)
    drawn = [_request(rng, lambda: rng.choice(known) if rng.random() < 0.5 else next(fresh)) for _ in range(50_000)]
    requests, questions = itertools.cycle(drawn), data.draw_queries(texts, 2, FRESH_QUERIES)

    async def run_period() -> tuple[Load, int]:
        load = drive(server.address, requests, options.clients, options.period)
        return await asyncio.gather(load, _ask_over_sse(server.url, questions, options.period))

    started_s = time.monotonic()
    periods: list[Period] = []
    while time.monotonic() - started_s < options.minutes * 60:
        cpu_s = server.cpu_s()
        measured = uvloop.run(run_period())
        minutes = (time.monotonic() - started_s) / 60
        periods.append(Period(minutes, *measured, server.anonymous_bytes() / 1e6, server.cpu_s() - cpu_s))
        sys.stderr.write(" ".join(map(str, periods[-1].row.values())) + "\n")
    return periods


def judge(periods: Sequence[Period], max_growth_mb: float) -> tuple[str, list[str]]:
    """Return a sentence with the figures that decide, and what went wrong.

    Nothing did where memory was flat, p99 stable and every answer right.
    """
    third = max(1, len(periods) // 3)
    ends = periods[:third], periods[-third:]
    first_mb, last_mb = (mean(period.anonymous_mb for period in end) for end in ends)
    first_ms, last_ms = (median(period.load.percentile_ms(99) for period in end) for end in ends)
    errors = sum(period.load.errors for period in periods)
    faults = [f"{errors} requests without a right answer"] if errors else []
    if last_mb - first_mb > max_growth_mb:
        faults.append(f"anonymous memory grew by {last_mb - first_mb:.1f} MB from the first third to the last")
    if last_ms / first_ms > MAX_P99_RATIO:
        faults.append(f"p99 of the last third is {last_ms / first_ms:.2f} times that of the first")
    verdict = (
        f"{periods[-1].end_minute:.1f} minutes at {periods[0].load.clients} clients, "
        f"{sum(period.load.answered for period in periods):,} requests: mean anonymous memory {first_mb:.1f} MB in the "
        f"first third and {last_mb:.1f} MB in the last, median p99 {first_ms:.1f} ms and {last_ms:.1f} ms. "
        f"{'; '.join(faults) or 'Flat and stable'}."
    )
    return verdict, faults


def main() -> None:
    """Soak the server, write the results and print them; status 1 if something went wrong."""
    options = parse_options(
        __doc__,
        minutes=30.0,
        period=(60.0, "seconds between two samples"),
        clients=64,
        passages=(10_000, "rows of the index"),
        max_growth_mb=5.0,
        work=(data.WORK, "index and results"),
    )
    texts = data.wiki18_passages(least=options.passages)[: options.passages]
    index = data.prepare_index(texts, options.work / f"{options.passages}" / "weightless", data.index_config())
    pages = data.write_pages(options.work / "pages.jsonl", PAGE)
    server_options = ["--retriever", "hybrid", "--top-k", "3", "--pages", str(pages)]
    with running_server(*index, server_options, spare_core()) as server:
        periods = soak(server, texts, options)
    verdict, faults = judge(periods, options.max_growth_mb)
    rows = [tuple(period.row.values()) for period in periods[:: max(1, len(periods) // 30)]]
    publish(options, "soak", list(periods[0].row), rows, before=verdict)
    sys.exit("\n".join(faults) or 0)


if __name__ == "__main__":
    main()
