import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.conftest import ROOT

BAR = "from tqdm import tqdm; list(tqdm(range(3)))"


def errors_of(program: str, variables: Mapping[str, str]) -> str:
    """What a program writes to standard error where tqdm's variable is as given, or not set."""
    environment = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(
        command, cwd=ROOT, env={**environment, **variables}, capture_output=True, check=True
    )
    return ended.stderr.decode()


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("import stages", id="a stage"),
        pytest.param(
            "from typer.testing import CliRunner; from deepsearch_rl.cli.main import app;"
            "assert CliRunner().invoke(app, ['datasets']).exit_code == 0",
            id="a command",
        ),
    ],
)
def test_a_library_shows_no_bar_but_where_the_user_asks_for_it(start: str) -> None:
    assert "3/3" in errors_of(BAR, {})
    assert errors_of(f"{start}\n{BAR}", {}) == ""
    assert "3/3" in errors_of(f"{start}\n{BAR}", {"TQDM_DISABLE": ""})
