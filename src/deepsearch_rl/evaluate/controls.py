"""Controls beside every F1: the model without search, with random passages, and with the gold passages.

**No search**: system prompt and question as always, no tool offered; the single answer is scored.
Right answers come from the model's weights or from guessing.

**Gold passages**: the agent's conversation with another search. Before its first turn the model
sees a call that it did not write, ``retrieve`` with the question as its query, and as its result
the chunks that hold the gold facts, in the order of the question's evidence, or where it has no
facts, the chunks of its gold documents. The tool stays
offered, so that the prompt is the one of training; every further search returns the same passages.
Wrong answers are not the retriever's fault. The inserted turn is not counted.

**Random passages**: the same with as many passages as a search returns, drawn from the corpus for
each question, none of which holds gold evidence. What the model gains over these by the gold
passages, it has read in them; what it answers with these, it knows or guesses.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Self, TypeAlias

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.protocols import EndpointPolicy, open_protocol
from deepsearch_rl.agent.rollout import RolloutModel, rollout_seed, run_rollout
from deepsearch_rl.agent.search_tool import SearchTool, ShownPassage
from deepsearch_rl.agent.steps import RolloutSteps
from deepsearch_rl.agent.transcript import RolloutKey, Transcript
from deepsearch_rl.chat.client import open_client
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.core.records import Chunk, Question, Retrieval, Trajectory
from deepsearch_rl.data.titles import title_key
from deepsearch_rl.search.gold import chunk_title_key, gold_evidence, without_space

# Returns what every search of a question shows
GivenPassages: TypeAlias = Callable[[Question], tuple[Chunk, ...]]


class ControlAgent:
    """Answers questions under one of the controls; the same interface and arguments as ``SearchAgent``.

    ``passages`` finds the result of every search; None for the control without search.
    """

    def __init__(
        self,
        config: AgentConfig,
        endpoint: Endpoint,
        temperature: float,
        model_name: str,
        passages: GivenPassages | None,
        seed: int,
    ) -> None:
        self._endpoint = endpoint
        self._seed = seed
        self._passages = passages
        self._key = RolloutKey(model_name, config.prompt_title, temperature, config.protocol)
        self._protocol = open_protocol(
            config,
            offer_tool=passages is not None,
            begins_in_thought=endpoint.begins_in_thought,
        )
        # A control with passages begins with a search that the model did not write, which is a turn
        inserted_turn = {"max_turns": config.max_turns + 1}
        single_answer = {"max_searches": 0, "max_turns": 1}
        self._config = config.model_copy(
            update=single_answer if passages is None else inserted_turn
        )
        self._tool = SearchTool(self._search, self._config, self._protocol)

    async def __aenter__(self) -> Self:
        self._client = open_client(self._endpoint, self._config.call_timeout_s)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()

    async def answer(self, question: Question, sample: int) -> Trajectory:
        """Answer one question; a failure is the trajectory's stop reason and error, nothing is raised."""
        transcript = Transcript(question, self._protocol.opening(question.question))
        # Begin with a search that the model did not write
        if self._passages is not None:
            passages = await self._search(question.question, question)
            retrieval = Retrieval(
                query=question.question, chunk_ids=tuple(passage.chunk_id for passage in passages)
            )
            search = self._protocol.search_turn(question.question)
            transcript.messages.append(search)
            transcript.keep(search.tool_calls[0], self._protocol.observation(passages), retrieval)

        seed = rollout_seed(self._seed, question, sample)
        policy = EndpointPolicy(
            self._client, self._endpoint, self._protocol, self._key.temperature, seed
        )
        model = RolloutModel(policy, RolloutSteps(self._protocol, self._config, transcript))
        reason, detail = await run_rollout(model, self._tool, transcript)
        return transcript.finish(
            sample, self._key, reason, detail and self._endpoint.redact(detail)
        )

    async def _search(self, query: str, question: Question) -> tuple[ShownPassage, ...]:  # noqa: ARG002 - the same for all
        chunks = self._passages(question) if self._passages else ()
        return tuple(ShownPassage(chunk=chunk.contents, chunk_id=chunk.id) for chunk in chunks)


class GoldPassages:
    """Finds the chunks that hold a question's gold facts, or without facts, those of its gold documents.

    A fact belongs to the chunk of its document that contains it (ignoring white space). A fact that
    no chunk contains, because a chunk's end cut it or the source words it differently, belongs to
    all chunks of its document. Documents are named by id, or by title where the source gives no id.
    Only chunks of documents that ``questions`` name stay in memory.
    """

    def __init__(self, chunks: Iterable[Chunk], questions: Iterable[Question]) -> None:
        ids: set[str] = set()
        titles: set[str] = set()
        for question in questions:
            if not question.metadata.evidence_list:
                ids.update(question.metadata.supporting_doc_ids or ())
            for fact in question.metadata.evidence_list or ():
                if fact.doc_id is not None:
                    ids.add(fact.doc_id)
                elif fact.title:
                    titles.add(title_key(fact.title))

        self._by_document: dict[str, list[Chunk]] = {}
        # A corpus has millions of passages: without evidence it is not read
        for chunk in chunks if ids or titles else ():
            if chunk.metadata.doc_id in ids or chunk_title_key(chunk) in titles:
                self._by_document.setdefault(chunk.metadata.doc_id, []).append(chunk)

        self._id_of_title: dict[str, str] = {}
        for doc_id, chunks_of_document in self._by_document.items():
            self._id_of_title[chunk_title_key(chunks_of_document[0])] = doc_id

    def __call__(self, question: Question) -> tuple[Chunk, ...]:
        """Return the gold passages of ``question``."""
        passages: dict[str, Chunk] = {}
        for evidence in question.metadata.evidence_list or ():
            doc_id = evidence.doc_id or ""
            if not doc_id and evidence.title:
                doc_id = self._id_of_title.get(title_key(evidence.title), "")

            chunks = self._by_document.get(doc_id, [])
            fact = without_space(evidence.fact)
            with_fact = [chunk for chunk in chunks if fact in without_space(chunk.contents)]
            # In the order of the evidence; of chunks with two facts the first place counts
            for chunk in with_fact or chunks:
                passages.setdefault(chunk.id, chunk)

        if not question.metadata.evidence_list:
            for name in question.metadata.supporting_doc_ids or ():
                for chunk in self._by_document.get(name, []):
                    passages.setdefault(chunk.id, chunk)

        return tuple(passages.values())


class RandomPassages:
    """Draws ``top_k`` passages of a corpus for each question, none of which holds its gold evidence.

    A question gets the same passages at every search and in every run of the same ``seed``; fewer
    where the corpus has no more.
    """

    def __init__(self, chunks: Sequence[Chunk], top_k: int, seed: int) -> None:
        self._chunks = chunks
        self._top_k = top_k
        self._seed = seed

    def __call__(self, question: Question) -> tuple[Chunk, ...]:
        """Return the passages of ``question``."""
        rng = random.Random(f"{self._seed}/{question.id}/random passages")
        gold = gold_evidence(question)
        drawn: set[int] = set()
        passages: list[Chunk] = []

        # Row by row: a corpus has millions of passages, and few of them are gold
        while len(passages) < self._top_k and len(drawn) < len(self._chunks):
            row = rng.randrange(len(self._chunks))
            if row in drawn:
                continue
            drawn.add(row)
            chunk = self._chunks[row]
            if gold is None or not gold.found_in(chunk):
                passages.append(chunk)

        return tuple(passages)
