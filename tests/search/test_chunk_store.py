import gzip
import json
import pickle
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ArtifactError, RecordError
from deepsearch_rl.search.rows import ChunkStore, read_chunks, write_rows

LINES = [
    {
        "id": "a-0",
        "contents": "A\nfirst",
        "metadata": {"doc_id": "a", "doc_chunks": 2, "doc_chunk_id": 0, "title": "t"},
    },
    {"id": "1", "contents": '"Wiki"\nforms of\u2028line ends \u0085 and \U0001f680, ünïcode'},
    {"id": 2, "title": "Title", "text": "Text", "source": "Here"},
    {"id": "3", "title": "", "text": 'says "doc_chunk_id"', "metadata": {"url": "http://w/3"}},
]


def store_of(folder: Path, lines: list[str], end: str = "\n") -> ChunkStore:
    path = folder / "chunks.jsonl"
    path.write_bytes(("\n".join(lines) + end).encode())
    write_rows(path, folder / "rows")
    return ChunkStore(path, folder / "rows")


@pytest.fixture(params=["escaped", "plain"])
def lines(request: pytest.FixtureRequest) -> list[str]:
    return [json.dumps(line, ensure_ascii=request.param == "escaped") for line in LINES]


def test_chunks_and_both_forms_of_flashrag_documents_are_read(
    tmp_path: Path, lines: list[str]
) -> None:
    chunk, wiki, titled, untitled = store_of(tmp_path, lines)
    assert (chunk.id, chunk.metadata.doc_chunks, chunk.metadata.model_extra) == (
        "a-0",
        2,
        {"title": "t"},
    )
    assert (wiki.id, wiki.title, wiki.text) == ("1", '"Wiki"', LINES[1]["contents"].split("\n")[1])
    assert (titled.id, titled.contents, titled.metadata.doc_id) == ("2", "Title\nText", "2")
    assert titled.metadata.model_extra == {"source": "Here"}
    assert (untitled.text, untitled.metadata.model_extra) == (
        'says "doc_chunk_id"',
        {"url": "http://w/3"},
    )


@pytest.mark.parametrize("end", ["\n", "", "\n\n  \n"])
def test_rows_are_the_lines_that_are_not_blank_however_the_file_ends(
    tmp_path: Path, lines: list[str], end: str
) -> None:
    store = store_of(tmp_path, [lines[0], "", "   ", *lines[1:]], end)
    assert len(store) == 4
    assert (
        [store[row] for row in range(4)]
        == list(store)
        == [chunk for _, _, chunk in read_chunks(store.path)]
    )
    assert store[-1] == store[3]
    assert store[1:3] == [store[1], store[2]]


def test_a_row_that_is_not_there_is_an_index_error(tmp_path: Path, lines: list[str]) -> None:
    store = store_of(tmp_path, lines)
    for row in (4, -5):
        with pytest.raises(IndexError):
            store[row]


def test_a_store_is_opened_again_by_the_process_that_it_is_handed_to(
    tmp_path: Path, lines: list[str]
) -> None:
    store = store_of(tmp_path, lines)
    assert pickle.loads(pickle.dumps(store))[2] == store[2]


def test_a_blank_line_is_one_of_json_space(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(RecordError, match=r"chunks\.jsonl, line 2: Invalid JSON"):
        store_of(tmp_path, [lines[0], "\f", *lines[1:]])


def test_a_row_that_was_changed_meanwhile_is_named(tmp_path: Path, lines: list[str]) -> None:
    store = store_of(tmp_path, ["", *lines])
    store.path.write_bytes(b"x" * store.path.stat().st_size)
    with pytest.raises(ArtifactError, match=r"chunks\.jsonl .* row 2 .*Build the index again"):
        store[2]


def test_a_file_that_was_cut_off_meanwhile_is_an_error_not_a_crash(
    tmp_path: Path, lines: list[str]
) -> None:
    store = store_of(tmp_path, lines)
    store.path.write_bytes(b"")
    with pytest.raises(ArtifactError, match="row 3"):
        store[3]


def test_a_missing_chunk_file_and_damaged_offsets_are_refused(
    tmp_path: Path, lines: list[str]
) -> None:
    store = store_of(tmp_path, lines)
    with pytest.raises(ArtifactError, match=r"gone\.jsonl cannot be opened"):
        ChunkStore(tmp_path / "gone.jsonl", tmp_path / "rows")
    (tmp_path / "rows" / "offsets.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(ArtifactError, match="build the index again"):
        ChunkStore(store.path, tmp_path / "rows")


def test_a_gzipped_corpus_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(b'{"id": "0", "contents": "t"}'))
    with pytest.raises(ArtifactError, match="is gzipped; unpack it"):
        list(read_chunks(tmp_path / "corpus.jsonl.gz"))
