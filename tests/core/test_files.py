import errno
import os
import re
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ArtifactError, ConfigError, RecordError, full_disk_named
from deepsearch_rl.core.files import (
    AppendLog,
    atomic_directory,
    only_writer,
    read_json,
    read_jsonl,
    require_another_file,
    require_new_folder,
    sha256_json,
    write_json,
    write_jsonl,
)
from deepsearch_rl.core.records import Document

DOCUMENTS = [
    Document(id="a", contents="Title\nText, with ünïcode."),
    Document(id="b", contents="B\nb", metadata={"k": 1}),
]


def test_records_survive_a_round_trip_and_leave_no_partial_file(tmp_path: Path) -> None:
    assert write_jsonl(tmp_path / "new" / "corpus.jsonl", DOCUMENTS) == 2
    assert list(read_jsonl(tmp_path / "new" / "corpus.jsonl", Document)) == DOCUMENTS
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["corpus.jsonl"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "a"}', "line 3: field 'contents': Field required"),
        ('{"id": "a", "contents": "t", "url": "u"}', "line 3: field 'url'"),
        ('{"id": 7, "contents": "t"}', "line 3: field 'id'"),
        ('{"id": "a", "conte', "line 3: Invalid JSON"),
    ],
)
def test_a_malformed_line_is_named_by_file_line_and_field(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(f'{{"id": "ok", "contents": "t"}}\n\n{line}\n')
    with pytest.raises(RecordError) as caught:
        list(read_jsonl(path, Document))
    assert str(caught.value).startswith(f"{path}, {message}")


def test_a_missing_artifact_says_how_it_is_made(tmp_path: Path) -> None:
    for read in (read_json, lambda path: list(read_jsonl(path, Document))):
        with pytest.raises(
            ArtifactError, match=r"does not exist; check the path, or run the stage that makes it"
        ):
            read(tmp_path / "missing.json")


def test_a_failure_while_writing_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    def broken() -> object:
        yield DOCUMENTS[0]
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "corpus.jsonl"
    write_jsonl(path, DOCUMENTS)
    with pytest.raises(ArtifactError, match=re.escape(f"the disk is full ({path})")):
        write_jsonl(path, broken())  # type: ignore[arg-type]
    assert list(read_jsonl(path, Document)) == DOCUMENTS
    assert len(list(tmp_path.iterdir())) == 1


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with atomic_directory(target) as partial:
        (partial / "weights").write_text("1")
        assert not target.exists()
    assert (target / "weights").read_text() == "1"

    def fill_and_fail() -> None:
        with atomic_directory(target) as partial:
            (partial / "weights").write_text("2")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_and_fail()
    assert (target / "weights").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_full_disk_under_a_directory_is_named_and_keeps_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with atomic_directory(target) as partial:
        (partial / "weights").write_text("1")

    def fill() -> None:
        with atomic_directory(target) as partial:
            (partial / "weights").symlink_to("/dev/full")
            # Its error names no file
            (partial / "weights").write_text("2")

    with pytest.raises(ArtifactError, match=re.escape(f"the disk is full ({target})")):
        fill()
    assert (target / "weights").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_leftovers_of_a_killed_writer_are_cleared_away(tmp_path: Path) -> None:
    for leftover in (".model.partial", ".model.earlier"):
        (tmp_path / leftover / "deep").mkdir(parents=True)
    with atomic_directory(tmp_path / "model") as partial:
        assert list(partial.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_kill_between_the_two_renames_loses_no_version(tmp_path: Path) -> None:
    (tmp_path / ".model.earlier").mkdir()
    (tmp_path / ".model.earlier" / "weights").write_text("1")

    def fail() -> None:
        with atomic_directory(tmp_path / "model"):
            assert (tmp_path / "model" / "weights").read_text() == "1"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (tmp_path / "model" / "weights").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_rename_that_fails_puts_the_earlier_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("1")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)

    def fill() -> None:
        with atomic_directory(tmp_path / "model") as partial:
            (partial / "weights").write_text("2")

    with pytest.raises(KeyboardInterrupt):
        fill()
    assert (tmp_path / "model" / "weights").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_behind_a_link_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "disk" / "model").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "model")
    with atomic_directory(tmp_path / "link") as partial:
        (partial / "weights").write_text("1")
    assert (tmp_path / "disk" / "model" / "weights").read_text() == "1"
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("path", [".", "..", "/"])
def test_the_working_directory_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(ConfigError, match="holds the working directory"),
        atomic_directory(Path(path)),
    ):
        pytest.fail("it was begun")


def test_only_one_writer_at_a_time_may_make_an_artifact(tmp_path: Path) -> None:
    # Of a killed process, which holds nothing any more
    (tmp_path / ".index.lock").write_text("4711\n")
    told = rf"another process \(pid {os.getpid()}\) is making .*index"
    with (
        only_writer(tmp_path / "index"),
        only_writer(tmp_path / "other"),
        pytest.raises(ConfigError, match=told),
        only_writer(tmp_path / "index"),
    ):
        pytest.fail("there were two writers")
    with only_writer(tmp_path / "index"):
        assert [path.name for path in tmp_path.iterdir()] == [".index.lock"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, ArtifactError), (errno.EDQUOT, ArtifactError), (errno.EACCES, OSError)],
)
def test_only_a_full_disk_is_called_one(tmp_path: Path, number: int, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, full_disk_named(tmp_path):
        raise OSError(number, "what the system says", "some/file")
    assert ("the disk is full (some/file)" in str(caught.value)) == (kind is ArtifactError)


def test_a_log_that_a_kill_cut_short_goes_on_at_the_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with AppendLog(path) as log:
        log.append(DOCUMENTS[0])
        log.append(DOCUMENTS[1])
    os.truncate(path, path.stat().st_size - 5)
    with AppendLog(path) as log:
        log.append(DOCUMENTS[1])
    assert list(read_jsonl(path, Document)) == DOCUMENTS


def test_a_log_without_a_single_whole_line_starts_afresh(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("x" * 100_000)
    with AppendLog(path) as log:
        log.append(DOCUMENTS[0])
    assert list(read_jsonl(path, Document)) == DOCUMENTS[:1]


def test_equal_json_has_equal_bytes_and_digests(tmp_path: Path) -> None:
    first, second = {"b": [1, 2], "a": "ü"}, {"a": "ü", "b": [1, 2]}
    for name, value in (("first", first), ("second", second)):
        write_json(tmp_path / name, value)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert sha256_json(first) == sha256_json(second)


def test_a_file_that_is_read_is_not_written_whatever_its_path(tmp_path: Path) -> None:
    source = tmp_path / "train.jsonl"
    source.touch()
    (tmp_path / "link").symlink_to(source)
    for out in (source, tmp_path / "link"):
        with pytest.raises(ConfigError, match="is the source itself"):
            require_another_file(out, [tmp_path / "missing.jsonl", source])

    (tmp_path / "other.jsonl").touch()
    require_another_file(tmp_path / "other.jsonl", [source, tmp_path / "missing.jsonl"])
    require_another_file(tmp_path / "new.jsonl", [source])


def test_a_new_or_an_empty_folder_is_written_and_another_one_is_not(tmp_path: Path) -> None:
    require_new_folder(tmp_path / "new")
    require_new_folder(tmp_path)

    (tmp_path / "notes.txt").touch()
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ConfigError, match="exists already; remove it, or name another folder"):
            require_new_folder(path)
