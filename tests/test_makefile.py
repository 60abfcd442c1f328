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


def test_rejection_sampling_asks_for_gits_identity_before_the_first_round(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    (tmp_path / "models/tiny/base").mkdir(parents=True)
    (tmp_path / "dvc").symlink_to("/bin/echo")
    command = ["make", "--silent", "rft", "ROUNDS=1", "PYTHON=/bin/true", f"BIN={tmp_path}"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}

    def run(**identity: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=environment | identity,
            capture_output=True,
            text=True,
            check=False,
        )

    refused = run()
    assert "git config user.name NAME" in refused.stderr
    assert "exp run" not in refused.stdout
    assert "exp run" in run(GIT_COMMITTER_NAME="a", GIT_COMMITTER_EMAIL="a@b.c").stdout


def test_a_user_that_is_only_a_number_has_a_name_for_dvc(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "deepsearch").symlink_to("/bin/true")
    for name, script in {"id": "test $1 = -u && echo 1234", "python": "echo $LOGNAME"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    command = ["make", "--silent", "repro", "PYTHON=/bin/true", f"BIN={tmp_path}"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    def name(**variables: str) -> str:
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=environment | variables,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    assert name() == "1234"
    assert name(USER="ada") == "ada"
    assert name(USER="ada", LOGNAME="grace") == "grace"
