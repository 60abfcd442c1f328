"""Two controls beside every F1: what a model knows without searching, and what it makes of perfect search results.

**No search**: system prompt and question as always, no tool offered; the one answer that follows is scored. What it
gets right comes from its weights or from guessing.

**Gold passages**: the agent's conversation with the search replaced. Before its first turn the model is given a call
that it did not write, ``retrieve`` with the question as its query, and a result that holds the chunks with the gold
facts, in the order of the question's evidence, written as any result is (a question without evidence gets "No passages
found."). The tool stays offered, so that the prompt is the one that the model was trained
on; whatever it searches for next returns the same passages. What it gets wrong now is not the retriever's fault.
"""

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import openai

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.endpoint import Endpoint
from deepsearch_rl.agent.endpoint_policy import EndpointPolicy, model_failure, open_client
from deepsearch_rl.agent.policy import Policy
from deepsearch_rl.agent.rollout import open_protocol, rollout_seed
from deepsearch_rl.agent.transcript import RolloutKey, Transcript
from deepsearch_rl.records import Chunk, Message, Question, StopReason, Trajectory
from deepsearch_rl.retrieval.gold import without_space


class ControlAgent:
    """Answers questions under one of the two controls; the same interface as ``SearchAgent``.

    Args:
        config: prompt, protocol and limits of the agent.
        endpoint: the model.
        temperature: sampling temperature of every call.
        model_name: what trajectories name as their model.
        gold_passages: finds the result of every search; None for the control without search.
        seed: every rollout asks the endpoint to sample with a seed drawn from this one, its question and its number.
    """

    def __init__(
        self,
        config: AgentConfig,
        endpoint: Endpoint,
        temperature: float,
        model_name: str,
        gold_passages: "GoldPassages | None",
        seed: int,
    ) -> None:
        self._config, self._endpoint, self._seed = config, endpoint, seed
        self._key = RolloutKey(model_name, config.prompt, temperature, config.protocol)
        self._protocol = open_protocol(config, offer_tool=gold_passages is not None)
        self._gold_passages = gold_passages

    async def __aenter__(self) -> Self:
        self._client = open_client(self._endpoint, self._config.call_timeout_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def answer(self, question: Question, sample: int) -> Trajectory:
        """Answer one question; whatever goes wrong is in the trajectory's stop reason and error, nothing is raised."""
        conversation = Transcript(self._protocol.opening(question.question))
        seed = rollout_seed(self._seed, question, sample)
        policy = EndpointPolicy(self._client, self._endpoint.model, self._protocol, self._key.temperature, seed=seed)
        reason, error = await self._outcome(question, conversation, policy)
        return conversation.finish(question, sample, self._key, reason, error)

    async def _outcome(
        self, question: Question, conversation: Transcript, policy: Policy
    ) -> tuple[StopReason, str | None]:
        try:
            async with asyncio.timeout(self._config.timeout_s):
                return await self._converse(question, conversation, policy), None
        except TimeoutError:
            return StopReason.DEADLINE, f"not finished after {self._config.timeout_s:g} s"
        except openai.APIError as error:
            return model_failure(error), self._endpoint.redact(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever a server's reply breaks is this rollout's failure
            return StopReason.MODEL_ERROR, self._endpoint.redact(f"{type(error).__name__}: {error}")

    async def _converse(self, question: Question, conversation: Transcript, policy: Policy) -> StopReason:
        if self._gold_passages is None:
            return await self._turn(conversation, policy)
        passages = self._protocol.observation(self._gold_passages(question))
        conversation.messages.append(self._protocol.search(question.question))
        for _ in range(self._config.max_turns):
            for call in conversation.messages[-1].tool_calls:
                conversation.messages.append(Message(role="tool", content=passages, tool_call_id=call.id))
            reason = await self._turn(conversation, policy)
            if not conversation.messages[-1].tool_calls:
                return reason
        return StopReason.TURN_BUDGET

    async def _turn(self, conversation: Transcript, policy: Policy) -> StopReason:
        """Ask the model for one turn, append it, and say how the rollout ends if it is the last."""
        reply = await policy.reply(conversation.messages, self._config.max_tokens)
        conversation.add_turn(reply)
        if conversation.has_answer_tags:
            return StopReason.ANSWERED
        return StopReason.TOKEN_BUDGET if reply.cut else StopReason.NO_ANSWER_TAG


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

    def __call__(self, question: Question) -> tuple[Chunk, ...]:
        """The gold passages of ``question``."""
        found: dict[str, Chunk] = {}
        for evidence in question.metadata.evidence_list or ():
            doc_id = evidence.doc_id or self._id_of_title.get(evidence.title or "", "")
            for chunk in _holding(evidence.fact, self._by_document.get(doc_id, [])):
                found.setdefault(chunk.id, chunk)
        return tuple(found.values())


def _holding(fact: str, chunks: Sequence[Chunk]) -> list[Chunk]:
    wanted = without_space(fact)
    return [chunk for chunk in chunks if wanted in without_space(chunk.contents)] or list(chunks)
