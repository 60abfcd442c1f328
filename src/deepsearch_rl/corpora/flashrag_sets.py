"""The public data sets that are read in FlashRAG's layout: seven question sets, and their Wikipedia.

Gold evidence counts as not known: the sentences of HotpotQA and 2WikiMultihopQA come from Wikipedia dumps of their own,
the paragraphs of MuSiQue are its own, and neither stands word for word in another corpus. The titles of the supporting
articles are kept. Other keys of rows without such titles are kept as they are.

The rows of three sets hold paragraphs, which make a small corpus for their questions: the ten of HotpotQA (as its
full-wiki retriever found them, so that some gold ones are missing) and of 2WikiMultihopQA, the gold ones of MuSiQue.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from pydantic import AliasChoices, BaseModel, Field

from deepsearch_rl.corpora.card import DatasetCard
from deepsearch_rl.corpora.flashrag import QuestionRow, read_documents, read_rows
from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.records import Document, Question


class SupportingFacts(BaseModel):
    """Parallel lists: the title of an article and the position of a sentence in it."""

    title: tuple[str, ...]


class Context(BaseModel):
    """Parallel lists: the titles of paragraphs and their sentences, which HotpotQA and 2WikiMultihopQA name unlike."""

    title: tuple[str, ...]
    sentences: tuple[tuple[str, ...], ...] = Field(validation_alias=AliasChoices("sentences", "content"))


class HotpotRow(QuestionRow):
    """A line of HotpotQA or 2WikiMultihopQA; ``supporting_facts`` is as FlashRAG or as the original release has it."""

    type: str = ""
    supporting_facts: SupportingFacts | tuple[tuple[str, int], ...] = ()


class HotpotContextRow(HotpotRow):
    """Such a line with its paragraphs."""

    context: Context = Context(title=(), sentences=())


def read_hotpotqa(path: Path) -> Iterator[Question]:
    """Yield the questions of a HotpotQA or 2WikiMultihopQA file; ``question_type`` is the set's own ``type``."""
    for row in read_rows(path, HotpotRow):
        facts = row.supporting_facts
        titles = facts.title if isinstance(facts, SupportingFacts) else [title for title, _ in facts]
        yield row.record(question_type=row.type, supporting_titles=tuple(dict.fromkeys(titles)))


def read_hotpotqa_paragraphs(path: Path) -> Iterator[Document]:
    """Yield the paragraphs of a file's questions, each once; raise ArtifactError where there are none."""
    contexts = (row.context for row in read_rows(path, HotpotContextRow))
    pairs = (pair for context in contexts for pair in zip(context.title, context.sentences, strict=True))
    return _paragraphs(path, ((title, " ".join(map(str.strip, sentences))) for title, sentences in pairs))


def _paragraphs(path: Path, paragraphs: Iterable[tuple[str, str]]) -> Iterator[Document]:
    distinct = dict.fromkeys(f"{title}\n{text}" for title, text in paragraphs if text.strip())
    if not distinct:
        raise ArtifactError(f"the questions of {path} come without paragraphs, so they make no corpus.")
    for number, contents in enumerate(distinct):
        yield Document(id=str(number), contents=contents)


class Paragraph(BaseModel):
    """A gold paragraph of MuSiQue."""

    title: str
    paragraph_text: str = ""


class Hop(BaseModel):
    """One step of a question's decomposition."""

    support_paragraph: Paragraph | None = None


class MusiqueRow(QuestionRow):
    """A line of a MuSiQue file."""

    question_decomposition: tuple[Hop, ...] = ()
    supporting_titles: tuple[str, ...] = ()


def read_musique(path: Path) -> Iterator[Question]:
    """Yield the questions of a file; ``question_type`` is "2_hop", "3_hop" or "4_hop" where the steps are given."""
    for row in read_rows(path, MusiqueRow):
        hops = row.question_decomposition
        question_type = f"{len(hops)}_hop" if hops else ""
        titles = [hop.support_paragraph.title for hop in hops if hop.support_paragraph]
        yield row.record(question_type=question_type, supporting_titles=titles or row.supporting_titles)


def read_musique_paragraphs(path: Path) -> Iterator[Document]:
    """Yield the gold paragraphs of a file's questions, each once; raise ArtifactError where there are none."""
    hops = (hop for row in read_rows(path, MusiqueRow) for hop in row.question_decomposition)
    paragraphs = (hop.support_paragraph for hop in hops if hop.support_paragraph)
    return _paragraphs(path, ((paragraph.title, paragraph.paragraph_text) for paragraph in paragraphs))


def _read_typed(question_type: str, path: Path) -> Iterator[Question]:
    """Yield the questions of a file that are all of one type, with their other keys."""
    for row in read_rows(path, QuestionRow):
        yield row.record(question_type=question_type, **(row.model_extra or {}))


_FlashragSet = partial(
    DatasetCard, repository="RUC-NLPIR/FlashRAG_datasets", revision="bcafb8dd07d453be3cbeeeb3f78be1841bddf92c"
)

MUSIQUE = _FlashragSet(
    name="musique",
    holds="questions composed of two to four single hops",
    paper="Trivedi et al. 2022, arXiv 2108.00573",
    files=("musique/dev.jsonl",),
    licence="CC BY 4.0",
    sample={
        "id": "dev_0",
        "question": "Who is the spouse of the Green performer?",
        "golden_answers": ["Miquette Giraudy"],
        "metadata": {"question_decomposition": [{"support_paragraph": {"title": "Green"}}]},
    },
    read_questions=read_musique,
)
TWO_WIKI = _FlashragSet(
    name="2wikimultihopqa",
    holds="two- to four-hop questions made from Wikidata relations",
    paper="Ho et al. 2020, arXiv 2011.01060",
    files=("2wikimultihopqa/dev.jsonl",),
    licence="Apache-2.0",
    sample={
        "id": "dev_0",
        "question": "Who is the mother of the director of film Polish-Russian War?",
        "golden_answers": ["Malgorzata Braunek"],
        "metadata": {"type": "compositional", "supporting_facts": {"title": ["Polish-Russian War"]}},
    },
    read_questions=read_hotpotqa,
)
HOTPOTQA = _FlashragSet(
    name="hotpotqa",
    holds="two-hop bridge and comparison questions",
    paper="Yang et al. 2018, arXiv 1809.09600",
    files=("hotpotqa/dev.jsonl",),
    licence="CC BY-SA 4.0",
    sample={
        "id": "dev_0",
        "question": "Were Scott Derrickson and Ed Wood of the same nationality?",
        "golden_answers": ["yes"],
        "metadata": {"type": "comparison", "supporting_facts": {"title": ["Scott Derrickson", "Ed Wood"]}},
    },
    read_questions=read_hotpotqa,
)
NQ = _FlashragSet(
    name="nq",
    holds="single-hop questions typed into a search engine",
    paper="Kwiatkowski et al. 2019, TACL 7",
    files=("nq/test.jsonl",),
    licence="CC BY-SA 3.0 (the questions of the original release)",
    sample={
        "id": "test_0",
        "question": "how many votes to approve supreme court justice",
        "golden_answers": ["A simple majority"],
    },
    read_questions=partial(_read_typed, "1_hop"),
)
TRIVIAQA = _FlashragSet(
    name="triviaqa",
    holds="single-hop trivia questions with many aliases each",
    paper="Joshi et al. 2017, arXiv 1705.03551",
    files=("triviaqa/test.jsonl",),
    licence="of the question authors; see the paper (no licence file was seen)",
    sample={
        "id": "test_0",
        "question": "What name is given to the dark gap between the rings of the planet Saturn, discovered in 1675?",
        "golden_answers": ["Cassini's Division"],
    },
    read_questions=partial(_read_typed, "1_hop"),
)
POPQA = _FlashragSet(
    name="popqa",
    holds="single-hop questions about entities of all popularities",
    paper="Mallen et al. 2023, arXiv 2212.10511",
    files=("popqa/test.jsonl",),
    licence="MIT (the authors' repository)",
    sample={"id": "test_0", "question": "What is the capital of Columbia County?", "golden_answers": ["Bloomsburg"]},
    read_questions=partial(_read_typed, "1_hop"),
)
BAMBOOGLE = _FlashragSet(
    name="bamboogle",
    holds="two-hop questions written by hand",
    paper="Press et al. 2023, arXiv 2210.03350",
    files=("bamboogle/test.jsonl",),
    licence="not stated with the copies that were seen",
    sample={
        "id": "test_0",
        "question": "Who was president of the United States in the year that Citibank was founded?",
        "golden_answers": ["james madison"],
    },
    read_questions=partial(_read_typed, "2_hop"),
)
QUESTION_SETS = (MUSIQUE, TWO_WIKI, HOTPOTQA, NQ, TRIVIAQA, POPQA, BAMBOOGLE)

WIKI18 = DatasetCard(
    name="wiki18",
    holds="the Wikipedia of December 2018 in 21,015,324 passages of 100 words",
    paper="Karpukhin et al. 2020, arXiv 2004.04906",
    repository="PeterJinGo/wiki-18-corpus",
    revision="69c1c00ffe7c5554c68d8548355cb22e46aabc51",
    files=("wiki-18.jsonl.gz",),  # a gzipped tar with one file, despite its name
    licence="CC BY-SA (Wikipedia's text)",
    sample={"id": "0", "contents": '"Aaron"\nAaron is a prophet, high priest, and the brother of Moses ...'},
    read_documents=read_documents,
)
"""The passages that Search-R1 and FlashRAG use. They are chunks already (``chunk.passages``).

A passage's first line is the title of its article in double quotes, which is kept: E5 was evaluated on that form.
"""
