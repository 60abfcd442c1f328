import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli import app
from deepsearch_rl.core.errors import ConfigError
from scripts.imports import ROOT


@pytest.mark.parametrize("options", [[], ["--list"]])
def test_a_profile_without_training_is_refused_before_anything_runs(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, ["preflight", "own", *options])
    assert isinstance(result.exception, ConfigError)
    assert "trains no model" in str(result.exception)
    assert "`make own`" in str(result.exception)
