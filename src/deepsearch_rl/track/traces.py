"""A recorded rollout as an MLflow trace: the agent, under it every model call and every search.

Traces are made from records after the fact, with the times that the machine of the rollout noted
beside its log. Where there are none (results of another machine), the trace begins when it is sent,
nothing in it takes any time, and its tag ``times`` says so. F1 and exact match stand beside it as
feedback, the golden answers as what was expected.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mlflow import entities
from mlflow.entities import SpanType
from mlflow.tracing.constant import SpanAttributeKey, TokenUsageKey, TraceMetadataKey, TraceTagKey
from pydantic import JsonValue

from deepsearch_rl.agent.collect import SERVER_FAILURES
from deepsearch_rl.agent.timing import RolloutTimes
from deepsearch_rl.chat.chat_messages import chat_messages
from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.core.records import Message, Retrieval, TokenUsage, ToolCall, Trajectory
from deepsearch_rl.track.contents import SampledRollout

# Where a passage begins for the model: ``[1] Title`` or ``Doc 1(Title: ...)``
_PASSAGE = re.compile(r"^(?=(?:<information>)?(?:\[\d+\] |Doc \d+\(Title: ))", re.MULTILINE)
NO_TIMES = "not recorded on this machine: durations are zero"
PREVIEW_CHARACTERS = 900
_SCORER = entities.AssessmentSource(source_type="CODE", source_id="deepsearch_rl.core.answers")


class Owner(NamedTuple):
    """What a trace belongs to: MLflow's ids of the experiment, the run and the logged model."""

    experiment_id: str
    run_id: str
    model_id: str


class _Event(NamedTuple):
    """The agent's work, or a step of it; attributes are what MLflow keeps of it beyond inputs and outputs."""

    name: str
    kind: str
    inputs: JsonValue
    outputs: JsonValue
    attributes: dict[str, JsonValue]
    error: str | None = None


def build_trace(
    shown: SampledRollout, owner: Owner, times: RolloutTimes | None, now_ns: int
) -> entities.Trace:
    """Return the trace of one rollout; one without times begins and ends at ``now_ns`` (nanoseconds since 1970)."""
    rollout = shown.trajectory
    # From its names, so that a report that is sent again has the same traces
    digest = hashlib.sha256(f"{owner.run_id}/{shown.run}/{rollout.id}".encode()).hexdigest()
    trace_id = f"tr-{digest[:32]}"
    started_ns = times.start_ns if times else now_ns
    steps = {step.message: step for step in times.steps} if times else {}
    whole = (started_ns, started_ns + (times.duration_ns if times else 0))
    spans = [_span(trace_id, 1, _root(rollout), whole)]
    ended_ns = started_ns

    for number, (message, event) in enumerate(_events(rollout), 2):
        step = steps.get(message)
        began_ns = started_ns + step.start_ns if step else ended_ns
        ended_ns = began_ns + (step.duration_ns if step else 0)
        spans.append(_span(trace_id, number, event, (began_ns, ended_ns)))

    info = _info(shown, owner, trace_id, whole, "recorded" if times else NO_TIMES)
    return entities.Trace(info, entities.TraceData(spans))


def _info(
    shown: SampledRollout, owner: Owner, trace_id: str, times_ns: tuple[int, int], times: str
) -> entities.TraceInfo:
    rollout = shown.trajectory
    scores = score_rollout(rollout)
    golds = " | ".join(rollout.golden_answers)
    return entities.TraceInfo(
        trace_id=trace_id,
        trace_location=entities.TraceLocation.from_experiment_id(owner.experiment_id),
        request_time=times_ns[0] // 1_000_000,
        execution_duration=(times_ns[1] - times_ns[0]) // 1_000_000,
        state=entities.TraceState.ERROR
        if rollout.stop_reason in SERVER_FAILURES
        else entities.TraceState.OK,
        # MLflow compares the traces of two runs that have equal previews
        request_preview=f"{rollout.question[:PREVIEW_CHARACTERS]} [{shown.run} #{rollout.sample}]",
        response_preview=rollout.answer[:PREVIEW_CHARACTERS],
        client_request_id=f"{shown.model}/{shown.run}/{rollout.id}",
        trace_metadata={
            TraceMetadataKey.SOURCE_RUN: owner.run_id,
            TraceMetadataKey.MODEL_ID: owner.model_id,
            TraceMetadataKey.TOKEN_USAGE: json.dumps(_tokens(rollout)),
        },
        tags={
            TraceTagKey.TRACE_NAME: "search agent",
            "model": shown.model,
            "run": shown.run,
            "question_id": rollout.question_id,
            "question_type": rollout.question_type,
            "stop_reason": str(rollout.stop_reason),
            "times": times,
        },
        assessments=[
            entities.Feedback(
                name="f1", value=round(scores.f1, 6), source=_SCORER, trace_id=trace_id
            ),
            entities.Feedback(
                name="em", value=round(scores.em, 6), source=_SCORER, trace_id=trace_id
            ),
            entities.Expectation("expected_response", golds, source=_SCORER, trace_id=trace_id),
        ],
    )


def _root(rollout: Trajectory) -> _Event:
    attributes: dict[str, JsonValue] = {
        "stop_reason": str(rollout.stop_reason),
        "reason": rollout.error,
        "f1": round(score_rollout(rollout).f1, 6),
        "prompt_tokens": rollout.prompt_tokens,
        "completion_tokens": rollout.completion_tokens,
        "temperature": rollout.temperature,
        "prompt": rollout.prompt,
        "protocol": rollout.protocol,
    }
    # Where every call has its own tokens, MLflow adds them up
    if len(rollout.usage) != rollout.rounds:
        attributes[SpanAttributeKey.CHAT_USAGE] = _tokens(rollout)
    inputs: JsonValue = {"question": rollout.question}
    error = rollout.error if rollout.stop_reason in SERVER_FAILURES else None
    return _Event(
        "search agent", SpanType.AGENT, inputs, {"answer": rollout.answer}, attributes, error
    )


def _events(rollout: Trajectory) -> Iterator[tuple[int, _Event]]:
    """Yield the model calls and searches of a rollout, in their order, each with the position of its message."""
    # One entry per turn, or none is known
    usage = iter(rollout.usage if len(rollout.usage) == rollout.rounds else ())
    unused = list(rollout.retrievals)
    calls: dict[str | None, ToolCall] = {}
    chat: list[JsonValue] = [*chat_messages(rollout.messages, with_reasoning=True)]

    for place, message in enumerate(rollout.messages):
        if message.role == "assistant":
            calls |= {call.id: call for call in message.tool_calls}
            inputs: JsonValue = {"messages": chat[:place]}
            outputs: JsonValue = {"choices": [{"index": 0, "message": chat[place]}]}
            attributes: dict[str, JsonValue] = {
                # Not MLflow's own key, for which it would fetch a price list from the internet
                "model": rollout.model,
                SpanAttributeKey.MESSAGE_FORMAT: "openai",
            }
            turn_usage = next(usage, None)
            if turn_usage is not None:
                attributes[SpanAttributeKey.CHAT_USAGE] = _tokens(turn_usage)
            yield place, _Event("model call", SpanType.CHAT_MODEL, inputs, outputs, attributes)
        elif message.role == "tool":
            yield place, _search(message, calls.get(message.tool_call_id), unused)


def _search(message: Message, call: ToolCall | None, unused: list[Retrieval]) -> _Event:
    """Return a search with its passages; a call that was answered without searching is a plain tool call."""
    query = (call.parsed or {}).get("query") if call else None
    retrieval = next((candidate for candidate in unused if candidate.query == query), None)
    if retrieval is None:
        arguments: JsonValue = {"arguments": call.arguments if call else ""}
        return _Event("retrieve", SpanType.TOOL, arguments, message.content, {})

    # A query that is asked twice has a retrieval for each
    unused.remove(retrieval)
    documents = _documents(message.content, retrieval.chunk_ids)
    chunk_ids = list[JsonValue](retrieval.chunk_ids)
    return _Event(
        "retrieve", SpanType.RETRIEVER, {"query": query}, documents, {"chunk_ids": chunk_ids}
    )


def _documents(content: str, chunk_ids: Sequence[str]) -> list[JsonValue]:
    """Return the passages as the model read them, in either protocol's form; one where they cannot be told apart.

    There is none where the search found nothing, or where its passages gave way to the request for
    an answer.
    """
    passages = list(filter(None, map(str.strip, _PASSAGE.split(content))))
    if chunk_ids and len(passages) != len(chunk_ids):
        passages = [content]
        chunk_ids = [" ".join(chunk_ids)]

    documents: list[JsonValue] = []
    for passage, name in zip(passages, chunk_ids, strict=False):
        documents.append({"page_content": passage, "metadata": {"doc_uri": name}})

    return documents


def _tokens(usage: Trajectory | TokenUsage) -> JsonValue:
    return {
        TokenUsageKey.INPUT_TOKENS: usage.prompt_tokens,
        TokenUsageKey.OUTPUT_TOKENS: usage.completion_tokens,
        TokenUsageKey.TOTAL_TOKENS: usage.prompt_tokens + usage.completion_tokens,
    }


def _span(trace_id: str, number: int, event: _Event, times_ns: tuple[int, int]) -> entities.Span:
    """Return a finished span, as MLflow's own reader makes it: every attribute is JSON text. The first is the root."""
    attributes = {
        SpanAttributeKey.REQUEST_ID: trace_id,
        SpanAttributeKey.SPAN_TYPE: event.kind,
        SpanAttributeKey.INPUTS: event.inputs,
        SpanAttributeKey.OUTPUTS: event.outputs,
        **event.attributes,
    }
    texts: dict[str, str] = {}
    for name, value in attributes.items():
        texts[name] = json.dumps(value, ensure_ascii=False)

    status = entities.SpanStatusCode.OK if event.error is None else entities.SpanStatusCode.ERROR
    return entities.Span.from_dict(
        {
            "trace_id": trace_id,
            "span_id": f"{number:016x}",
            "parent_span_id": f"{1:016x}" if number > 1 else None,
            "name": event.name,
            "start_time_unix_nano": times_ns[0],
            "end_time_unix_nano": times_ns[1],
            "status": {
                "code": status.to_otel_proto_status_code_name(),
                "message": event.error or "",
            },
            "attributes": texts,
            "events": [],
        }
    )
