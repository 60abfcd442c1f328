"""The benchmark of bulk runs: what its endpoint answers, both of its loops, and what it calls reached."""

from pathlib import Path

import openai
import pytest

from benchmarks.rollouts import (
    ANSWER,
    FORMATS,
    LOOPS,
    MODEL,
    OURS,
    THEIRS,
    scripted_endpoint,
    verdicts,
)
from deepsearch_rl.core.answers import extract_answer
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import Question
from deepsearch_rl.search.build import build_index
from tests.chunks import make_chunks
from tests.search_servers import serve_index_here
from tests.settings import AGENT, INDEX, RETRIEVAL


def measured(seconds: list[float], cpu_ms: float) -> list[dict[str, float]]:
    return [dict(zip(FORMATS, (100 / elapsed_s, cpu_ms, 1), strict=True)) for elapsed_s in seconds]


def test_a_ratio_is_that_of_neighbours_and_a_target_is_reached_or_missed() -> None:
    rows = verdicts({OURS: measured([1, 5, 2], 9), THEIRS: measured([3, 15, 6], 27)})
    assert rows == [
        ("rollouts/s, collect : session per question", 2.5, "3.00", "reached"),
        ("collect's CPU ms per rollout", 10, "9.0", "reached"),
        ("CPU per rollout, session per question : collect", "-", "3.00", "-"),
    ]
    missed = verdicts({OURS: measured([2] * 3, 11), THEIRS: measured([4] * 3, 27)})
    assert [row[-1] for row in missed].count("missed") == 2


def test_the_scripted_endpoint_searches_once_for_the_next_query_and_then_answers() -> None:
    with scripted_endpoint(["first query", "second query"], core=None) as url:
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=20)
        user = {"role": "user", "content": "Where?"}
        replies = [
            client.chat.completions.create(model=MODEL, messages=[user]).choices[0].message
            for _ in range(3)
        ]
        calls = [reply.tool_calls[0] for reply in replies if reply.tool_calls]
        assert [call.function.arguments for call in calls] == [
            '{"query": "first query"}', '{"query": "second query"}', '{"query": "first query"}',
        ]  # fmt: skip
        result = {"role": "tool", "content": "passages", "tool_call_id": calls[0].id}
        asked = [user, replies[0].model_dump(exclude_none=True), result]
        last = client.chat.completions.create(model=MODEL, messages=asked)
        client.close()
    assert extract_answer(last.choices[0].message.content or "") == ANSWER
    assert last.usage is not None
    assert last.usage.completion_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_every_question_of_a_loop_is_answered(name: str, tmp_path: Path) -> None:
    chunks = tmp_path / "chunks.jsonl"
    texts = ("Vienna\nA city on the Danube.", "Philae\nA lander on a comet.")
    write_jsonl(chunks, make_chunks(texts))
    build_index(chunks, tmp_path / "index", INDEX.model_copy(update={"encoder": None}), seed=0)
    # The endpoint's replies have 20 tokens, which the agent of other tests takes for cut ones
    agent = AGENT.model_copy(update={"max_tokens": 64})
    questions = [
        Question(id=f"q{n}", question="Where?", golden_answers=(ANSWER,)) for n in range(3)
    ]

    with (
        scripted_endpoint(["city"], core=None) as endpoint,
        serve_index_here(tmp_path / "index", chunks, RETRIEVAL) as retrieval,
    ):
        answers = LOOPS[name](questions, endpoint, retrieval, agent)

    assert len(answers) == 3
    assert all(ANSWER in answer for answer in answers)
