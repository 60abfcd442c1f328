"""The built wheel in empty environments: with `[retrieval]`, an index is built, served and queried; the base scores."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT

UV = next(
    (str(path) for path in [ROOT / ".venvs" / "uv" / "bin" / "uv"] if path.is_file()),
    shutil.which("uv"),
)
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(UV is None, reason="no uv: `make environment` installs it"),
]
DOCUMENTS = [
    {"id": str(number), "contents": f'"Town {number}"\nTown {number} has a mill.'}
    for number in range(4)
]
PREDICTION = {"id": "q", "question": "Where?", "golden_answers": ["Stoke"], "pred": "Stoke"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [str(UV), "build", "--wheel", "--out-dir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
    )
    [path] = folder.glob("*.whl")
    return path


def install(wheel: Path, extra: str, folder: Path) -> Path:
    """The `deepsearch` of a new environment with the wheel and one of its extras."""
    subprocess.run(
        [str(UV), "venv", "--quiet", "--python", sys.executable, str(folder / "env")], check=True
    )
    target = f"deepsearch-rl{extra} @ {wheel.as_uri()}"
    command = [
        str(UV),
        "pip",
        "install",
        "--quiet",
        "--python",
        str(folder / "env" / "bin" / "python"),
    ]
    result = subprocess.run([*command, target], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder / "env" / "bin" / "deepsearch"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "corpus.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in DOCUMENTS)
    )
    (tmp_path / "work" / "predictions.jsonl").write_text(json.dumps(PREDICTION) + "\n")
    return tmp_path / "work"


def run(deepsearch: Path, work: Path, *arguments: str, status: int = 0) -> str:
    """What a command prints, with its status."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [deepsearch, *arguments], cwd=work, env=environment, capture_output=True, text=True
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout + result.stderr


def serve(deepsearch: Path, work: Path) -> Iterator[str]:
    """The address of a running retrieval server, read from what it logs."""
    command = [deepsearch, "retrieve", "serve", "--index", "index", "--port", "0"]
    server = subprocess.Popen(command, cwd=work, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        yield next(
            word.strip(",.;")
            for line in server.stderr
            for word in line.split()
            if word.startswith("http://")
        )
    finally:
        server.terminate()
        server.wait(timeout=30)


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    command = ["git", "ls-files", "deepsearch_rl"]
    listed = subprocess.run(
        command, cwd=ROOT / "src", check=True, capture_output=True, text=True
    ).stdout.split("\n")
    with zipfile.ZipFile(wheel) as archive:
        assert set(filter(None, listed)) <= set(archive.namelist())


@pytest.mark.nightly
def test_with_retrieval_an_index_is_built_searched_and_served_without_torch(
    wheel: Path, work: Path, tmp_path: Path
) -> None:
    deepsearch = install(wheel, "[retrieval]", tmp_path)
    assert "4 passages" in run(
        deepsearch, work, "retrieve", "build", "--corpus", "corpus.jsonl", "--out", "index"
    )
    for url in serve(deepsearch, work):
        answer = httpx.post(
            f"{url.rstrip('/')}/retrieve", json={"queries": ["Town 2"], "topk": 1}, timeout=30
        ).json()
        assert "Town 2" in answer["result"][0][0]["contents"]
    assert "packages: complete" in run(deepsearch, work, "doctor")
    assert not list((tmp_path / "env").glob("lib/*/site-packages/torch"))


@pytest.mark.nightly
def test_the_base_scores_and_names_the_part_that_builds_indexes(
    wheel: Path, work: Path, tmp_path: Path
) -> None:
    deepsearch = install(wheel, "", tmp_path)
    assert (
        json.loads(run(deepsearch, work, "score", "predictions.jsonl", "--json"))["metrics"]["f1"]
        == 1.0
    )
    assert "packages: complete" in run(deepsearch, work, "doctor")
    message = run(
        deepsearch,
        work,
        "retrieve",
        "build",
        "--corpus",
        "corpus.jsonl",
        "--out",
        "index",
        status=1,
    )
    assert message.startswith("error: this needs the package ")
    assert "`pip install 'deepsearch-rl[retrieval]'`" in message
