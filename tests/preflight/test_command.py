import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import ConfigError
from tools import ROOT


@pytest.mark.parametrize("options", [[], ["--list"]])
@pytest.mark.parametrize(
    ("profile", "reason"),
    [("own", "trains no model.*`make own`"), ("search_r1", "agent.protocol: search_tags")],
)
def test_a_profile_whose_training_cannot_be_tried_is_refused_before_anything_runs(
    profile: str, reason: str, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, ["preflight", profile, *options])
    assert isinstance(result.exception, ConfigError)
    with pytest.raises(ConfigError, match=reason):
        raise result.exception
