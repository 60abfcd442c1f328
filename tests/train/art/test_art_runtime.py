"""ART's own installation of its vLLM, with a `uv` that makes what the real one would."""

from pathlib import Path

import pytest

from deepsearch_rl.core.errors import UnavailableError
from deepsearch_rl.train.rl.worker import require_art_vllm
from tools.art_runtime import install_runtime

UV = """#!/bin/sh
echo "$@" >> "$UV_LOG"
if [ "$1" = sync ]; then
    mkdir -p "$3/.venv/bin" && touch "$3/.venv/pyvenv.cfg"
else
    server=$(dirname "$5")/art-vllm-runtime-server && touch "$server" && chmod +x "$server"
fi
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The calls of `uv`, where ART installs into a folder of the test."""
    monkeypatch.setenv("ART_VLLM_RUNTIME_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_LOG", str(tmp_path / "uv.log"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "uv.log"


def test_what_was_installed_is_found_and_nothing_is_installed_twice(
    tmp_path: Path, log: Path
) -> None:
    with pytest.raises(UnavailableError, match=f"below {tmp_path}/cache; `make art-vllm`"):
        require_art_vllm()
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    for _ in range(2):
        install_runtime()
        require_art_vllm()
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["sync", "pip"]


@pytest.mark.usefixtures("log")
def test_a_missing_or_failing_uv_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot be installed: uv is required"):
        install_runtime()
    (tmp_path / "uv").write_text("#!/bin/sh\necho no route to wheels >&2; exit 2\n")
    (tmp_path / "uv").chmod(0o755)
    with pytest.raises(UnavailableError, match=r"no route to wheels[\s\S]*Python 3\.12"):
        install_runtime()
    with pytest.raises(UnavailableError, match="not installed"):
        require_art_vllm()
