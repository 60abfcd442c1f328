"""Questions about a folder of documents: passages are linked, a model writes, an audit rejects.

corpus.jsonl              the documents, as the source ``documents`` of the stage download reads them
unreadable.json           files that could not be read, with the reason
questions/<split>.jsonl   the questions that passed the audit
rejected.jsonl            the others, each with its reason
audit.json                the funnel
"""

import logging
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

from pydantic import Field

from deepsearch_rl.chat.endpoint import open_endpoint, require_remote
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import (
    AppendLog,
    atomic_directory,
    only_writer,
    sha256_json,
    write_json,
    write_jsonl,
)
from deepsearch_rl.core.records import (
    Chunk,
    Evidence,
    NonEmpty,
    Question,
    QuestionMetadata,
    Record,
)
from deepsearch_rl.data.chunking import ChunkConfig, cut_documents
from deepsearch_rl.data.documents import DocumentFolder
from deepsearch_rl.data.question_writing.audit import AuditConfig, Auditor, Funnel, Reason
from deepsearch_rl.data.question_writing.drafts import Draft, read_drafts, writing_prompt
from deepsearch_rl.data.question_writing.links import (
    PassageGroup,
    passage_groups,
    rare_terms,
    split_documents,
)
from deepsearch_rl.data.question_writing.model_calls import LoggedModel, WriterConfig
from deepsearch_rl.data.token_counts import load_tokenizer
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.manifest import IndexConfig
from deepsearch_rl.search.searcher import open_index

_LOG = logging.getLogger(__name__)
# How to get more questions, by what ended the writing
_MORE = {
    "enough": "Raise make_questions.questions",
    "budget": "Raise make_questions.budget_tokens",
    "passages": "Add documents, take another writer, or change make_questions.splits",
}
TRAIN = "train"
Share = Annotated[float, Field(gt=0, lt=1)]


class WritingConfig(Record):
    """Section ``make_questions``."""

    documents: dict[str, NonEmpty] = Field(
        description="name -> folder of documents; questions are made for each"
    )
    writer: WriterConfig = Field(description="writes questions, and answers them for the audit")
    budget_tokens: int = Field(ge=1, description="of all prompts and replies; then writing stops")
    questions: int = Field(ge=1, description="that pass the audit; then writing stops")
    splits: dict[str, Share] = Field(
        min_length=1, description="split -> its share of the documents; together 1"
    )
    min_train: int = Field(
        default=1,
        ge=1,
        description="questions that the split train has at least, for what comes after",
    )
    audit: AuditConfig


class Rejected(Record):
    """A draft that the audit rejected."""

    reason: Reason
    question_type: str
    question: NonEmpty
    answer: str
    passages: tuple[str, ...] = Field(description="ids")
    evidence: tuple[str, ...]


def make_questions(
    folder: Path,
    config: WritingConfig,
    chunking: ChunkConfig,
    index: IndexConfig,
    seed: int,
    work: Path,
    replies: Path,
    out: Path,
) -> Funnel:
    """Write the corpus, its questions and the funnel into ``out``.

    Args:
        folder: the documents.
        config: section ``make_questions``.
        chunking: how documents are cut into the passages that the writer gets.
        index: what the audit searches the passages with.
        seed: of splits and of the order of passages.
        work: folder for passages and index.
        replies: log of everything the writer said, keyed by request. It costs money: a stopped run, a
            larger budget or changed code asks only what is not in it.
        out: folder to write.

    Raises:
        ArtifactError: the folder has no readable file, or no question of some split, or too few of
            train, passed the audit.
        ConfigError: the writer's endpoint is not set, or there are too few documents for the splits.
        EndpointError: the writer failed.
        UnavailableError: a package that reads a kind of document is not installed.
    """
    endpoint = open_endpoint(require_remote(Path(config.writer.endpoint)))
    documents = DocumentFolder(folder)

    with (
        only_writer(out),
        atomic_directory(out) as partial,
        AppendLog(replies) as log,
    ):
        write_jsonl(partial / "corpus.jsonl", documents)
        write_json(partial / "unreadable.json", documents.unreadable)
        chunks = list(cut_documents(documents, load_tokenizer(chunking.tokenizer), chunking))
        passages = work / "passages.jsonl"
        write_jsonl(passages, chunks)
        build_index(passages, work / "index", index, seed)

        model = LoggedModel(config.writer, endpoint, log)
        auditor = Auditor(config.audit, open_index(work / "index", passages), model)
        writing = _Writing(config, model, auditor)
        writing.run(chunks, seed)
        funnel = writing.funnel()
        _require_questions(folder, config, funnel, replies)
        for split in config.splits:
            questions = _questions_of(split, writing.kept)
            write_jsonl(partial / "questions" / f"{split}.jsonl", questions)

        write_jsonl(partial / "rejected.jsonl", writing.rejected)
        write_json(partial / "audit.json", funnel.model_dump(mode="json"))

    _LOG.info("%s: %d of %d drafts passed the audit", folder, funnel.kept, funnel.drafts)
    return funnel


class _Writing:
    """Writes and audits questions, a batch of passage groups at a time, until they or the budget suffice."""

    def __init__(self, config: WritingConfig, model: LoggedModel, auditor: Auditor) -> None:
        self._config = config
        self._model = model
        self._auditor = auditor
        self.kept: list[Draft] = []
        self.rejected: list[Rejected] = []
        self._reasons: Counter[Reason] = Counter()
        self._groups = 0
        self._unreadable = 0
        self._stopped_by = "passages"

    def run(self, chunks: Sequence[Chunk], seed: int) -> None:
        """Write questions about passages, pairs and chains, in random order."""
        rng = random.Random(seed)
        rare = rare_terms(chunks)
        # Not a set: splits are drawn from this order
        names = list(dict.fromkeys(chunk.metadata.doc_id for chunk in chunks))
        split_of = split_documents(names, rare, self._config.splits, rng)
        _require_documents(self._config.splits, split_of)
        waiting = passage_groups(chunks, rare, split_of, rng)

        # The budget is checked between batches of as many groups as calls run at once
        while batch := list(islice(waiting, self._config.writer.concurrency)):
            self._write(batch)
            if len(self.kept) >= self._config.questions:
                self._stopped_by = "enough"
                return
            if self._model.tokens >= self._config.budget_tokens:
                self._stopped_by = "budget"
                return

    def _write(self, batch: Sequence[PassageGroup]) -> None:
        replies = self._model.ask_all([(writing_prompt(group), 0) for group in batch])
        drafts: list[Draft] = []
        for group, reply in zip(batch, replies, strict=True):
            drafts_of_group = read_drafts(reply, group)
            self._unreadable += not drafts_of_group
            drafts.extend(drafts_of_group)

        self._groups += len(batch)
        for draft, reason in zip(drafts, self._auditor.check(drafts), strict=True):
            if reason is None:
                self.kept.append(draft)
            else:
                self._reasons[reason] += 1
                self.rejected.append(_rejected(draft, reason))

    def funnel(self) -> Funnel:
        """Return what became of all drafts."""
        return Funnel.of(
            self._reasons,
            bundles=self._groups,
            unreadable_replies=self._unreadable,
            cut_replies=self._model.cut,
            drafts=len(self.kept) + len(self.rejected),
            kept=len(self.kept),
            kept_by_type=_counts(draft.type for draft in self.kept),
            kept_by_split=_counts(draft.group.split for draft in self.kept),
            tokens=self._model.tokens,
            stopped_by=self._stopped_by,
        )


def _require_documents(splits: Mapping[str, float], split_of: Mapping[str, str]) -> None:
    """Raise ConfigError for splits without a document, before anything is paid for."""
    empty = [split for split in splits if split not in split_of.values()]
    if empty:
        # Few documents form groups of at most two (links.py)
        enough = math.ceil(2 / min(splits.values()))
        raise ConfigError(
            f"{len(split_of)} documents are too few for the splits {', '.join(splits)}: none is left for "
            f"{', '.join(empty)}, because documents that share a rare term stay together. Add documents "
            f"({enough} are enough), or change make_questions.splits."
        )


def _require_questions(folder: Path, config: WritingConfig, funnel: Funnel, replies: Path) -> None:
    """Raise ArtifactError for splits without a question, and for too few train questions."""
    empty = [split for split in config.splits if not funnel.kept_by_split.get(split)]
    train = funnel.kept_by_split.get(TRAIN, 0)
    if empty:
        problem = f"no question about {folder} passed the audit for {', '.join(empty)}"
    elif TRAIN in config.splits and train < config.min_train:
        problem = (
            f"{train} train questions about {folder} passed the audit, and make_questions.min_train is "
            f"{config.min_train}"
        )
    else:
        return

    rejected = [f"{count} {reason}" for reason, count in funnel.rejected.items() if count]
    raise ArtifactError(
        f"{problem}: of {funnel.drafts} drafts "
        f"{funnel.kept} passed; rejected: {', '.join(rejected) or 'none'}; "
        f"{funnel.unreadable_replies} replies could not be read, and {funnel.cut_replies} of all were cut at "
        f"make_questions.writer.max_tokens. {replies} has the model's replies. "
        f"{_MORE[funnel.stopped_by]}."
    )


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _rejected(draft: Draft, reason: Reason) -> Rejected:
    return Rejected(
        reason=reason,
        question_type=draft.type,
        question=draft.question,
        answer=draft.answer,
        passages=tuple(chunk.id for chunk in draft.group.chunks),
        evidence=tuple(sentence for _, sentence in draft.proofs),
    )


def _questions_of(split: str, drafts: Iterable[Draft]) -> list[Question]:
    """Return the drafts of a split as questions, by id."""
    questions: list[Question] = []
    for draft in drafts:
        if draft.group.split == split:
            questions.append(_question(draft))

    return sorted(questions, key=lambda each: each.id)


def _question(draft: Draft) -> Question:
    """Return a draft as a question, whose id is a digest of what it asks."""
    evidence: list[Evidence] = []
    if not draft.is_unanswerable:
        for chunk, sentence in draft.proofs:
            fact = Evidence(fact=sentence, doc_id=chunk.metadata.doc_id, title=chunk.title or None)
            evidence.append(fact)

    hops = 0 if draft.is_unanswerable else len(draft.group.chunks)
    # Tables group questions by hops; unanswerable ones belong to no group
    extra = {"hops": hops} if hops else {}
    return Question(
        id=sha256_json([draft.question, draft.golden_answer])[:12],
        question=draft.question,
        golden_answers=(draft.golden_answer,),
        metadata=QuestionMetadata.model_validate(
            {"question_type": draft.type, "evidence_list": evidence, **extra}
        ),
    )
