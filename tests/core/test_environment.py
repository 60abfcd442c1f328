"""The environment that all programs of the project share."""

from pathlib import Path

import pytest

from deepsearch_rl.core.environment import prepare_environment


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    environment: dict[str, str] = {}
    monkeypatch.setattr("os.environ", environment)
    return tmp_path


def test_keys_come_from_the_env_file_and_the_shell_wins(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os  # noqa: PLC0415

    (folder / ".env").write_text("export A_KEY='from the file'\nOTHER=file\nWANDB_MODE=online\n")
    monkeypatch.setitem(os.environ, "OTHER", "shell")
    prepare_environment()
    assert (os.environ["A_KEY"], os.environ["OTHER"]) == ("from the file", "shell")
    # A default of the project, and one that the file replaces
    assert (os.environ["DO_NOT_TRACK"], os.environ["WANDB_MODE"]) == ("1", "online")


@pytest.mark.parametrize(("threads", "expected"), [(1, "1"), (None, None)])
def test_threads_are_set_where_a_profile_says_so(threads: int | None, expected: str | None) -> None:
    import os  # noqa: PLC0415

    prepare_environment(threads)
    assert os.environ.get("OMP_NUM_THREADS") == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "127.0.0.1,localhost,::1"),
        ({"http_proxy": "p", "NO_PROXY": "intranet"}, "intranet,127.0.0.1,localhost,::1"),
        ({"ALL_PROXY": "p", "NO_PROXY": "*"}, "*"),
    ],
)
def test_no_proxy_is_asked_for_this_machines_own_addresses(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: str | None
) -> None:
    import os  # noqa: PLC0415

    for name, value in given.items():
        monkeypatch.setitem(os.environ, name, value)
    prepare_environment()
    assert os.environ.get("NO_PROXY") == expected
