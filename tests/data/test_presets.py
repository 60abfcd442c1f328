"""A set by its name: MultiHop-RAG from the hub at its pinned revision, every other from a folder that holds both."""

from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ArtifactError, ConfigError, UnknownNameError
from deepsearch_rl.data.catalogue import CARDS
from deepsearch_rl.data.dataset_presets import source_of
from deepsearch_rl.data.download import download, open_corpora


def test_multihoprag_comes_from_the_hub_with_the_published_split(tmp_path: Path) -> None:
    source = source_of("multihoprag", None, tmp_path)
    assert source.source == "hub"
    assert source.hub is not None
    assert source.folder is not None
    repository = source.hub.repositories["multihoprag"]
    assert (repository.repository, repository.revision) == (
        CARDS["multihoprag"].repository,
        CARDS["multihoprag"].revision,
    )
    [asked] = source.folder.questions["multihoprag"]
    assert (asked.shuffle_seed, list(asked.splits.items())) == (
        42,
        [("val", 200), ("dev", 100), ("train", None)],
    )


def test_a_copy_of_the_repository_is_read_in_place(
    multihoprag_repository: Path, tmp_path: Path
) -> None:
    source = source_of("multihoprag", multihoprag_repository, tmp_path)
    assert source.source == "folder"
    assert source.folder is not None
    assert len(list(open_corpora(source.folder)["multihoprag"])) == 3
    # Before the corpus is written, which may take an hour
    with pytest.raises(ConfigError, match=r"4 questions.*cannot have 200"):
        download(source, 0, tmp_path / "corpora", tmp_path / "questions")
    assert not (tmp_path / "corpora").exists()


def test_files_of_a_folder_are_found_by_how_their_names_begin(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl.gz").touch()
    with pytest.raises(ArtifactError, match=r"questions\* or dev\* or test\*"):
        source_of("hotpotqa", tmp_path, tmp_path)
    (tmp_path / "dev.jsonl").touch()
    folder = source_of("hotpotqa", tmp_path, tmp_path).folder
    assert folder is not None
    assert folder.corpora["hotpotqa"].path == Path("corpus.jsonl.gz")
    assert (folder.corpora["hotpotqa"].format, folder.questions["hotpotqa"][0].format) == (
        "flashrag",
        "hotpotqa",
    )
    (tmp_path / "questions.jsonl").touch()
    folder = source_of("graphrag_bench", tmp_path, tmp_path).folder
    assert folder is not None
    assert folder.questions["graphrag_bench"][0].path == Path("questions.jsonl")
    assert folder.corpora["graphrag_bench"].format == "graphrag_bench"


def test_a_copy_of_the_repository_that_lacks_a_file_is_told_which(
    multihoprag_repository: Path, tmp_path: Path
) -> None:
    (multihoprag_repository / "corpus.json").unlink()
    with pytest.raises(
        ArtifactError, match=r"lacks corpus\.json; put the files of yixuantt/MultiHopRAG there"
    ):
        source_of("multihoprag", multihoprag_repository, tmp_path)


@pytest.mark.parametrize("name", ["hotpotqa", "multihoprag"])
def test_a_folder_that_does_not_exist_is_named_as_such(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="nowhere is not a folder"):
        source_of(name, tmp_path / "nowhere", tmp_path)


@pytest.mark.parametrize("name", ["wiki18", "ifeval", "hotpot"])
def test_what_has_no_questions_is_no_question_set(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Valid names: 2wikimultihopqa"):
        source_of(name, tmp_path, tmp_path)


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["musique", "2wikimultihopqa", "hotpotqa"])
def test_the_real_folders_are_sets_with_their_corpora(
    name: str, real_data: Path, tmp_path: Path
) -> None:
    folder = source_of(name, real_data / name, tmp_path).folder
    assert folder is not None
    assert (real_data / name / folder.corpora[name].path).is_file()
    assert folder.questions[name][0].path == Path("dev.jsonl.gz")
