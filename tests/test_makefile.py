"""The Makefile's own rules, with a program in place of the environment's Python."""

import subprocess
from pathlib import Path

from tests.conftest import ROOT


def test_the_first_environment_of_a_gpu_profile_is_built_by_the_projects_own_uv(
    tmp_path: Path,
) -> None:
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    # As tools/environment.py does: its first call brings uv
    python = tmp_path / "python"
    bring = "mkdir -p .venvs/uv/bin && ln -sf /bin/echo .venvs/uv/bin/uv"
    python.write_text(f"#!/bin/sh\n{bring}\n")
    python.chmod(0o755)
    command = ["make", "--silent", "verl-environment", f"PYTHON={python}", f"BIN={tmp_path}"]
    environment = {"PATH": "/usr/bin:/bin"}
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "pip sync --python .venvs/verl/bin/python" in run.stdout
