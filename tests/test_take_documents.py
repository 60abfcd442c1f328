"""`tools/take_documents`: the folder of documents is looked at before anything is copied."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a shell script")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the profile own, one that makes no questions, and two documents."""
    for profile in ("own", "smoke"):
        target = tmp_path / "profiles" / profile / "params.yaml"
        target.parent.mkdir(parents=True)
        target.write_bytes((ROOT / "profiles" / profile / "params.yaml").read_bytes())
    (tmp_path / "letters" / "old").mkdir(parents=True)
    (tmp_path / "letters" / "dear.txt").write_text("Dear Ada,")
    (tmp_path / "letters" / "old" / "sir.md").write_text("Dear Sir,")
    return tmp_path


def take(project: Path, folder: str, profile: str = "own", *action: str) -> tuple[int, str]:
    script = [str(ROOT / "tools" / "take_documents"), folder, profile, *action]
    result = subprocess.run(script, cwd=project, capture_output=True, text=True, check=False)
    return result.returncode, result.stderr


def copied(project: Path) -> list[str]:
    folder = project / "data" / "own" / "documents"
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))


def test_a_folder_is_copied_whole_and_a_later_one_replaces_it(project: Path) -> None:
    (project / "link").symlink_to("letters")
    assert take(project, "link") == (0, "")
    assert copied(project) == ["dear.txt", "old/sir.md"]
    assert take(project, "") == (0, "")
    assert take(project, "letters/old") == (0, "")
    assert copied(project) == ["sir.md"]


def test_links_are_copied_as_what_they_lead_to_and_one_that_leads_nowhere_is_named(
    project: Path,
) -> None:
    (project / "letters" / "new").mkdir()
    (project / "letters" / "new" / "sir.md").symlink_to("../old/sir.md")
    (project / "letters" / "all").symlink_to("old")
    assert take(project, "letters") == (0, "")
    assert copied(project) == ["all/sir.md", "dear.txt", "new/sir.md", "old/sir.md"]
    documents = project / "data" / "own" / "documents"
    assert not any(path.is_symlink() for path in documents.rglob("*"))

    (project / "letters" / "old" / "sir.md").unlink()
    status, message = take(project, "letters")
    assert status == 1
    assert "letters/new/sir.md is a link to something that is not there" in message
    assert "all/sir.md" in copied(project)


def test_a_check_alone_copies_nothing(project: Path) -> None:
    assert take(project, "letters", "own", "check") == (0, "")
    assert copied(project) == []


@pytest.mark.parametrize(
    ("folder", "profile", "words"),
    [
        ("", "own", "there are no documents yet. Name their folder"),
        ("nowhere", "own", "DOCUMENTS=nowhere is not a folder"),
        ("empty", "own", "DOCUMENTS=empty holds no file"),
        ("letters", "smoke", "the profile smoke makes no questions of documents"),
    ],
)
def test_what_is_no_folder_of_documents_is_one_sentence_and_nothing_is_copied(
    project: Path, folder: str, profile: str, words: str
) -> None:
    (project / "empty" / "inner").mkdir(parents=True)
    status, message = take(project, folder, profile)
    assert (status, message.count("\n")) == (1, 1)
    assert message.startswith(f"error: {words}")
    assert not (project / "data").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["letters", "letters/old", "letters/dear.txt"])
def test_what_may_not_be_read_is_said_before_anything_is_copied(project: Path, name: str) -> None:
    path = project / name
    mode = path.stat().st_mode
    path.chmod(0)
    status, message = take(project, "letters")
    path.chmod(mode)
    assert (status, message.count("\n")) == (1, 1)
    assert "cannot be read" in message
    assert not (project / "data").exists()


def test_a_profile_that_makes_no_questions_needs_no_folder(project: Path) -> None:
    assert take(project, "", "smoke") == (0, "")
    assert not (project / "data").exists()
