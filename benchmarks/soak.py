"""Half an hour of mixed load at 64 clients: is memory flat, and is p99 at the end what it was at the start?

    .venv/bin/python -m benchmarks.soak                                   # 30 minutes
    .venv/bin/python -m benchmarks.soak --minutes 0.5 --period 5          # a trial

The server runs over a hybrid index with its cache on. Clients speak every dialect at once:
/retrieve with and without scores, one query or eight, fresh or repeated; /access; MCP at /mcp.
Beside them one client opens an MCP session over SSE for every question, as DeepSearch-RL's original
does. Each period ends all connections and samples the server.

Status 1 if an answer was wrong or missing, if the last third's mean anonymous memory is more than
``--max-growth-mb`` above the first third's, or its median p99 more than half above the first
third's.
"""

import argparse
import asyncio
import itertools
import random
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import mean, median

import mcp
import uvloop
from mcp.client.sse import sse_client

from benchmarks import data
from benchmarks.hostile_requests import MCP_ENVELOPE, PAGE
from benchmarks.measure import parse_options, publish, write_figures
from benchmarks.servers import (
    Load,
    Request,
    ServerProcess,
    drive,
    json_request,
    running_server,
    spare_core,
)

MAX_P99_RATIO = 1.5
FRESH_QUERIES = 1000
REPEATED_QUERIES = 500
FORMATS = {
    "minute": ".1f", "requests/s": ".0f", "p50 ms": ".1f", "p99 ms": ".1f", "SSE questions": ".0f", "errors": ".0f",
    "RssAnon MB": ".1f", "server CPU %": ".0f",
}  # fmt: skip


def _request(rng: random.Random, query: str) -> Request:
    scored = {"queries": [query], "topk": 3, "return_scores": True}
    eight = {
        "queries": [f"{query} {number}" for number in range(8)],
        "topk": 5,
        "return_scores": False,
    }
    call = {
        **MCP_ENVELOPE,
        "method": "tools/call",
        "params": {"name": "retrieve", "arguments": {"query": query}},
    }
    dialects = (
        json_request(scored, b'{"result":[['),
        json_request(eight, b'{"result":[['),
        json_request({"urls": [PAGE]}, b"A city.", "/access"),
        json_request(call, b'"structuredContent"', "/mcp"),
    )
    return rng.choices(dialects, (50, 15, 10, 25))[0]


async def _ask_over_sse(url: str, queries: Sequence[str], seconds: float) -> int:
    """Ask questions, each in a session of its own, one after the other; return the number of answers."""
    end = time.monotonic() + seconds
    answered = 0

    while time.monotonic() < end:
        async with sse_client(f"{url}/sse") as streams, mcp.ClientSession(*streams) as session:
            await session.initialize()
            answer = await session.call_tool(
                "retrieve", {"query": queries[answered % len(queries)]}
            )

        if answer.is_error:
            raise RuntimeError(
                f"the server answered a question over SSE with an error: {answer.content}"
            )

        answered += 1

    return answered


def soak(
    server: ServerProcess, texts: list[str], options: argparse.Namespace
) -> list[dict[str, float]]:
    """Load the server until the time is up; return the figures of every period. Progress goes to stderr."""
    rng = random.Random(0)
    known = data.draw_queries(texts, 1, REPEATED_QUERIES)
    fresh = data.draw_queries(texts, 0, 50_000)
    mixed: list[Request] = []
    for query in fresh:
        mixed.append(_request(rng, rng.choice(known) if rng.random() < 0.5 else query))
    requests = itertools.cycle(mixed)
    questions = data.draw_queries(texts, 2, FRESH_QUERIES)

    async def run_period() -> tuple[Load, int]:
        load = drive(server.port, requests, options.clients, options.period)
        return await asyncio.gather(load, _ask_over_sse(server.url, questions, options.period))

    started_s = time.monotonic()
    periods: list[dict[str, float]] = []

    while time.monotonic() - started_s < options.minutes * 60:
        cpu_s = server.cpu_s()
        load, sse_questions = uvloop.run(run_period())
        load.server_cpu_s = server.cpu_s() - cpu_s
        periods.append({
            **load.figures,
            "answered": load.answered,
            "requests/s": load.rate_per_s,
            "minute": (time.monotonic() - started_s) / 60,
            "SSE questions": sse_questions,
            "RssAnon MB": server.anonymous_mb(),
            "server CPU %": 100 * load.server_cpu_s / load.elapsed_s,
        })  # fmt: skip
        sys.stderr.write(" ".join(write_figures(periods[-1], FORMATS)) + "\n")

    return periods


def judge(periods: Sequence[Mapping[str, float]], max_growth_mb: float) -> tuple[str, list[str]]:
    """Return a sentence with the figures that decide, and what went wrong."""
    third = max(1, len(periods) // 3)
    first_mb, first_ms = _memory_and_p99(periods[:third])
    last_mb, last_ms = _memory_and_p99(periods[-third:])

    faults: list[str] = []
    if errors := sum(period["errors"] for period in periods):
        faults.append(f"{errors} requests without a right answer")
    if last_mb - first_mb > max_growth_mb:
        faults.append(
            f"anonymous memory grew by {last_mb - first_mb:.1f} MB from the first third to the last"
        )

    if last_ms / first_ms > MAX_P99_RATIO:
        faults.append(f"p99 of the last third is {last_ms / first_ms:.2f} times that of the first")
    answered = sum(period["answered"] for period in periods)
    sentence = (
        f"{periods[-1]['minute']:.1f} minutes, {answered:,} requests: mean "
        f"anonymous memory {first_mb:.1f} MB in the first third and {last_mb:.1f} MB in the last, median p99 "
        f"{first_ms:.1f} ms and {last_ms:.1f} ms. {'; '.join(faults) or 'Flat and stable'}."
    )
    return sentence, faults


def _memory_and_p99(periods: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """Return the mean anonymous memory, MB, and the median p99, milliseconds."""
    memory_mb = mean(period["RssAnon MB"] for period in periods)
    return memory_mb, median(period["p99 ms"] for period in periods)


def main() -> None:
    """Soak the server and print the table; status 1 if something went wrong."""
    options = parse_options(
        __doc__,
        minutes=30.0,
        period=(60.0, "seconds between two samples"),
        clients=64,
        passages=(10_000, "rows of the index"),
        max_growth_mb=5.0,
        work=(data.WORK, "index"),
    )
    texts = data.wiki18_passages(least=options.passages)[: options.passages]
    index = data.prepare_index(
        texts, options.work / f"{options.passages}" / "weightless", data.index_config()
    )
    pages = data.write_pages(options.work / "pages.jsonl", PAGE)

    with running_server(
        index, ["--retriever", "hybrid", "--top-k", "3", "--pages", str(pages)], spare_core()
    ) as server:
        periods = soak(server, texts, options)

    sentence, faults = judge(periods, options.max_growth_mb)
    rows = [write_figures(period, FORMATS) for period in periods[:: max(1, len(periods) // 30)]]
    publish(options, "soak", tuple(FORMATS), rows, before=sentence)
    sys.exit("\n".join(faults) or 0)


if __name__ == "__main__":
    main()
