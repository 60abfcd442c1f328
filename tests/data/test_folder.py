"""Sources at hand: public layouts become the same records, splits are the published ones, bad lines are named."""

import gzip
import io
import json
import random
import tarfile
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ArtifactError, ConfigError, RecordError, UnknownNameError
from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.profile import find_profile
from deepsearch_rl.core.records import Document, Question
from deepsearch_rl.data.download import (
    CorpusSource,
    DownloadConfig,
    FolderConfig,
    QuestionSource,
    download,
    open_corpora,
    read_question_sets,
)
from tests.conftest import ROOT

QUESTION = {"id": "dev_0", "question": "Who?", "golden_answers": ["A", "B"]}


def corpus(root: Path, name: str, format_: str = "flashrag") -> list[Document]:
    config = FolderConfig(
        root=root, corpora={"c": CorpusSource(format=format_, path=Path(name))}, questions={}
    )
    return list(open_corpora(config)["c"])


def splits(
    root: Path, name: str, format_: str = "flashrag", seed: int | None = None, **sizes: int | None
) -> dict[str, list[Question]]:
    source = QuestionSource(
        format=format_, path=Path(name), shuffle_seed=seed, splits=sizes or {"val": None}
    )
    return read_question_sets(FolderConfig(root=root, corpora={}, questions={"q": (source,)}))["q"]


def write(path: Path, *rows: dict) -> None:
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )


def test_both_corpus_layouts_give_title_newline_text_and_keep_other_keys(tmp_path: Path) -> None:
    write(
        tmp_path / "c.jsonl",
        {"id": 7, "contents": '"T"\nx', "metadata": {"u": 1}},
        {"id": "b", "title": "U", "text": "y", "src": "s"},
    )
    first, second = corpus(tmp_path, "c.jsonl")
    assert (first.id, first.title, first.text, first.metadata) == ("7", '"T"', "x", {"u": 1})
    assert (second.contents, second.metadata) == ("U\ny", {"src": "s"})


def test_wiki18_is_read_from_a_gzip_file_and_from_a_gzipped_tar_under_the_same_name(
    tmp_path: Path,
) -> None:
    lines = b'{"id": "0", "contents": "\\"T\\"\\nx"}\n{"id": "1", "contents": "\\"U\\"\\ny"}\n'
    (tmp_path / "plain.jsonl.gz").write_bytes(gzip.compress(lines))
    with tarfile.open(tmp_path / "tar.jsonl.gz", "w:gz") as archive:
        member = tarfile.TarInfo("data/wiki-18.jsonl")
        member.size = len(lines)
        archive.addfile(member, io.BytesIO(lines))
    plain = corpus(tmp_path, "plain.jsonl.gz", "wiki18")
    assert [document.title for document in plain] == ['"T"', '"U"']
    assert corpus(tmp_path, "tar.jsonl.gz", "wiki18") == plain


def test_a_truncated_gzip_file_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"id": "0", "contents": "T\\nx"}\n' * 1000)
    (tmp_path / "c.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtifactError, match=r"c\.jsonl\.gz cannot be read"):
        corpus(tmp_path, "c.jsonl.gz")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "b"}', "line 2: .*neither 'contents' nor 'text'"),
        ('{"contents": "T\\nx"}', "line 2: field 'id'"),
        ('{"id": "b", "contents": 3', r"line 2: .*JSON"),
        ("[1]", "line 2: "),
    ],
)
def test_a_malformed_corpus_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": "a", "contents": "T\\nx"}\n' + line + "\n")
    with pytest.raises(RecordError, match=r"c\.jsonl, " + message):
        corpus(tmp_path, "c.jsonl")


@pytest.mark.parametrize("format_", ["flashrag", "musique", "2wikimultihopqa", "hotpotqa"])
@pytest.mark.parametrize(
    ("change", "field"),
    [({"golden_answers": []}, "golden_answers"), ({"question": None}, "question")],
)
def test_a_malformed_question_line_is_named(
    tmp_path: Path, format_: str, change: dict, field: str
) -> None:
    write(tmp_path / "q.jsonl", QUESTION, QUESTION | {"id": "dev_1"} | change)
    with pytest.raises(RecordError, match=rf"q\.jsonl, line 2: field '{field}'"):
        splits(tmp_path, "q.jsonl", format_)


def test_generic_questions_keep_their_type_evidence_and_other_metadata(tmp_path: Path) -> None:
    evidence = {"fact": "A.", "doc_id": "d", "source": "s"}
    write(
        tmp_path / "q.jsonl",
        QUESTION | {"metadata": {"question_type": "t", "evidence_list": [evidence], "hops": 2}},
    )
    (question,) = splits(tmp_path, "q.jsonl")["val"]
    assert question.metadata.model_dump(exclude_none=True) == {
        "question_type": "t", "evidence_list": (evidence,), "hops": 2,
    }  # fmt: skip


def test_musique_hotpotqa_and_2wiki_rows_give_type_and_supporting_titles_and_unknown_evidence(
    tmp_path: Path,
) -> None:
    hops = [
        {"question": f"#{n}", "support_paragraph": {"title": f"T{n}", "paragraph_text": "x"}}
        for n in range(3)
    ]
    write(tmp_path / "m.jsonl", QUESTION | {"metadata": {"question_decomposition": hops}})
    facts = {"title": ["T0", "T0", "T1"], "sent_id": [0, 1, 0]}
    write(
        tmp_path / "h.jsonl",
        QUESTION | {"metadata": {"type": "bridge", "supporting_facts": facts, "context": {}}},
    )
    pairs = [["T0", 0], ["T1", 2]]
    write(tmp_path / "w.jsonl", QUESTION | {"type": "compositional", "supporting_facts": pairs})
    seen = {}
    for name, format_ in (("m", "musique"), ("h", "hotpotqa"), ("w", "2wikimultihopqa")):
        (question,) = splits(tmp_path, f"{name}.jsonl", format_)["val"]
        assert question.golden_answers == ("A", "B")
        assert question.metadata.evidence_list is None
        seen[name] = (
            question.metadata.question_type,
            list(question.metadata.supporting_titles or ()),
        )
    assert seen == {
        "m": ("3_hop", ["T0", "T1", "T2"]), "h": ("bridge", ["T0", "T1"]), "w": ("compositional", ["T0", "T1"]),
    }  # fmt: skip


def test_multihoprag_is_read_by_the_datasets_library_from_a_repository_layout(
    multihoprag_repository: Path,
) -> None:
    documents = corpus(multihoprag_repository, ".", "multihoprag")
    assert [document.id for document in documents] == ["0", "1", "2"]
    assert documents[1].contents == "T1\nFact 1.\n\nMore."
    assert documents[1].metadata["published_at"] == "2023-09-28T12:00:00+00:00"
    questions = splits(multihoprag_repository, ".", "multihoprag")["val"]
    assert [question.id for question in questions] == ["0", "1", "2", "3"]
    assert questions[0].metadata.evidence_list is not None
    (evidence,) = questions[0].metadata.evidence_list
    assert (evidence.fact, evidence.doc_id, evidence.title) == ("Fact 2.", "2", "T2")
    assert (questions[3].golden_answers, questions[3].metadata.evidence_list) == (
        ("Insufficient information.",),
        (),
    )


def test_the_published_split_is_a_seed_42_shuffle_cut_in_order(tmp_path: Path) -> None:
    rows = [QUESTION | {"id": str(number)} for number in range(2556)]
    write(tmp_path / "q.jsonl", *rows)
    found = splits(tmp_path, "q.jsonl", seed=42, val=200, dev=150, train=None)
    # As in the published conversion: shuffle all rows, the first 200 are val, the rest train
    random.seed(42)
    random.shuffle(rows)
    expected = [row["id"] for row in rows]
    ids = {split: [question.id for question in questions] for split, questions in found.items()}
    assert ids["val"] == expected[:200]
    assert ids["dev"] + ids["train"] == expected[200:]
    assert len(ids["dev"]) == 150


def test_splits_that_a_file_cannot_fill_and_double_ids_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "q.jsonl", QUESTION, QUESTION | {"id": "dev_1"})
    with pytest.raises(ConfigError, match=r"2 questions, 1 of them taken .* 'dev' cannot have 2"):
        splits(tmp_path, "q.jsonl", val=1, dev=2)
    with pytest.raises(ConfigError, match="'dev' cannot have the rest"):
        splits(tmp_path, "q.jsonl", val=2, dev=None)
    write(tmp_path / "q.jsonl", QUESTION, QUESTION)
    with pytest.raises(ArtifactError, match="'dev_0'"):
        splits(tmp_path, "q.jsonl")


def test_unknown_formats_and_sources_are_refused_with_the_nearest_names(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'wiki18'"):
        corpus(tmp_path, "c.jsonl", "wiki-18")
    with pytest.raises(UnknownNameError, match="Did you mean 'musique'"):
        splits(tmp_path, "q.jsonl", "musiqe")
    with pytest.raises(UnknownNameError, match="Did you mean 'world'"):
        find_profile(ROOT, "tiny").with_overrides({"download.source": "wrld"}).section(
            "download", DownloadConfig
        )
    with pytest.raises(ConfigError, match=r"a section download\.folder is needed"):
        download(DownloadConfig(source="folder"), 0, tmp_path, tmp_path)


def test_a_wrong_size_of_the_generated_world_is_named_by_its_field(tmp_path: Path) -> None:
    config = DownloadConfig(source="world", world={"in_domain": {"person": "many"}})
    with pytest.raises(ConfigError, match=r"download\.world\.in_domain\.person: .*integer"):
        download(config, 0, tmp_path, tmp_path)


def test_a_download_from_a_folder_writes_every_file_or_names_what_is_missing(
    tmp_path: Path,
) -> None:
    write(tmp_path / "c.jsonl", {"id": "a", "contents": "T\nx"})
    write(tmp_path / "q.jsonl", QUESTION)
    folder = FolderConfig(
        root=tmp_path,
        corpora={"wiki": CorpusSource(format="flashrag", path=Path("c.jsonl"))},
        questions={
            "musique": (
                QuestionSource(
                    format="musique", path=Path("q.jsonl"), shuffle_seed=None, splits={"val": 1}
                ),
            )
        },
        files={"prompts.jsonl": Path("p/input.jsonl")},
    )
    (tmp_path / "p").mkdir()
    (tmp_path / "p/input.jsonl").write_bytes(b'{"key": 1}\r\n')
    config = DownloadConfig(source="folder", folder=folder)
    out = tmp_path / "out"
    assert download(config, 0, out / "corpora", out / "questions") == {"wiki": 1, "musique/val": 1}
    assert [
        question.id for question in read_jsonl(out / "questions/musique/val.jsonl", Question)
    ] == ["dev_0"]
    assert (out / "questions/prompts.jsonl").read_bytes() == b'{"key": 1}\r\n'
    (tmp_path / "c.jsonl").write_text("\n")
    with pytest.raises(ArtifactError, match="its source is empty"):
        download(config, 0, tmp_path / "empty", tmp_path / "empty")
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["prompts.jsonl"]
    (tmp_path / "c.jsonl").unlink()
    with pytest.raises(ArtifactError, match=r"c\.jsonl cannot be read: No such file"):
        download(config, 0, out / "corpora", out / "questions")
    (tmp_path / "p/input.jsonl").unlink()
    with pytest.raises(
        ArtifactError, match=r"input\.jsonl does not exist; download\.folder\.files"
    ):
        download(config, 0, out / "corpora", out / "questions")


HOTPOT = {
    "id": "a",
    "question": "Who?",
    "answer": "x",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": {"title": ["B", "A"], "sent_id": [0, 0]},
    "context": {"title": ["A", "B", "C"], "sentences": [["One.", " Two."], ["Three."], ["Four."]]},
}


def test_questions_are_chosen_by_fields_before_they_are_shuffled_and_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    levels = ["easy", "medium", "hard", "hard", "hard"]
    rows = [HOTPOT | {"id": str(place), "level": level} for place, level in enumerate(levels)]
    rows[4] |= {"type": "comparison", "subsets": ["first200", "dev7405"]}
    write(tmp_path / "h.jsonl", *rows)

    def chosen(where: dict, **sizes: int | None) -> list[str]:
        source = QuestionSource.model_validate(
            {"format": "hotpotqa", "path": "h.jsonl", "shuffle_seed": None, "where": where,
             "splits": sizes or {"val": None}}
        )  # fmt: skip
        config = FolderConfig(root=tmp_path, corpora={}, questions={"h": (source,)})
        return [question.id for question in read_question_sets(config)["h"]["val"]]

    assert chosen({"question_type": "bridge", "level": ["medium", "hard"]}) == ["1", "2", "3"]
    assert "3 of 5 questions, left out 1 by question_type, 1 by level" in caplog.text
    assert chosen({"subsets": "first200"}) == ["4"]
    with pytest.raises(
        ConfigError, match="no question has the field 'type' of `where`; they have level"
    ):
        chosen({"type": "bridge"})
    with pytest.raises(ConfigError, match=r"has 4 questions of these fields, .* cannot have 5"):
        chosen({"question_type": "bridge"}, val=5)


def test_a_question_that_is_left_out_moves_no_other_one_between_splits(tmp_path: Path) -> None:
    write(tmp_path / "h.jsonl", *(HOTPOT | {"id": name} for name in "abcdef"))

    def splits(*left_out: str) -> dict[str, set[str]]:
        source = {"format": "hotpotqa", "path": "h.jsonl", "shuffle_seed": 1, "id_prefix": "h_"}
        source |= {"splits": {"val": 2, "train": None}, "left_out": left_out}
        sets = {"h": (QuestionSource.model_validate(source),)}
        config = FolderConfig(root=tmp_path, corpora={}, questions=sets)
        read = read_question_sets(config)["h"]
        return {split: {question.id for question in read[split]} for split in read}

    whole = splits()
    first = min(whole["train"])
    kept = splits(first.removeprefix("h_"))
    assert kept == {"val": whole["val"], "train": whole["train"] - {first}}
    with pytest.raises(ConfigError, match="`left_out` names 'z', which is no question's id"):
        splits("z")


def own_paragraphs(root: Path, *sources: dict, **paragraphs: list[str]) -> FolderConfig:
    return FolderConfig.model_validate(
        {"root": root, "corpora": {}, "questions": {"h": sources}, "paragraphs": paragraphs}
    )


def test_the_paragraphs_of_the_questions_that_are_used_are_a_corpus_that_names_its_gold(
    tmp_path: Path,
) -> None:
    context = {"title": ["C", "D"], "sentences": [["Four."], ["Five."]]}
    lost = {"id": "b", "context": context, "supporting_facts": [["D", 0], ["E", 0]]}
    unused = {"id": "c", "context": {"title": ["F"], "sentences": [["Six."]]}}
    write(tmp_path / "dev.jsonl", HOTPOT, HOTPOT | lost, HOTPOT | unused)
    context = {"title": ["A", "B"], "sentences": [["One.", "Two."], ["Another."]]}
    write(tmp_path / "train.jsonl", HOTPOT | {"context": context})
    source = {"format": "hotpotqa", "shuffle_seed": None}
    folder = own_paragraphs(
        tmp_path,
        source | {"path": "dev.jsonl", "splits": {"val": 1, "dev": 1}},
        source | {"path": "train.jsonl", "id_prefix": "train_", "splits": {"train": None}},
        wiki=["h"],
    )
    out = tmp_path / "out"
    download(DownloadConfig(source="folder", folder=folder), 0, out / "corpora", out / "questions")
    documents = list(read_jsonl(out / "corpora/wiki.jsonl", Document))
    assert {document.id: document.contents for document in documents} == {
        "0": "A\nOne. Two.", "1": "B\nThree.", "2": "C\nFour.", "3": "D\nFive.", "4": "B\nAnother.",
    }  # fmt: skip
    gold = {}
    for split in ("val", "dev", "train"):
        [question] = read_jsonl(out / f"questions/h/{split}.jsonl", Question)
        gold[question.id] = question.metadata.supporting_doc_ids
    # Of b, E has no paragraph
    assert gold == {"a": ("1", "0"), "b": None, "train_a": ("4", "0")}


def test_gold_paragraphs_of_musique_are_those_that_are_marked_whatever_title_others_have(
    tmp_path: Path,
) -> None:
    paragraphs = [
        {"idx": 0, "title": "A", "paragraph_text": "Other.", "is_supporting": False},
        {"idx": 1, "title": "A", "paragraph_text": "Gold.", "is_supporting": True},
        {"idx": 2, "title": "A", "paragraph_text": "More.", "is_supporting": True},
    ]
    write(tmp_path / "m.jsonl", QUESTION | {"paragraphs": paragraphs})
    source = {"format": "musique", "path": "m.jsonl", "shuffle_seed": None, "splits": {"val": None}}
    folder = own_paragraphs(tmp_path, source, m=["h"])
    out = tmp_path / "out"
    download(DownloadConfig(source="folder", folder=folder), 0, out / "corpora", out / "questions")
    [question] = read_jsonl(out / "questions/h/val.jsonl", Question)
    assert question.metadata.supporting_doc_ids == ("1", "2")


def test_sets_that_come_without_paragraphs_make_no_corpus_of_them(tmp_path: Path) -> None:
    write(tmp_path / "q.jsonl", QUESTION)
    source = {"path": "q.jsonl", "shuffle_seed": None, "splits": {"val": None}}

    def made(format_: str, dataset: str) -> None:
        folder = own_paragraphs(tmp_path, source | {"format": format_}, wiki=[dataset])
        download(DownloadConfig(source="folder", folder=folder), 0, tmp_path, tmp_path)

    with pytest.raises(
        ArtifactError, match=r"folder\.paragraphs\.wiki: .* come without paragraphs"
    ):
        made("hotpotqa", "h")
    with pytest.raises(UnknownNameError, match="format with paragraphs"):
        made("nq", "h")
    with pytest.raises(UnknownNameError, match="question set"):
        made("hotpotqa", "hotpot")
