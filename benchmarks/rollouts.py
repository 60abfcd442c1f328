"""Rollouts per second of ``collect``, against loops that open an MCP session for every question.

    .venv/bin/python -m benchmarks.rollouts                                     # four minutes
    .venv/bin/python -m benchmarks.rollouts --rollouts 60 --repetitions 1       # a trial
    .venv/bin/python -m benchmarks.rollouts --docs docs/evaluation.md           # and the table into the document
    .venv/bin/python -m benchmarks.rollouts --profile work/collect.prof         # where ours spends its time (cProfile)

All answer the same kind of questions through the same Agents SDK, model client and retrieval server, at most
``--concurrency`` at once, and take turns in one process, so that a busy machine slows all. The model is a scripted
endpoint in a process of its own that answers at once (benchmarks/servers.py): one search, then an
answer. The retrieval server is the real one, over BM25.

    collect              ``collect`` with a ``SearchAgent``: one agent for the run, checks, log and artifact included
    session per question ``Runner.run`` with an ``MCPServerStreamableHttp`` that is opened for each question, as
                         DeepSearch-RL's original does; it writes nothing
    ... without TLS      the same with an HTTP client that is told to make no TLS context, of which the SDK's own makes
                         one per session, whatever the address; the least that a session of its own can cost

What is judged is the harness: its rollouts per second against the other loop's, and its own CPU time per rollout
(``time.process_time``; the servers' is beside it). Where there are two cores, the harness has one of its own and both
servers share the other.
"""

import argparse
import asyncio
import cProfile
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx2
import openai
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner
from agents.mcp import MCPServerStreamableHttp, MCPServerStreamableHttpParams
from agents.mcp.util import HttpClientFactory

from benchmarks import data
from benchmarks.measure import markdown_table, medians, parse_options, publish_text, timed, verdict, write_figures
from benchmarks.servers import ANSWER, MODEL, ServerProcess, running_server, scripted_endpoint, spare_core
from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.endpoint import NO_KEY, Endpoint
from deepsearch_rl.agent.prompts import load_prompt
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.records import Question
from deepsearch_rl.trajectories.collect import collect

OURS, THEIRS, LEAN = "collect", "session per question", "session per question without TLS"
TARGET_RATIO = 2.5
AIM_CPU_MS = 10
TEMPERATURE = 0.7
FORMATS = {
    "rollouts/s": ".0f",
    "CPU ms per rollout": ".1f",
    "retrieval server's": ".1f",
    "endpoint's": ".2f",
    "requests to the retrieval server": ".1f",
}


@dataclass(frozen=True, slots=True)
class Servers:
    """What all loops talk to."""

    endpoint: ServerProcess
    retrieval: ServerProcess


Loop = Callable[[Sequence[Question], Servers, AgentConfig], None]


def collect_all(questions: Sequence[Question], servers: Servers, config: AgentConfig) -> None:
    """Run ours; check that every rollout was answered."""
    endpoint = Endpoint(f"{servers.endpoint.url}/v1", MODEL)

    def make_agent() -> SearchAgent:
        return SearchAgent(config, endpoint, servers.retrieval.url, TEMPERATURE, seed=0)

    with tempfile.TemporaryDirectory() as folder:
        log, out = Path(folder, "log.jsonl"), Path(folder, "out.jsonl")
        rollouts = collect(questions, 1, make_agent, log, config.concurrency, OURS, out)
        wrong = [rollout.error for rollout in rollouts if rollout.answer != ANSWER or len(rollout.retrievals) != 1]
    if wrong:
        raise RuntimeError(f"{len(wrong)} of {rollouts.count} rollouts went wrong, the first with: {wrong[0]}")


def session_per_question(
    questions: Sequence[Question],
    servers: Servers,
    config: AgentConfig,
    *,
    make_client: HttpClientFactory | None = None,
) -> None:
    """Connect, list the tools, run and disconnect for every question."""
    params = MCPServerStreamableHttpParams(url=f"{servers.retrieval.url}/mcp")
    if make_client:
        params["httpx_client_factory"] = make_client

    async def run() -> None:
        places = asyncio.Semaphore(config.concurrency)
        client = openai.AsyncOpenAI(base_url=f"{servers.endpoint.url}/v1", api_key=NO_KEY)
        model = OpenAIChatCompletionsModel(MODEL, client)
        settings = ModelSettings(temperature=TEMPERATURE, max_tokens=config.max_tokens)
        instructions = load_prompt(config.prompt)

        async def answer(question: Question) -> str:
            async with places, MCPServerStreamableHttp(params) as server:
                agent = Agent(
                    "a", instructions=instructions, mcp_servers=[server], model=model, model_settings=settings
                )
                result = await Runner.run(agent, question.question, run_config=RunConfig(tracing_disabled=True))
                return str(result.final_output)

        answers = await asyncio.gather(*map(answer, questions))
        await client.close()
        if wrong := [answer for answer in answers if ANSWER not in answer]:
            raise RuntimeError(f"{len(wrong)} of {len(answers)} answers went wrong, the first: {wrong[0]}")

    asyncio.run(run())


def client_without_tls(
    headers: dict[str, str] | None = None, timeout: object = None, auth: object = None
) -> httpx2.AsyncClient:
    """The SDK's default client but for the TLS context, which it would make by reading every certificate."""
    assert auth is None
    return httpx2.AsyncClient(headers=headers, timeout=timeout, follow_redirects=False, verify=False)  # type: ignore[arg-type]


LOOPS: dict[str, Loop] = {
    OURS: collect_all,
    THEIRS: session_per_question,
    LEAN: partial(session_per_question, make_client=client_without_tls),
}


def measure(name: str, questions: Sequence[Question], servers: Servers, config: AgentConfig) -> dict[str, float]:
    """Time one loop; return the figures of the table."""
    requests = -servers.retrieval.metrics()["deepsearch_requests_total"]
    retrieval_s, endpoint_s = -servers.retrieval.cpu_s(), -servers.endpoint.cpu_s()
    elapsed_s, (cpu_s, _) = timed(lambda: timed(lambda: LOOPS[name](questions, servers, config)), time.monotonic)
    retrieval_s, endpoint_s = retrieval_s + servers.retrieval.cpu_s(), endpoint_s + servers.endpoint.cpu_s()
    requests += servers.retrieval.metrics()["deepsearch_requests_total"] - 1  # the one that asked for the count
    per_rollout = (cpu_s * 1000, retrieval_s * 1000, endpoint_s * 1000, requests)
    rates = (len(questions) / elapsed_s, *(figure / len(questions) for figure in per_rollout))
    return dict(zip(FORMATS, rates, strict=True))


def measure_in_turn(
    options: argparse.Namespace, servers: Servers, config: AgentConfig
) -> dict[str, list[dict[str, float]]]:
    """Run all loops once unmeasured, then in turn; each repetition begins with the next loop."""
    numbers = itertools.count()
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in LOOPS}
    for name in LOOPS:
        LOOPS[name](_questions(numbers, 2 * config.concurrency), servers, config)
    for repetition in range(options.repetitions):
        first = repetition % len(LOOPS)
        for name in [*LOOPS][first:] + [*LOOPS][:first]:
            measured[name].append(measure(name, _questions(numbers, options.rollouts), servers, config))
            sys.stderr.write(f"{name}: {' '.join(write_figures(measured[name][-1], FORMATS))}\n")
    return measured


def _questions(numbers: Iterator[int], count: int) -> list[Question]:
    return [
        Question(id=f"q{number}", question=f"Which town is number {number} on the list?", golden_answers=(ANSWER,))
        for number in itertools.islice(numbers, count)
    ]


@contextmanager
def running_servers(options: argparse.Namespace) -> Iterator[Servers]:
    """Run both servers, on a core of their own where there are two."""
    texts = data.wiki18_passages(least=options.passages)[: options.passages]
    folder = options.work / f"{options.passages}" / "weightless"
    index = data.prepare_index(texts, folder, data.index_config(vectors={"kind": "flat"}))
    with (
        running_server(*index, ["--retriever", "bm25", "--top-k", "3"], spare_core()) as retrieval,
        scripted_endpoint(data.draw_queries(texts, 1, 5000), spare_core()) as endpoint,
    ):
        yield Servers(endpoint, retrieval)


def report(runs: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> str:
    """Return verdicts and table as Markdown. A cell is the median of the repetitions."""
    cells = {name: medians(figures) for name, figures in runs.items()}

    def faster_than(other: str) -> float:
        """Return the median ratio of rollouts/s of neighbours in time."""
        pairs = zip(runs[OURS], runs[other], strict=True)
        return statistics.median(ours["rollouts/s"] / theirs["rollouts/s"] for ours, theirs in pairs)

    def cpu_ratio(other: str) -> str:
        return f"{cells[other]['CPU ms per rollout'] / cpu_ms:.2f}"

    cpu_ms, ratio = cells[OURS]["CPU ms per rollout"], faster_than(THEIRS)
    verdicts = [
        (f"rollouts/s, {OURS} : {THEIRS}", TARGET_RATIO, f"{ratio:.2f}", verdict(ratio >= TARGET_RATIO)),
        (f"{OURS}'s CPU ms per rollout", AIM_CPU_MS, f"{cpu_ms:.1f}", verdict(cpu_ms <= AIM_CPU_MS)),
        (f"CPU per rollout, {THEIRS} : {OURS}", "-", cpu_ratio(THEIRS), "-"),
        (f"rollouts/s, {OURS} : {LEAN}", "-", f"{faster_than(LEAN):.2f}", "-"),
        (f"CPU per rollout, {LEAN} : {OURS}", "-", cpu_ratio(LEAN), "-"),
    ]
    rows = [(name, *write_figures(figures, FORMATS)) for name, figures in cells.items()]
    return (
        f"{options.repetitions} x {options.rollouts} rollouts of two model calls and one search by each loop, in turn, "
        f"{options.concurrency} at once; {options.passages:,} passages, BM25, top 3. Medians, the ratio of rollouts/s "
        f"that of neighbours in time.\n\n"
        f"{markdown_table(('what', 'target', 'measured', 'verdict'), verdicts)}\n"
        f"{markdown_table(('loop', *FORMATS), rows)}"
    )


def main() -> None:
    """Measure all loops in turn and print the tables."""
    options = parse_options(
        __doc__,
        rollouts=(150, "per loop and repetition"),
        repetitions=9,
        concurrency=(30, "rollouts at once"),
        passages=(1000, "rows of the index"),
        work=(data.WORK, "index and results"),
        profile=(Path, "write cProfile's figures of one run of ours there, and no table"),
    )
    # the tiny profile's agent, with the prompt and the limits of a model of full size
    sizes = {"prompt": "multihoprag_nothink", "max_tokens": 1024, "context_tokens": 16384}
    changes = {**sizes, "concurrency": options.concurrency}
    config = AgentConfig.model_validate(data.params_section("agent") | changes)
    with running_servers(options) as servers:
        if spare_core() is not None:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        if options.profile:  # makes everything slower: for shares, not for figures
            profiler, numbers = cProfile.Profile(), itertools.count()
            collect_all(_questions(numbers, 2 * config.concurrency), servers, config)
            profiler.runcall(collect_all, _questions(numbers, options.rollouts), servers, config)
            profiler.dump_stats(options.profile)
        else:
            publish_text(options, "rollouts", report(measure_in_turn(options, servers, config), options))


if __name__ == "__main__":
    main()
