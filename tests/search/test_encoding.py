"""Encoding to disk: right rows, and equal bytes whatever happens in between."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.search import encoding
from deepsearch_rl.search.encoders.encoder import EncoderConfig, Unread, normalise_rows
from deepsearch_rl.search.encoders.own import OwnEncoderConfig
from deepsearch_rl.search.encoders.tfidf_svd import TfidfSvdConfig
from deepsearch_rl.search.encoding import (
    EncodingConfig,
    EncodingJob,
    encode_to_file,
    write_rows,
)
from deepsearch_rl.search.flat_index import FlatIndex, open_vector_file
from deepsearch_rl.search.searcher import DenseRetriever
from tests.chunks import make_chunks
from tests.search.encoders.folders import encoder_config, write_bert

CHUNKS = make_chunks([f"comet {'river ' * (row % 9)}lander number{row % 7}" for row in range(50)])
SVD = TfidfSvdConfig(name="tfidf_svd", dimension=4, fit_rows=1000, max_terms=1000)
CONFIG = EncodingConfig(dtype="float32", block_rows=8)


@pytest.fixture
def learnt(tmp_path: Path) -> Path:
    SVD.prepare(CHUNKS, tmp_path / "learnt", seed=0)
    return tmp_path / "learnt"


def encode(
    learnt: Path, out: str = "out.npy", chunks=CHUNKS, digest: str = "d", encoder=SVD, config=CONFIG
) -> bytes:
    path = learnt.parent / out
    encode_to_file(
        EncodingJob(encoder, learnt, chunks, config), digest, path, learnt.parent / "work"
    )
    return path.read_bytes()


def blocks_encoded(learnt: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> int:
    """How many blocks another run computes."""
    written = []
    with monkeypatch.context() as patched:
        patched.setattr(
            encoding, "write_rows", lambda *arguments: (written.append(1), write_rows(*arguments))
        )
        encode(learnt, **changes)
    return len(written)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_row_n_holds_the_vector_of_chunk_n(learnt: Path, dtype: str) -> None:
    encode(learnt, config=CONFIG.model_copy(update={"dtype": dtype}))
    vectors_ND = np.load(learnt.parent / "out.npy", mmap_mode="r")
    expected_ND = SVD.open(learnt).encode([chunk.contents for chunk in CHUNKS], "passage")
    assert vectors_ND.dtype == dtype
    assert np.array_equal(vectors_ND, expected_ND.astype(dtype))


def test_an_error_midway_costs_one_block_and_no_byte(
    learnt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = encode(learnt, "undisturbed.npy")
    encode(learnt, "other.npy", digest="other")  # empties the work folder
    calls = []

    def fail_at_the_fourth(*arguments: object) -> None:
        calls.append(1)
        if len(calls) == 4:
            raise OSError("no space left")
        write_rows(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(encoding, "write_rows", fail_at_the_fourth)
        with pytest.raises(OSError, match="no space"):
            encode(learnt)
    assert not (learnt.parent / "out.npy").exists()
    assert blocks_encoded(learnt, monkeypatch) == 7 - 3
    assert (learnt.parent / "out.npy").read_bytes() == undisturbed


def test_a_line_that_was_cut_off_by_a_kill_is_done_again(
    learnt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = encode(learnt)
    log = learnt.parent / "work" / "encoding" / "blocks.jsonl"
    log.write_bytes(log.read_bytes()[:-3])
    assert blocks_encoded(learnt, monkeypatch) == 1
    assert encode(learnt) == undisturbed


def test_finished_work_is_not_done_again_but_published_again(
    learnt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = encode(learnt)
    (learnt.parent / "out.npy").unlink()
    assert blocks_encoded(learnt, monkeypatch) == 0
    assert (learnt.parent / "out.npy").read_bytes() == undisturbed


def test_work_of_another_job_is_not_continued(
    learnt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode(learnt)
    assert blocks_encoded(learnt, monkeypatch, digest="other chunks") == 7
    halves = CONFIG.model_copy(update={"dtype": "float16"})
    assert blocks_encoded(learnt, monkeypatch, digest="other chunks", config=halves) == 7
    SVD.prepare(CHUNKS[:9], learnt.parent / "other", seed=0)
    assert (
        blocks_encoded(learnt.parent / "other", monkeypatch, digest="other chunks", config=halves)
        == 7
    )
    (learnt.parent / "work" / "encoding" / "vectors.npy").unlink()
    assert (
        blocks_encoded(learnt.parent / "other", monkeypatch, digest="other chunks", config=halves)
        == 7
    )


def test_other_files_of_a_work_folder_are_left_alone(learnt: Path) -> None:
    mine = {
        learnt.parent / "work" / "vectors.npy",
        learnt.parent / "work" / "encoding" / "notes.txt",
    }
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine")
    encode(learnt)
    encoding.remove_work(learnt.parent / "work")
    assert {path for path in (learnt.parent / "work").rglob("*") if path.is_file()} == mine


def test_new_weights_under_an_old_name_are_another_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Here, because the processes that are killed below import this module and need no torch.
    from tests.search.encoders.folders import encoder_config, write_bert  # noqa: PLC0415

    bert = encoder_config(write_bert(tmp_path / "bert"))
    first = encode(tmp_path / "learnt", encoder=bert)
    write_bert(tmp_path / "bert", seed=1)
    assert blocks_encoded(tmp_path / "learnt", monkeypatch, encoder=bert) == 7
    assert (tmp_path / "out.npy").read_bytes() != first


def test_another_number_of_threads_is_another_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.search.encoders.folders import encoder_config, write_bert  # noqa: PLC0415

    bert = encoder_config(write_bert(tmp_path / "bert"), threads=None)
    threads = "deepsearch_rl.search.encoders.sentence_transformers.usable_cores"
    monkeypatch.setattr(threads, lambda: 1)
    encode(tmp_path / "learnt", encoder=bert)
    assert blocks_encoded(tmp_path / "learnt", monkeypatch, encoder=bert) == 0
    monkeypatch.setattr(threads, lambda: 2)
    assert blocks_encoded(tmp_path / "learnt", monkeypatch, encoder=bert) == 7


def test_published_vectors_outlive_the_work_folder(learnt: Path) -> None:
    first = encode(learnt, "first.npy")
    encode(learnt, "second.npy", digest="other")
    assert (learnt.parent / "first.npy").read_bytes() == first


def test_vectors_that_cannot_be_written_are_an_error_that_names_their_file() -> None:
    with pytest.raises(ArtifactError, match="cannot be written to /proc/"):
        write_rows(Path("/proc/vectors.npy"), 0, np.zeros((1, 2), np.float32), 1, "float32")


ENCODE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from deepsearch_rl.search import encoding
from tests.search.test_encoding import encode

blocks, step = int(sys.argv[2]), sys.argv[3]
calls = []
write, log = encoding.write_rows, encoding.AppendLog.append

def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

def write_and_die(*arguments):
    calls.append(1)
    if len(calls) == blocks and step == "before_writing":
        die()
    write(*arguments)
    if len(calls) == blocks and step == "before_recording":
        die()

def log_and_die(self, record):
    log(self, record)
    if len(calls) == blocks and step == "after_recording":
        die()

encoding.write_rows, encoding.AppendLog.append = write_and_die, log_and_die
encode(Path(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "step", "left"),
    [
        (3, "before_recording", 5),
        pytest.param(1, "before_writing", 7, marks=pytest.mark.nightly),
        pytest.param(4, "after_recording", 3, marks=pytest.mark.nightly),
        pytest.param(7, "after_recording", 0, marks=pytest.mark.nightly),
    ],
)
def test_a_kill_changes_no_byte_and_costs_one_block_at_most(
    learnt: Path, monkeypatch: pytest.MonkeyPatch, root: Path, blocks: int, step: str, left: int
) -> None:
    undisturbed = encode(learnt, "undisturbed.npy")
    encode(learnt, "other.npy", digest="other")
    command = [sys.executable, "-c", ENCODE_AND_DIE, str(learnt), str(blocks), step]
    killed = subprocess.run(
        command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert not (learnt.parent / "out.npy").exists()
    recorded = (learnt.parent / "work" / "encoding" / "blocks.jsonl").read_text().splitlines()
    assert [json.loads(line)["block"] for line in recorded] == list(range(7 - left))
    assert blocks_encoded(learnt, monkeypatch) == left
    assert (learnt.parent / "out.npy").read_bytes() == undisturbed


class Odd(EncoderConfig):
    """Gives NaN for a text with ``nan`` in it, and reads three words of a text."""

    def open(self, folder: Path) -> "Odd":  # noqa: ARG002 - nothing is learnt
        return self

    @property
    def dimension(self) -> int:
        return 2

    def encode(self, texts: Sequence[str], kind: str) -> np.ndarray:  # noqa: ARG002 - both alike
        rows = [[np.nan if "nan" in text else np.inf if "inf" in text else 1, 0] for text in texts]
        return normalise_rows(np.array(rows, dtype=np.float32))

    def count_unread(self, passages: Sequence[str]) -> Unread:
        return Unread.of((len(passage.split()) for passage in passages), 3)


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_vector_that_is_not_finite_is_refused_with_its_passage_and_row(
    tmp_path: Path, number: str
) -> None:
    chunks = make_chunks([*["comet"] * 11, f"a {number}", "river"])
    with pytest.raises(ArtifactError, match=r"passage 'c11' \(row 11\) holds NaN or infinite"):
        encode(tmp_path / "learnt", chunks=chunks, encoder=Odd())
    assert not (tmp_path / "out.npy").exists()


def test_a_vector_of_an_own_encoder_that_is_not_finite_is_refused_with_its_row(
    tmp_path: Path,
) -> None:
    code = tmp_path / "own.py"
    code.write_text(
        "class Own:\n    dimension = 2\n\n    def encode(self, texts, kind):\n"
        "        return [[float('nan') if 'nan' in text else 1, 0] for text in texts]\n"
    )
    own = OwnEncoderConfig(name="own", code=f"{code}:Own")
    chunks = make_chunks(["comet", "a nan"])
    with pytest.raises(ArtifactError, match=r"passage 'c1' \(row 1\) holds NaN or infinite"):
        encode(tmp_path / "learnt", chunks=chunks, encoder=own)


def test_numbers_whose_squares_are_infinite_keep_their_direction() -> None:
    big = np.array([[3e30, 4e30], [0, 0]], dtype=np.float32)
    np.testing.assert_allclose(normalise_rows(big), [[0.6, 0.8], [0, 0]], rtol=1e-6)


def test_what_the_encoder_does_not_read_is_counted_also_after_a_kill(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chunks = make_chunks([*["one two"] * 9, "one two three four five"])
    encode(tmp_path / "learnt", chunks=chunks, encoder=Odd())
    said = "1 of 10 passages are longer than the encoder reads: their ends, 40.0 % of their text"
    assert said in caplog.text

    log = tmp_path / "work" / "encoding" / "blocks.jsonl"
    log.write_text(log.read_text().splitlines(keepends=True)[1])
    caplog.clear()
    encode(tmp_path / "learnt", chunks=chunks, encoder=Odd())
    assert said in caplog.text


def test_passages_that_an_encoder_reads_in_part_are_counted_in_its_own_tokens(
    tmp_path: Path,
) -> None:
    encoder = encoder_config(write_bert(tmp_path), passage_prefix="passage: ", max_tokens=8).open(
        tmp_path
    )
    # [CLS] passage : a comet on the river [SEP]
    texts = ["a comet on the river", "a comet"]
    assert encoder.count_unread(texts) == Unread(texts=1, length=9, unread=1)
    # [CLS] passage : : : : : [SEP]
    assert encoder.count_unread([":::::"]) == Unread(texts=1, length=9, unread=1)


def test_a_query_whose_vector_is_not_finite_is_refused_and_named(tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", np.eye(2, dtype=np.float32))
    vectors = FlatIndex(open_vector_file(tmp_path / "vectors.npy"))
    with pytest.raises(ArtifactError, match="the query 'a nan' holds NaN"):
        DenseRetriever(Odd(), vectors).search(["comet", "a nan"], 1)
