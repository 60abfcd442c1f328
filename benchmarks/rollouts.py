"""Rollouts per second of ``collect``, against a loop that opens an MCP session for every question.

    .venv/bin/python -m benchmarks.rollouts                                     # four minutes
    .venv/bin/python -m benchmarks.rollouts --rollouts 60 --repetitions 1       # a trial
    .venv/bin/python -m cProfile -m benchmarks.rollouts                         # where they spend their time

``collect`` uses one agent for the run, checks, logs and writes. The loop calls ``Runner.run`` with
an ``MCPServerStreamableHttp`` of each question's own, as DeepSearch-RL's original does, and writes
nothing. Both answer the same kind of questions through the same Agents SDK, model client and
retrieval server (BM25), at most ``--concurrency`` at once, and take turns in one process. The model
is a scripted endpoint in a process of its own that answers at once: one search, then an answer.

What is judged is the harness: its rollouts per second against the loop's, and its own CPU time per
rollout; the retrieval server's is beside it. Where there are two cores, the harness has one and
both servers share the other.
"""

import asyncio
import itertools
import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import openai
import uvicorn
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner
from agents.mcp import MCPServerStreamableHttp, MCPServerStreamableHttpParams
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks import data
from benchmarks.measure import (
    in_turn,
    markdown_table,
    medians,
    parse_options,
    publish,
    timed,
    verdict,
    write_figures,
)
from benchmarks.servers import ServerProcess, running_server, spare_core
from deepsearch_rl.agent.collect import BulkRun, collect
from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.chat.endpoint import NO_KEY, Endpoint
from deepsearch_rl.chat.prompts import load_prompt
from deepsearch_rl.core.processes import LOOPBACK
from deepsearch_rl.core.records import Question
from deepsearch_rl.server.launch import listen

MODEL = "scripted"
# Of :func:`scripted_endpoint`
ANSWER = "Vienna"
OURS = "collect"
THEIRS = "session per question"
TARGET_RATIO = 2.5
AIM_CPU_MS = 10
TEMPERATURE = 0.7
FORMATS = {"rollouts/s": ".0f", "CPU ms per rollout": ".1f", "retrieval server's": ".1f"}


@contextmanager
def scripted_endpoint(queries: Sequence[str], core: int | None) -> Iterator[str]:
    """Run a Chat Completions endpoint without a model, and yield its URL.

    Each new conversation searches for the next of ``queries`` and then answers. It costs the
    endpoint little to see whether a conversation already holds a tool's result, so that the client
    is what is measured.
    """
    searches = itertools.cycle([_completion(query) for query in queries])
    answer = _completion(None)

    async def complete(request: Request) -> JSONResponse:
        return JSONResponse(answer if b"tool_call_id" in await request.body() else next(searches))

    def serve(listener: socket.socket) -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})
        app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
        uvicorn.Server(uvicorn.Config(app, log_level="critical", access_log=False)).run(
            sockets=[listener]
        )

    with listen(LOOPBACK, 0) as listener:
        process = multiprocessing.get_context("fork").Process(
            target=serve, args=(listener,), daemon=True
        )
        process.start()

        try:
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}/v1"
        finally:
            process.kill()
            process.join()


def _completion(query: str | None) -> dict[str, object]:
    message: dict[str, object] = {
        "role": "assistant",
        "content": None if query else f"<answer>{ANSWER}</answer>",
    }
    if query:
        function = {"name": "retrieve", "arguments": json.dumps({"query": query})}
        message["tool_calls"] = [
            {"id": "call_of_the_script", "type": "function", "function": function}
        ]

    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if query else "stop"}
    usage = {"prompt_tokens": 200, "completion_tokens": 20, "total_tokens": 220}
    shared = {"id": "c", "object": "chat.completion", "created": 0, "model": MODEL}
    return {**shared, "choices": [choice], "usage": usage}


def collect_all(
    questions: Sequence[Question], endpoint: str, retrieval: str, config: AgentConfig
) -> list[str]:
    """Run ours; return the answers."""
    agent = partial(SearchAgent, config, Endpoint(endpoint, MODEL), retrieval, TEMPERATURE, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        run = BulkRun(
            questions,
            samples=1,
            make_agents=[agent],
            log=Path(folder, "log.jsonl"),
            label=OURS,
            out=Path(folder, "out.jsonl"),
        )
        return [str(rollout.answer) for rollout in collect(run, config.concurrency)]


def session_per_question(
    questions: Sequence[Question], endpoint: str, retrieval: str, config: AgentConfig
) -> list[str]:
    """Connect, list the tools, run and disconnect for every question; return the answers."""
    params = MCPServerStreamableHttpParams(url=f"{retrieval}/mcp")

    async def run() -> list[str]:
        places = asyncio.Semaphore(config.concurrency)
        client = openai.AsyncOpenAI(base_url=endpoint, api_key=NO_KEY)
        model = OpenAIChatCompletionsModel(MODEL, client)
        settings = ModelSettings(temperature=TEMPERATURE, max_tokens=config.max_tokens)
        agent = Agent(
            "a", instructions=load_prompt(config.prompt), model=model, model_settings=settings
        )

        async def answer(question: Question) -> str:
            async with places, MCPServerStreamableHttp(params) as server:
                own = agent.clone(mcp_servers=[server])
                result = await Runner.run(
                    own, question.question, run_config=RunConfig(tracing_disabled=True)
                )
                return str(result.final_output)

        async with client:
            return await asyncio.gather(*map(answer, questions))

    return asyncio.run(run())


LOOPS = {OURS: collect_all, THEIRS: session_per_question}


def measure(
    name: str,
    numbers: Iterator[int],
    rollouts: int,
    endpoint: str,
    retrieval: ServerProcess,
    config: AgentConfig,
) -> dict[str, float]:
    """Time one loop over new questions, which must all be answered; return the figures of the table."""
    questions: list[Question] = []
    for number in itertools.islice(numbers, rollouts):
        text = f"Which town is number {number} on the list?"
        questions.append(Question(id=f"q{number}", question=text, golden_answers=(ANSWER,)))

    retrieval_s = retrieval.cpu_s()
    started_s = time.monotonic()
    cpu_s, answers = timed(lambda: LOOPS[name](questions, endpoint, retrieval.url, config))
    elapsed_s = time.monotonic() - started_s
    retrieval_s = retrieval.cpu_s() - retrieval_s

    if wrong := [answer for answer in answers if ANSWER not in answer]:
        raise RuntimeError(
            f"{name}: {len(wrong)} of {rollouts} rollouts went wrong, the first answered: {wrong[0]}"
        )

    figures = (rollouts / elapsed_s, cpu_s / rollouts * 1000, retrieval_s / rollouts * 1000)
    sys.stderr.write(f"{name}: {figures[0]:.0f} rollouts/s\n")
    return dict(zip(FORMATS, figures, strict=True))


def verdicts(runs: dict[str, list[dict[str, float]]]) -> list[tuple[object, ...]]:
    """Return targets beside figures of both loops; the ratio of rollouts/s is the median of neighbours in time."""
    pairs = zip(runs[OURS], runs[THEIRS], strict=True)
    ratio = statistics.median(ours["rollouts/s"] / theirs["rollouts/s"] for ours, theirs in pairs)
    ours_ms = medians(runs[OURS])["CPU ms per rollout"]
    theirs_ms = medians(runs[THEIRS])["CPU ms per rollout"]
    return [
        (
            f"rollouts/s, {OURS} : {THEIRS}",
            TARGET_RATIO,
            f"{ratio:.2f}",
            verdict(ratio >= TARGET_RATIO),
        ),
        (
            f"{OURS}'s CPU ms per rollout",
            AIM_CPU_MS,
            f"{ours_ms:.1f}",
            verdict(ours_ms <= AIM_CPU_MS),
        ),
        (f"CPU per rollout, {THEIRS} : {OURS}", "-", f"{theirs_ms / ours_ms:.2f}", "-"),
    ]


def main() -> None:
    """Measure both in turn and print the tables."""
    options = parse_options(
        __doc__,
        rollouts=(150, "per loop and repetition"),
        repetitions=9,
        concurrency=(30, "rollouts at once"),
        passages=(1000, "rows of the index"),
        work=(data.WORK, "index"),
    )
    # the tiny profile's agent, with the prompt and the limits of a model of full size
    sizes = {"prompt": "multihoprag_nothink", "max_tokens": 1024, "context_tokens": 16384}
    changes = {**sizes, "concurrency": options.concurrency}
    config = AgentConfig.model_validate(data.params_section("agent") | changes)
    texts = data.wiki18_passages(least=options.passages)[: options.passages]
    folder = options.work / f"{options.passages}" / "weightless"
    numbers = itertools.count()
    index = data.prepare_index(texts, folder, data.index_config())

    with (
        running_server(index, ["--retriever", "bm25", "--top-k", "3"], spare_core()) as retrieval,
        scripted_endpoint(data.draw_queries(texts, 1, 5000), spare_core()) as endpoint,
    ):
        if spare_core() is not None:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        setting = endpoint, retrieval, config
        for name in LOOPS:
            # Not counted: libraries are loaded
            measure(name, numbers, 2 * config.concurrency, *setting)

        works = {
            name: partial(measure, name, numbers, options.rollouts, *setting) for name in LOOPS
        }
        runs = in_turn(works, options.repetitions)

    note = (
        f"{options.repetitions} x {options.rollouts} rollouts of two model calls and one search by each, in turn, "
        f"{options.concurrency} at once; {options.passages:,} passages, BM25, top 3. Medians, the ratio of rollouts/s "
        f"that of neighbours in time.\n\n{markdown_table(('what', 'target', 'measured', 'verdict'), verdicts(runs))}"
    )
    rows = [(name, *write_figures(medians(figures), FORMATS)) for name, figures in runs.items()]
    publish(options, "rollouts", ("loop", *FORMATS), rows, before=note)


if __name__ == "__main__":
    main()
