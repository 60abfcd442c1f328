"""Every public data set: its card's row goes through its loader, and so does the real file where it is at hand."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import ArtifactError, RecordError, UnknownNameError
from deepsearch_rl.data import flashrag, question_sets
from deepsearch_rl.data.catalogue import CARDS, CORPUS_FORMATS, QUESTION_FORMATS
from deepsearch_rl.evaluate import ifeval
from deepsearch_rl.search.gold import without_space
from tests.data.real_news import read_rows, write_repository

REAL_QUESTIONS = {
    "2wikimultihopqa": ("2wikimultihopqa/dev", 1117),
    "bamboogle": ("searchr1/bamboogle", 125),
    "graphrag_bench": ("graphrag_bench/questions_novel", 2010),
    "graphrag_bench (medical)": ("graphrag_bench/questions_medical", 2062),
    "hotpotqa": ("hotpotqa/dev", 5553),
    "musique": ("musique/dev", 910),
    "nq": ("searchr1/nq", 688),
    "popqa": ("searchr1/popqa", 1946),
    "triviaqa": ("searchr1/triviaqa", 825),
}
REAL_TYPES = {
    "musique": {"2_hop", "3_hop", "4_hop"},
    "2wikimultihopqa": {"compositional", "comparison", "inference", "bridge_comparison"},
    "hotpotqa": {"bridge", "comparison"},
}
REAL_CORPORA = {
    "graphrag_bench": ("graphrag_bench/corpus_novel", 20),
    "graphrag_bench (medical)": ("graphrag_bench/corpus_medical", 1),
    "wiki18": ("wiki18/sample1000", 1000),
    "wiki18 (more)": ("wiki18/extra_passages", 9637),
    "flashrag (musique)": ("musique/corpus", 7862),
    "flashrag (2wikimultihopqa)": ("2wikimultihopqa/corpus", 8086),
    "flashrag (hotpotqa)": ("hotpotqa/corpus", 19379),
}


def test_every_format_of_a_public_data_set_has_a_card() -> None:
    formats = {name.removesuffix("_paragraphs") for name in (*CORPUS_FORMATS, *QUESTION_FORMATS)}
    # A file layout and a folder of files, whatever they hold
    layouts = {"flashrag", "documents"}
    assert set(CARDS) - {"ifeval"} | layouts == formats


@pytest.mark.parametrize("name", sorted(set(QUESTION_FORMATS) - {"flashrag", "multihoprag"}))
def test_the_row_on_the_card_is_one_that_the_loader_reads(name: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(CARDS[name].sample) + "\n")
    [question] = QUESTION_FORMATS[name](path)
    sample = CARDS[name].sample
    [asked] = sample.keys() & {"question", "Prompt", "query"}
    assert question.question == sample[asked]
    assert question.golden_answers


def test_the_article_on_wiki18s_card_is_one_that_the_loader_reads(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(CARDS["wiki18"].sample) + "\n")
    [document] = CORPUS_FORMATS["wiki18"](path)
    assert document.title == '"Aaron"'


def test_the_prompt_on_ifevals_card_is_one_that_the_loader_reads_and_nulls_are_left_out(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.jsonl"
    sample = dict(CARDS["ifeval"].sample)
    padded = sample | {
        "kwargs": [{"num_highlights": None}, {"num_highlights": 3, "keywords": None}]
    }
    path.write_text(f"{json.dumps(sample)}\n{json.dumps(padded)}\n")
    first, second = flashrag.read_rows(path, ifeval.IfevalRow)
    assert first == second
    assert first.kwargs == ({}, {"num_highlights": 3})
    path.write_text(json.dumps(sample | {"kwargs": [{}]}) + "\n")
    with pytest.raises(RecordError, match=r"line 1: .*one entry per instruction"):
        list(flashrag.read_rows(path, ifeval.IfevalRow))


@pytest.mark.realdata
def test_the_real_prompts_are_read_whole(real_data: Path) -> None:
    rows = list(flashrag.read_rows(real_data / "ifeval" / "input_data.jsonl.gz", ifeval.IfevalRow))
    assert len(rows) == len({row.key for row in rows}) == 441
    assert len({name for row in rows for name in row.instruction_id_list}) == 25


@pytest.mark.realdata
@pytest.mark.parametrize("name", REAL_QUESTIONS)
def test_the_real_questions_are_read_whole_and_their_ids_differ(real_data: Path, name: str) -> None:
    file, count = REAL_QUESTIONS[name]
    questions = list(QUESTION_FORMATS[name.split()[0]](real_data / f"{file}.jsonl.gz"))
    assert len(questions) == len({question.id for question in questions}) == count
    assert all(question.golden_answers for question in questions)
    types = {question.metadata.question_type for question in questions} - {""}
    assert types == REAL_TYPES.get(name, types)


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("name", REAL_CORPORA)
def test_the_real_corpora_are_read_whole(real_data: Path, name: str) -> None:
    file, count = REAL_CORPORA[name]
    documents = list(CORPUS_FORMATS[name.split()[0]](real_data / f"{file}.jsonl.gz"))
    assert len({document.id for document in documents}) == len(documents) == count
    assert all(document.title and document.text for document in documents)


@pytest.mark.slow
@pytest.mark.realdata
def test_the_real_news_is_read_as_the_hubs_repository_holds_it(
    real_data: Path, tmp_path: Path
) -> None:
    articles, queries = (
        read_rows(real_data / "multihoprag" / f"{name}.jsonl.gz") for name in ("corpus", "queries")
    )
    folder = write_repository(tmp_path / "multihoprag", articles, queries)
    documents = {one.id: one for one in CORPUS_FORMATS["multihoprag"](folder)}
    questions = list(QUESTION_FORMATS["multihoprag"](folder))
    assert (len(documents), len(questions)) == (609, 2356)
    known = [one for one in questions if one.metadata.evidence_list is not None]
    assert len(known) == sum(row["evidence_list"] is not None for row in queries) < 2356
    facts = [fact for one in known for fact in one.metadata.evidence_list or ()]
    assert len(facts) > 900
    assert all(
        without_space(fact.fact) in without_space(documents[fact.doc_id or ""].text)
        for fact in facts
    )
    nulls = [one for one in questions if one.metadata.question_type == "null_query"]
    assert {one.golden_answers for one in nulls} == {("Insufficient information.",)}
    assert {one.metadata.evidence_list for one in nulls} == {()}


@pytest.mark.realdata
def test_every_novel_that_answers_a_question_is_in_the_corpus(real_data: Path) -> None:
    folder = real_data / "graphrag_bench"
    documents = {
        one.id for one in question_sets.read_graphrag_corpus(folder / "corpus_novel.jsonl.gz")
    }
    questions = question_sets.read_graphrag_questions(folder / "questions_novel.jsonl.gz")
    assert {(question.metadata.model_extra or {})["source"] for question in questions} <= documents


def test_graphrag_bench_is_read_from_parquet_as_from_json_lines(tmp_path: Path) -> None:
    rows = [{"corpus_name": "N", "context": "Once."}, {"corpus_name": "M", "context": "Twice."}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    documents = list(question_sets.read_graphrag_corpus(tmp_path / "c.parquet"))
    assert documents == list(question_sets.read_graphrag_corpus(tmp_path / "c.jsonl.gz"))
    assert [(one.id, one.title, one.text) for one in documents] == [
        ("N", "N", "Once."),
        ("M", "M", "Twice."),
    ]


def test_an_id_that_graphrag_bench_gives_twice_is_told_apart(tmp_path: Path) -> None:
    row = CARDS["graphrag_bench"].sample
    (tmp_path / "q.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(row)}\n")
    first, second = question_sets.read_graphrag_questions(tmp_path / "q.jsonl")
    assert (first.id, second.id) == (row["id"], f"{row['id']}-2")


def test_a_damaged_parquet_file_and_a_wrong_row_are_named(tmp_path: Path) -> None:
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ArtifactError, match=r"c\.parquet"):
        list(question_sets.read_graphrag_corpus(tmp_path / "c.parquet"))
    (tmp_path / "q.jsonl").write_text(
        '{"id": "1", "source": "N", "question": "?", "question_type": ""}\n'
    )
    with pytest.raises(RecordError) as caught:
        list(question_sets.read_graphrag_questions(tmp_path / "q.jsonl"))
    assert (caught.value.line, caught.value.field) == (1, "answer")


def test_the_command_lists_all_and_shows_one() -> None:
    listed = CliRunner().invoke(app, ["datasets"]).stdout
    assert CARDS
    assert [name for name in CARDS if name not in listed] == []
    shown = CliRunner().invoke(app, ["datasets", "popqa"]).stdout
    assert "MIT" in shown
    assert str(CARDS["popqa"].revision) in shown
    with pytest.raises(UnknownNameError, match="Did you mean 'popqa'"):
        CliRunner().invoke(app, ["datasets", "popqaa"], catch_exceptions=False)


def test_the_paragraphs_of_a_question_file_are_a_corpus(tmp_path: Path) -> None:
    question = {"id": "1", "question": "Who?", "golden_answers": ["A"]}
    context = {
        "title": ["Ada", "Bo"],
        "sentences": [["Ada is a town.", " It is old."], ["Bo is a river."]],
    }
    steps = [
        {"support_paragraph": {"title": "Ada", "paragraph_text": "Ada is a town."}},
        {"support_paragraph": None},
    ]
    rows = {
        "hotpotqa": {"context": context},
        "2wikimultihopqa": {
            "context": {"title": context["title"], "content": context["sentences"]}
        },
        "musique": {"question_decomposition": steps},
    }
    contents: dict[str, list[str]] = {}
    for name, metadata in rows.items():
        path = tmp_path / f"{name}.jsonl"
        lines = [json.dumps(question | {"id": id_, "metadata": metadata}) for id_ in ("1", "2")]
        path.write_text("\n".join(lines))
        contents[name] = [
            document.contents for document in CORPUS_FORMATS[f"{name}_paragraphs"](path)
        ]
        path.write_text(json.dumps(question))
        with pytest.raises(ArtifactError, match="come without paragraphs"):
            list(CORPUS_FORMATS[f"{name}_paragraphs"](path))
    assert contents["hotpotqa"] == ["Ada\nAda is a town. It is old.", "Bo\nBo is a river."]
    assert contents["2wikimultihopqa"] == contents["hotpotqa"]
    assert contents["musique"] == ["Ada\nAda is a town."]
