"""How the commands of flows/ end where something is wrong."""

import errno
import re

import pytest
from prefect.client.schemas.actions import ArtifactCreate

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.profile import profile_names
from flows.command_line import one_paragraph_errors
from flows.reproduce import artifact_key
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConfigError("no such thing."), "error: no such thing."),
        (OSError(errno.EROFS, "Read-only file system", "/there/work"), "error: /there/work: Read-"),
        (PermissionError(errno.EACCES, "Permission denied", "/there"), "change its permissions"),
        (OSError(errno.ENOSPC, "No space left on device", "/there/work"), "the disk is full"),
        (KeyboardInterrupt(), "cancelled"),
    ],
)
def test_an_error_of_the_user_or_the_system_is_one_paragraph(
    error: BaseException, words: str
) -> None:
    with pytest.raises(SystemExit) as ended, one_paragraph_errors():
        raise error
    message = str(ended.value.code)
    assert words in message
    assert "\n" not in message


def test_only_what_may_not_be_written_is_a_matter_of_permissions() -> None:
    with pytest.raises(SystemExit) as ended, one_paragraph_errors():
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/there/table.json")
    assert ended.value.code == "error: /there/table.json: No such file or directory."


def test_an_interrupt_can_end_with_a_status_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, one_paragraph_errors(130):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capsys.readouterr().err == "cancelled\n"


@pytest.mark.parametrize("profile", [*profile_names(ROOT), "My_Profile", "a.b"])
def test_prefect_takes_the_key_of_every_profiles_artifacts(profile: str) -> None:
    key = artifact_key("run", profile)
    assert ArtifactCreate(key=key).key == key
    assert re.fullmatch("run-[a-z0-9-]+", key)
