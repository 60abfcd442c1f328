"""Programs that a command runs to their end, and what is said where one fails."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deepsearch_rl.core.errors import CommandError
from deepsearch_rl.core.processes import how_it_ended
from deepsearch_rl.core.redaction import environment_secrets, redact


def run_program(name: str, command: Sequence[str], text: str = "", folder: Path | str = ".") -> str:
    """Run a program that reads ``text``, and return what it prints.

    Raise CommandError where it fails: with DVC's first error, or else with all that it wrote to
    stderr, secrets masked, or with how it ended where it wrote nothing. ``name`` is what an error
    calls it.
    """
    # DVC wraps its lines
    wide = {**os.environ, "COLUMNS": "999"}
    result = subprocess.run(
        command, cwd=folder, env=wide, input=text, capture_output=True, text=True, check=False
    )
    if result.returncode:
        silence = " and said nothing" if result.returncode > 0 else ""
        ending = f"{name} {how_it_ended(result.returncode)}{silence}"
        problem = _main_error(result.stderr) or ending
        raise CommandError(redact(problem, environment_secrets(os.environ)))

    return result.stdout


def _main_error(stderr: str) -> str:
    """Return DVC's first error, or everything that a program wrote to stderr; empty where that is nothing."""
    for line in stderr.splitlines():
        if line.startswith("ERROR: "):
            return line.removeprefix("ERROR: ")

    return stderr.strip().removeprefix("error: ")
