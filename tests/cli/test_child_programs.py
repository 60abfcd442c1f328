import sys

import pytest

from deepsearch_rl.cli.child_programs import run_program
from deepsearch_rl.core.errors import CommandError


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_program_reads_its_text_and_what_it_prints_comes_back() -> None:
    assert run_program("echo", python("print(input()[::-1])"), "olleh") == "hello\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('error: no such remote')", "no such remote"),
        ("import sys; sys.exit('WARNING: old\\nERROR: no access\\nHaving trouble?')", "no access"),
        ("import sys; sys.exit('first\\nsecond')", "first\nsecond"),
        ("import sys; sys.exit(3)", "dvc ended with exit status 3 and said nothing"),
        ("import os; os.kill(os.getpid(), 15)", "dvc was killed by SIGTERM"),
        (
            "import os; os.kill(os.getpid(), 9)",
            "dvc was killed by SIGKILL, as the system does when memory is full (`dmesg` shows that)",
        ),
    ],
)
def test_what_a_failed_program_said_or_how_it_ended_is_the_error(code: str, said: str) -> None:
    with pytest.raises(CommandError) as error:
        run_program("dvc", python(code))
    assert str(error.value) == said


def test_a_secret_of_the_environment_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    with pytest.raises(CommandError) as error:
        run_program("dvc", python("import sys; sys.exit('denied for wJalrXUtnFEMI')"))
    assert "wJalrXUtnFEMI" not in str(error.value)
