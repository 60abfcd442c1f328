"""The plots section of dvc.yaml, drawn by DVC itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import commit_all, git

PAGE = "dvc_plots/index.html"


@pytest.mark.slow
@pytest.mark.parametrize("diff", [False, True])
def test_the_plots_of_dvc_need_no_network(root: Path, tmp_path: Path, *, diff: bool) -> None:
    def run(*command: str) -> None:
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    plots = (root / "dvc.yaml").read_text(encoding="utf-8").partition("\nplots:")[2]
    (tmp_path / "dvc.yaml").write_text(f"plots:{plots}")
    (tmp_path / "params.yaml").write_text("profile: tiny\nwdir: .\n")
    folder = tmp_path / "reports" / "tiny" / "plots"
    folder.mkdir(parents=True)
    for name in ("f1.svg", "rl.svg"):
        (folder / name).write_text(
            f"<svg xmlns='http://www.w3.org/2000/svg'><title>{name}</title></svg>"
        )
    git(tmp_path, "init", "-q")
    run(sys.executable, "-m", "dvc", "init", "-q")
    commit_all(tmp_path, "first")
    run(sys.executable, "-m", "dvc", "plots", *(["diff", "HEAD"] if diff else ["show"]))
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    images = re.findall(r'<img src="([^"]+)"', page)
    assert len(images) == (4 if diff else 2)
    assert all((tmp_path / "dvc_plots" / image).is_file() for image in images)
    assert "://" not in page
