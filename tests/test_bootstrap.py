"""The first `make environment`, with a program in place of uv that real pip installs."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools.environment import UV_VERSION

pytestmark = pytest.mark.slow

UV = f"""#!/bin/sh
case "$1" in
    --version) echo "uv {UV_VERSION}" ;;
    venv) mkdir -p .venv/lib/python3.11/site-packages ;;
esac
env >> uv.log
"""


def write_wheel(folder: Path) -> None:
    info = f"uv-{UV_VERSION}.dist-info"
    with zipfile.ZipFile(folder / f"uv-{UV_VERSION}-py3-none-any.whl", "w") as wheel:
        script = zipfile.ZipInfo(f"uv-{UV_VERSION}.data/scripts/uv")
        script.external_attr = 0o100755 << 16  # a regular file, else pip leaves it unexecutable
        wheel.writestr(script, UV)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: uv\nVersion: {UV_VERSION}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize("setting", ["variables", "pip.conf"])
def test_settings_that_install_elsewhere_do_not_apply_to_the_projects_environment(
    setting: str, tmp_path: Path
) -> None:
    project = tmp_path / "it's a (né) 100% #1 $x & folder"
    (project / "tools").mkdir(parents=True)
    for name in ("tools/environment.py", "uv.lock", "pyproject.toml"):
        (project / name).write_bytes((ROOT / name).read_bytes())
    write_wheel(tmp_path)

    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))
    }
    kept |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "HOME": str(tmp_path)}
    if setting == "variables":
        kept |= {
            "PIP_USER": "1",
            "PIP_TARGET": str(tmp_path / "elsewhere"),
            "UV_SYSTEM_PYTHON": "1",
            "UV_NO_INSTALL_PROJECT": "1",
            "UV_PROJECT": str(tmp_path),
        }
    else:
        (tmp_path / "pip.conf").write_text(
            f"[install]\nuser = true\ntarget = {tmp_path}/elsewhere\n"
        )
        kept["PIP_CONFIG_FILE"] = str(tmp_path / "pip.conf")

    command = [sys.executable, "tools/environment.py"]
    run = subprocess.run(
        command, cwd=project, env=kept, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert (project / ".venvs/uv/bin/uv").exists()
    assert not (tmp_path / "elsewhere").exists()
    assert "\nUV_" not in f"\n{(project / 'uv.log').read_text()}"
