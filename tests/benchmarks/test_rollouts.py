"""The benchmark of bulk runs: what its endpoint answers, and what it calls reached."""

import argparse

import openai

from benchmarks import rollouts
from benchmarks.rollouts import FORMATS, LEAN, OURS, THEIRS
from benchmarks.servers import ANSWER, MODEL, scripted_endpoint
from deepsearch_rl.answers import extract_answer

OPTIONS = argparse.Namespace(repetitions=3, rollouts=100, concurrency=30, passages=1000)


def measured(seconds: list[float], cpu_ms: float) -> list[dict[str, float]]:
    return [dict(zip(FORMATS, (100 / elapsed_s, cpu_ms, 1, 0.1, 1), strict=True)) for elapsed_s in seconds]


def test_a_ratio_is_that_of_neighbours_and_a_target_is_reached_or_missed() -> None:
    theirs, lean = measured([3, 15, 6], 27), measured([2, 10, 4], 18)
    text = rollouts.report({OURS: measured([1, 5, 2], 9), THEIRS: theirs, LEAN: lean}, OPTIONS)
    assert "| rollouts/s, collect : session per question | 2.5 | 3.00 | reached |" in text
    assert "| collect's CPU ms per rollout | 10 | 9.0 | reached |" in text
    assert f"| {OURS} | 50 | 9.0 | 1.0 | 0.10 | 1.0 |" in text
    assert f"| rollouts/s, collect : {LEAN} | - | 2.00 | - |" in text
    missed = rollouts.report({OURS: measured([2] * 3, 11), THEIRS: measured([4] * 3, 27), LEAN: lean}, OPTIONS)
    assert missed.count("missed") == 2


def test_the_scripted_endpoint_searches_once_for_the_next_query_and_then_answers() -> None:
    with scripted_endpoint(["first query", "second query"], core=None) as endpoint:
        client = openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="none", max_retries=0, timeout=20)
        user = {"role": "user", "content": "Where?"}
        replies = [client.chat.completions.create(model=MODEL, messages=[user]).choices[0].message for _ in range(3)]
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
