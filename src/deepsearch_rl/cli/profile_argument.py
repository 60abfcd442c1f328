"""The profile that a command works on, of the project whose top folder is the working directory."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.profile import PARAMS

HELP = "`tiny` (the root params.yaml) or a folder of profiles/."


def in_project(profile: str | None) -> str | None:
    """Return the profile's name; raise ConfigError where the working directory is not a project's top folder."""
    here = Path.cwd()
    if (here / PARAMS).is_file() or any((here / "profiles").glob(f"*/{PARAMS}")):
        return profile
    # Commands that read a report alone
    if (here / "reports").is_dir():
        return profile

    for folder in here.parents:
        if (folder / ".dvc").is_dir():
            raise ConfigError(f"{here} is a folder inside a project; run this in {folder}.")
    raise ConfigError(f"{here} is no project; run this in the top folder of a clone.")


ProfileName: TypeAlias = Annotated[str, typer.Argument(help=HELP, callback=in_project)]
ProfileOption: TypeAlias = Annotated[str, typer.Option(help=HELP, callback=in_project)]
