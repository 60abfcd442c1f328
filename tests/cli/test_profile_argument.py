"""Commands of a profile say where to run them in a folder that is no project's top folder."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import ConfigError

COMMANDS = (
    "table",
    "summary smoke",
    "plan",
    "preflight gpu",
)


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("is_inside", [True, False])
def test_the_top_folder_is_named(
    line: str, is_inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project" / "docs"
    folder.mkdir(parents=True)
    if is_inside:
        (tmp_path / "project" / ".dvc").mkdir()
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(app, line.split())
    assert isinstance(result.exception, ConfigError), result.output
    expected = f"run this in {tmp_path / 'project'}." if is_inside else "top folder of a clone"
    assert expected in str(result.exception)
