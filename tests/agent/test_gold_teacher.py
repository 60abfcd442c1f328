"""The teacher from gold evidence through the real agent loop over a small made-up world, and over real questions."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from deepsearch_rl.agent import synthesize as module
from deepsearch_rl.agent.collect import RolloutSetting
from deepsearch_rl.agent.config import GOLD, GoldConfig
from deepsearch_rl.agent.gold_teacher import GoldTeacher, Passage, read_passages
from deepsearch_rl.agent.synthesize import SynthesizeConfig, synthesize
from deepsearch_rl.chat.chat_messages import format_passages
from deepsearch_rl.core.answers import (
    CLOSED_ANSWERS,
    INSUFFICIENT,
    extract_answer,
    f1,
    is_refusal,
    normalise,
)
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_distinct, write_jsonl
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Chunk, Document, Message, Question, Trajectory
from deepsearch_rl.data.catalogue import CORPUS_FORMATS, QUESTION_FORMATS
from deepsearch_rl.data.chunking import Cutting, cut_documents
from deepsearch_rl.data.token_counts import load_tokenizer
from deepsearch_rl.search.bm25.builtin import Bm25Config, Bm25Index
from deepsearch_rl.search.build import build_index
from deepsearch_rl.serve.launch import ServingConfig
from deepsearch_rl.server.config import RetrievalConfig
from deepsearch_rl.train.filters import evidence_found
from tests.search_servers import serve_index_here
from tests.settings import INDEX

# Title and text; the film's director is no word of a question
ARTICLES = [
    ("Silent Harbor", "Silent Harbor is a film of 1990 by Mary Moss."),
    ("Mary Moss (director)", "Mary Moss, a painter's daughter, came into this world in Tornby."),
    ("Red Lantern", "Red Lantern is a film of 1992 by Anna Bell."),
    ("Anna Bell", "Anna Bell grew up in Velm, where her father kept bees."),
    ("Tornby", "Tornby is a town on the river Ost.\n\n[7] x\n[2] Tornby\n\nIt has two bridges."),
    ("", "The director of no film was born where the director of a film was born."),
    ("Dockers walk out", "Dockers in Tornby stopped work on Monday over their wages."),
    ("The port is quiet", "Ships wait off Tornby, and its mayor asks for patience."),
]
STEPS = [
    {"question": "Silent Harbor >> director", "answer": "Mary Moss", "title": "Silent Harbor"},
    {"question": "#1 >> place of birth", "answer": "Tornby", "title": "Mary Moss (director)"},
]
HOPS = [
    {"question": "who was the director of Silent Harbor", "answer": "Mary Moss"},
    {"question": "where was #1 born", "answer": "Tornby"},
]
FACTS = [
    {"fact": ARTICLES[6][1], "title": ARTICLES[6][0], "source": "The Verge"},
    {"fact": ARTICLES[7][1], "title": ARTICLES[7][0], "source": "Fortune"},
]
BRIDGE = "Where was the director of Silent Harbor born?"
NEWS = "Did dockers stop work, as The Verge says, while the mayor was patient, as Fortune says?"
WRITTEN = {
    "titles": (BRIDGE, "Tornby", {"supporting_titles": ["Silent Harbor", "Mary Moss (director)"]}),
    "triples": (BRIDGE, "Tornby", {"gold_steps": STEPS}),
    "sub-questions": (
        BRIDGE,
        "Tornby",
        {"gold_steps": HOPS},
    ),
    "facts": (NEWS, "Yes", {"evidence_list": FACTS}),
    "null": ("Who painted the Ost?", INSUFFICIENT, {"evidence_list": []}),
    "elsewhere": (BRIDGE, "Tornby", {"supporting_titles": ["Silent Harbor", "Another"]}),
}
Teach = Callable[..., dict[str, Trajectory]]


def question(id_: str) -> Question:
    text, answer, metadata = WRITTEN[id_]
    return Question.model_validate(
        {"id": id_, "question": text, "golden_answers": [answer], "metadata": metadata}
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, smoke: Profile) -> Iterator[str]:
    """A retrieval server over the articles that returns one passage."""
    folder = tmp_path_factory.mktemp("articles")
    chunks: list[Chunk] = []
    for number, (title, text) in enumerate(ARTICLES):
        metadata = {"doc_id": str(number), "doc_chunks": 1, "doc_chunk_id": 0}
        chunk = {"id": str(number), "contents": f"{title}\n{text}", "metadata": metadata}
        chunks.append(Chunk.model_validate(chunk))

    write_jsonl(folder / "chunks.jsonl", chunks)
    build_index(folder / "chunks.jsonl", folder / "index", INDEX, 0)
    config = smoke.section("retrieval", RetrievalConfig).model_copy(update={"top_k": 1})
    with serve_index_here(folder / "index", folder / "chunks.jsonl", config) as url:
        yield url


@pytest.fixture
def teach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smoke: Profile, server: str) -> Teach:
    """Lets the teacher answer questions, and returns the trajectories by question."""
    monkeypatch.setattr(module, "serve_index", lambda *_: contextlib.nullcontext(server))

    def run(
        *questions: Question, out: str = "teacher.jsonl", **changes: int
    ) -> dict[str, Trajectory]:
        gold = GoldConfig(min_searches=changes.get("min_searches", 1))
        config = smoke.section("synthesize", SynthesizeConfig).model_copy(
            update={"teacher": GOLD, "gold": gold, "questions": None, "samples": 1}
        )
        write_jsonl(tmp_path / "train.jsonl", questions)
        setting = RolloutSetting.of(smoke, "multihoprag")
        limits = {"max_searches": changes.get("max_searches", 5)}
        setting = setting.model_copy(
            update={"questions": tmp_path, "agent": setting.agent.model_copy(update=limits)}
        )
        serving = smoke.section("serving", ServingConfig)
        synthesize(config, setting, serving, tmp_path / out, tmp_path / "work" / out)
        return {one.question_id: one for one in read_distinct(tmp_path / out, Trajectory)}

    return run


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def assert_only_read_words(messages: Sequence[Message], asked: str) -> None:
    """Every word of a query or answer stands in the question or in a passage before, but for yes, no and a refusal."""
    read = set(words(asked))
    for message in messages:
        if message.role == "tool":
            read.update(words(message.content))
        if message.role != "assistant":
            continue
        answer = extract_answer(message.content)
        closed = normalise(answer) in CLOSED_ANSWERS or is_refusal(answer)
        written = [str((call.parsed or {})["query"]) for call in message.tool_calls]
        written += [] if closed else [answer]
        assert set(words(" ".join(written))) <= read


def test_every_kind_of_evidence_is_found_in_words_that_were_read(teach: Teach):
    kinds = ["titles", "triples", "sub-questions", "facts", "null"]
    rollouts = teach(*map(question, kinds))
    for kind in kinds:
        rollout = rollouts[kind]
        assert rollout.answer == question(kind).golden_answers[0]
        assert evidence_found(rollout, question(kind))
        assert_only_read_words(rollout.messages, rollout.question)
    queries = {kind: [one.query for one in rollouts[kind].retrievals] for kind in kinds}
    first = BRIDGE.rstrip("?")
    assert queries["titles"] == [first, "Silent Harbor", "Mary Moss"]
    assert queries["triples"] == [first, "Silent Harbor director", "Mary Moss"]
    assert queries["sub-questions"][-2:] == ["where was Mary Moss born", "Mary Moss"]
    assert queries["facts"][-1] == "Fortune mayor"
    # It stops as soon as the evidence is shown
    for kind in ("titles", "facts"):
        before = [one for one in rollouts[kind].messages if one.role == "tool"][:-1]
        shorter = rollouts[kind].model_copy(update={"messages": tuple(before)})
        assert not evidence_found(shorter, question(kind))


def test_the_teacher_asks_on_in_other_words_and_refuses_when_the_evidence_is_not_found(
    teach: Teach,
):
    rollout = teach(question("elsewhere"))["elsewhere"]
    queries = [normalise(one.query) for one in rollout.retrievals]
    assert queries == ["where was director of silent harbor born", "silent harbor"]
    assert rollout.answer == INSUFFICIENT
    assert_only_read_words(rollout.messages, rollout.question)


def test_no_search_is_made_beyond_the_limit_or_below_the_least_number(teach: Teach):
    short = teach(question("elsewhere"), question("titles"), max_searches=1)
    assert {len(rollout.retrievals) for rollout in short.values()} == {1}
    assert {rollout.answer for rollout in short.values()} == {INSUFFICIENT}
    assert all("searches left" not in text for one in short.values() for text in one.tool_texts)
    longer = teach(question("titles"), out="longer.jsonl", min_searches=3)["titles"]
    assert len(longer.retrievals) == 3
    assert longer.answer == "Tornby"
    assert_only_read_words(longer.messages, longer.question)


def test_two_runs_write_the_same_bytes(teach: Teach, tmp_path: Path):
    for out in ("first.jsonl", "second.jsonl"):
        teach(*map(question, WRITTEN), out=out)
    assert (tmp_path / "first.jsonl").read_bytes() == (tmp_path / "second.jsonl").read_bytes()


def test_a_question_without_gold_evidence_is_refused_before_any_rollout(
    teach: Teach, tmp_path: Path
):
    unknown = Question(id="u-1", question="Who?", golden_answers=("Mary",))
    with pytest.raises(ConfigError, match=r"question u-1 has no gold evidence"):
        teach(question("titles"), unknown)
    assert not (tmp_path / "work").exists()


def test_passages_are_read_as_they_were_written_whatever_their_texts_hold() -> None:
    chunks: list[Document] = []
    for number, (title, text) in enumerate(ARTICLES):
        chunks.append(Document(id=str(number), contents=f"{title}\n{text}"))
    shown = [Passage(title, text) for title, text in ARTICLES]
    assert read_passages(format_passages(chunks)) == shown
    assert read_passages(format_passages([])) == []


QUESTIONS = 60
CUTTING = Cutting(chunker="sentences", chunk_size=100, overlap=0)
BM25 = Bm25Config(engine="builtin", k1=0.9, b=0.4, fields={"contents": 1.0})


def real_questions(path: Path, name: str) -> list[Question]:
    """The first questions whose gold evidence is known and in the corpus."""
    chosen: list[Question] = []
    for one in QUESTION_FORMATS[name](path):
        extra = one.metadata.model_extra or {}
        known = extra.get("evidence_known", extra.get("gold_in_corpus") == "all")
        if known and one.metadata.question_type != "null_query":
            chosen.append(one)
    return chosen[:QUESTIONS]


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("name", ["hotpotqa", "musique", "2wikimultihopqa", "multihoprag"])
def test_of_real_questions_a_third_or_more_are_answered_and_no_word_is_written_that_was_not_read(
    real_data: Path, tmp_path: Path, name: str
):
    file = real_data / name
    is_news = name == "multihoprag"
    questions = real_questions(file if is_news else file / "dev.jsonl.gz", name)
    assert len(questions) == QUESTIONS
    corpus = CORPUS_FORMATS[name if is_news else "flashrag"](
        file if is_news else file / "corpus.jsonl.gz"
    )
    documents = [one for number, one in enumerate(corpus) if is_news or number < 8000]
    chunks = list(cut_documents(documents, load_tokenizer("words"), CUTTING))
    index = Bm25Index.build(chunks, tmp_path / "bm25", BM25)

    right = 0
    for one in questions:
        messages = asyncio.run(converse(GoldTeacher(one, 1, 5), one, chunks, index))
        assert_only_read_words(messages, one.question)
        right += f1(extract_answer(messages[-1].content), one.golden_answers) == 1
    assert right >= QUESTIONS / 3


async def converse(
    teacher: GoldTeacher, asked: Question, chunks: Sequence[Chunk], index: Bm25Index
) -> list[Message]:
    """The conversation of the teacher with an index in this process, as the agent would lead it."""
    messages = [Message(role="user", content=asked.question)]
    while True:
        turn = (await teacher.reply(messages, 100)).turn
        messages.append(turn)
        if not turn.tool_calls:
            return messages
        query = str((turn.tool_calls[0].parsed or {})["query"])
        [ranking] = index.search([query], 3)
        text = format_passages(chunks[row] for row in ranking.rows_K)
        messages.append(Message(role="tool", content=text))
