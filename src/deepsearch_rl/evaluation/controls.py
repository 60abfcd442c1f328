"""Two controls beside every F1: what a model knows without searching, and what it makes of perfect search results.

**No search**: system prompt and question as always, no tool offered; the one answer that follows is scored. What it
gets right comes from its weights or from guessing.

**Gold passages**: the agent's conversation with the search replaced. Before its first turn the model is given a call
that it did not write, ``retrieve`` with the question as its query, and a result that holds the chunks with the gold
facts, in the order of the question's evidence, written as any result is (:func:`format_passages`; a question without
evidence gets "No passages found."). The tool stays offered, so that the prompt is the one that the model was trained
on; whatever it searches for next returns the same passages. What it gets wrong now is not the retriever's fault.
"""

import asyncio
import json
import random
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeAlias

import openai
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice

from deepsearch_rl.agent.endpoint import Endpoint
from deepsearch_rl.agent.prompts import load_prompt
from deepsearch_rl.agent.rollout import MODEL_RETRIES, AgentConfig, model_failure
from deepsearch_rl.agent.tool import RETRIEVE_TOOL, format_passages
from deepsearch_rl.agent.transcript import RolloutKey, Transcript, whole
from deepsearch_rl.records import Chunk, Message, Question, StopReason, ToolCall, Trajectory
from deepsearch_rl.retrieval.gold import without_space
from deepsearch_rl.trajectories.convert import chat_messages

GoldText: TypeAlias = Callable[[Question], str]
"""The text of the search result that a question's gold passages make."""


class ControlAgent:
    """Answers questions under one of the two controls; the same interface as ``SearchAgent``.

    Args:
        config: prompt and limits of the agent.
        endpoint: the model.
        temperature: sampling temperature of every call.
        model_name: what trajectories name as their model.
        gold_text: makes the result of every search; None for the control without search.
        seed: every rollout asks the endpoint to sample with a seed drawn from this one, its question and its number.
    """

    def __init__(
        self,
        config: AgentConfig,
        endpoint: Endpoint,
        temperature: float,
        model_name: str,
        gold_text: GoldText | None,
        seed: int,
    ) -> None:
        self._config, self._endpoint, self._key = config, endpoint, RolloutKey(model_name, config.prompt, temperature)
        self._gold_text, self._seed = gold_text, seed

    async def __aenter__(self) -> Self:
        self._client = openai.AsyncOpenAI(
            base_url=self._endpoint.base_url,
            api_key=self._endpoint.api_key,
            timeout=self._config.timeout_s,
            max_retries=MODEL_RETRIES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def answer(self, question: Question, sample: int) -> Trajectory:
        """Answer one question; whatever goes wrong is in the trajectory's stop reason and error, nothing is raised."""
        system = Message(role="system", content=load_prompt(self._config.prompt))
        conversation = Transcript([system, Message(role="user", content=question.question)])
        seed = random.Random(f"{self._seed}/{question.id}/{sample}").getrandbits(31)
        reason, error = await self._outcome(question, conversation, seed)
        return conversation.finish(question, sample, self._key, reason, error)

    async def _outcome(self, question: Question, conversation: Transcript, seed: int) -> tuple[StopReason, str | None]:
        try:
            async with asyncio.timeout(self._config.timeout_s):
                return await self._converse(question, conversation, seed), None
        except TimeoutError:
            return StopReason.DEADLINE, f"not finished after {self._config.timeout_s:g} s"
        except openai.APIError as error:
            return model_failure(error), self._endpoint.redact(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever a server's reply breaks is this rollout's failure
            return StopReason.MODEL_ERROR, self._endpoint.redact(f"{type(error).__name__}: {error}")

    async def _converse(self, question: Question, conversation: Transcript, seed: int) -> StopReason:
        if self._gold_text is None:
            return _reason(await self._turn(conversation, seed))
        passages, messages = self._gold_text(question), conversation.messages
        arguments = json.dumps({"query": question.question}, ensure_ascii=False)
        given = ToolCall(id="call_1", name="retrieve", arguments=arguments)
        messages.append(Message(role="assistant", tool_calls=(given,)))
        for _ in range(self._config.max_turns):
            messages.extend(
                Message(role="tool", content=passages, tool_call_id=call.id) for call in messages[-1].tool_calls
            )
            choice = await self._turn(conversation, seed)
            if not messages[-1].tool_calls:
                return _reason(choice)
        return StopReason.TURN_BUDGET

    async def _turn(self, conversation: Transcript, seed: int) -> Choice:
        """Ask the model for one turn and append it."""
        completion = await self._client.chat.completions.create(
            model=self._endpoint.model,
            messages=chat_messages(tuple(conversation.messages)),  # type: ignore[arg-type]
            temperature=self._key.temperature,
            max_tokens=self._config.max_tokens,
            seed=seed,
            **({} if self._gold_text is None else {"tools": [RETRIEVE_TOOL]}),  # type: ignore[dict-item]
        )
        choice = completion.choices[0]
        conversation.messages.append(_as_record(choice.message, turns=len(conversation.messages)))
        if completion.usage is not None:
            conversation.add_usage(completion.usage.prompt_tokens, completion.usage.completion_tokens)
        return choice


def _reason(choice: Choice) -> StopReason:
    text = choice.message.content or ""
    if 0 <= text.find("<answer>") < text.rfind("</answer>"):
        return StopReason.ANSWERED
    return StopReason.TOKEN_BUDGET if choice.finish_reason == "length" else StopReason.NO_ANSWER_TAG


def _as_record(message: ChatCompletionMessage, turns: int) -> Message:
    """The turn with call ids of its own, since servers draw them at random."""
    calls = tuple(
        ToolCall(id=f"call_{turns}_{position}", name=call.function.name, arguments=whole(call.function.arguments))
        for position, call in enumerate(message.tool_calls or ())
        if call.type == "function"
    )
    # Some servers repeat the calls as raw text; the model's template would render them twice.
    content = "" if calls else whole(message.content or "")
    return Message(role="assistant", content=content, tool_calls=calls)


class GoldPassages:
    """Finds the chunks that hold a question's gold facts.

    A fact belongs to the chunk of its document that contains it (white space apart); a fact that was cut by a chunk's
    end, or that the source words differently, to all chunks of its document. Documents are named by id, or by title
    where the source gives no id. Only the chunks of documents that ``questions`` name are kept in memory.
    """

    def __init__(self, chunks: Iterable[Chunk], questions: Iterable[Question]) -> None:
        evidence = [fact for question in questions for fact in question.metadata.evidence_list or ()]
        ids, titles = {fact.doc_id for fact in evidence}, {fact.title for fact in evidence if fact.doc_id is None}
        self._by_document: dict[str, list[Chunk]] = {}
        for chunk in chunks if evidence else ():
            if chunk.metadata.doc_id in ids or chunk.title in titles:
                self._by_document.setdefault(chunk.metadata.doc_id, []).append(chunk)
        self._id_of_title = {found[0].title: doc_id for doc_id, found in self._by_document.items()}

    def __call__(self, question: Question) -> str:
        """The gold passages of ``question`` as a search result."""
        found: dict[str, Chunk] = {}
        for evidence in question.metadata.evidence_list or ():
            doc_id = evidence.doc_id or self._id_of_title.get(evidence.title or "", "")
            for chunk in _holding(evidence.fact, self._by_document.get(doc_id, [])):
                found.setdefault(chunk.id, chunk)
        return format_passages(tuple(found.values()))


def _holding(fact: str, chunks: Sequence[Chunk]) -> list[Chunk]:
    wanted = without_space(fact)
    return [chunk for chunk in chunks if wanted in without_space(chunk.contents)] or list(chunks)
