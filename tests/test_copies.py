"""Which project a folder is a copy of."""

from pathlib import Path

import pytest

from deepsearch_rl.core.copies import outer_project


@pytest.mark.parametrize(
    "copy",
    [
        ".",
        "work/checkouts/tiny-0123456-0123456",
        ".dvc/tmp/exps/tmpabc",
        "work/checkouts/tiny-0123456-0123456/.dvc/tmp/exps/tmpabc/profiles",
    ],
)
def test_a_copy_belongs_to_the_project_around_it(tmp_path: Path, copy: str) -> None:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "work/checkouts/tiny-0123456-0123456/.dvc").mkdir(parents=True)
    assert outer_project(tmp_path / copy) == tmp_path


def test_a_project_in_a_folder_that_only_has_such_a_name_is_its_own(tmp_path: Path) -> None:
    project = tmp_path / "work" / "checkouts" / "deepsearch-rl"
    (project / ".dvc").mkdir(parents=True)
    assert outer_project(project) == project
