"""``deepsearch remote``: the store by which machines share what stages make, DVC's default remote."""

import configparser
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from typer import Argument, Option

from deepsearch_rl.cli.child_programs import run_program
from deepsearch_rl.cli.package_parts import installed_version
from deepsearch_rl.cli.targets import writable_folder
from deepsearch_rl.core.errors import CommandError, ConfigError, UnavailableError, look_up
from deepsearch_rl.core.redaction import split_address

# What lets this machine in, by kind of remote
LOGINS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in .env",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS in .env",
    "ssh": "your SSH key, for `ssh` must ask nothing",
}
NAME = "storage"
# To start DVC takes much longer than each of these commands
RUN_COMMANDS = """
import json, sys
from dvc.cli import main

for command in json.loads(sys.argv[1]):
    if code := main(command):
        sys.exit(code)
"""

app = typer.Typer(
    help="Share what stages make with other machines, by DVC's remote.", no_args_is_help=True
)


@app.command("set")
def set_command(
    url: Annotated[
        str,
        Argument(help="s3://bucket/prefix, gs://bucket/prefix, ssh://host/folder, or a folder."),
    ],
    endpoint: Annotated[
        str | None, Option(help="Address of an S3 store other than Amazon's.")
    ] = None,
    local: Annotated[
        bool, Option("--local", help="For this clone alone: in .dvc/config.local.")
    ] = False,
) -> None:
    """Set DVC's default remote, and check that it can be written; `dvc remote list` shows it.

    To a store or host a small file is written. Commit .dvc/config, so that every clone has it. Keys
    belong into .env, or into `dvc remote modify --local storage`.

        deepsearch remote set s3://bucket/deepsearch --endpoint http://store:9000
    """
    # A folder has no kind
    kind = url.partition("://")[0] if "://" in url else ""
    if kind:
        _require_no_password(url)
    if endpoint:
        _require_no_password(endpoint)
    if kind:
        _require_plugin(kind)
    if endpoint and kind != "s3":
        raise ConfigError(f"--endpoint is for an S3 store, and {url} is none; leave it out.")
    if not kind:
        writable_folder(Path(url))

    if not local:
        _require_no_local_remote(Path(".dvc", "config.local"))

    # By DVC's own commands, which know the form of the file
    level = ["--local"] if local else []
    commands = [["remote", "add", *level, "--force", "--default", NAME, url]]
    if endpoint:
        commands.append(["remote", "modify", *level, NAME, "endpointurl", endpoint])
    _dvc(commands)

    if kind:
        _require_writable(kind)
    else:
        Path(url).mkdir(parents=True, exist_ok=True)

    typer.echo(f"DVC's remote is {url}. `make flow` and workers fetch from it and push to it.")


def _require_no_password(address: str) -> None:
    """Raise ConfigError where an address holds a password, or cannot be read."""
    parts = split_address(address)
    if parts is None or parts.password:
        raise ConfigError(
            "the address cannot be read or holds a password, which .dvc/config would show to all."
        )


def _require_plugin(kind: str) -> None:
    """Raise UnknownNameError for a kind of remote that is not supported, UnavailableError without its package."""
    look_up("kind of remote", kind, LOGINS)
    if not installed_version(f"dvc-{kind}"):
        command = f"make environment EXTRAS='--extra {kind}'"
        raise UnavailableError(
            f"{kind}:// needs the package dvc-{kind}, which is not installed; run `{command}`."
        )


def _require_writable(kind: str) -> None:
    """Raise CommandError where nothing can be written to the remote, a store or a host."""
    try:
        _write_file()
    except CommandError as error:
        fix = f"Check the address, the network and {LOGINS[kind]}; then run this command again."
        raise CommandError(
            f"the remote is set, but nothing can be written there ({error}). {fix}"
        ) from error


def _require_no_local_remote(path: Path) -> None:
    """Raise ConfigError where this clone has a remote of its own, which wins over the one that all clones have."""
    settings = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        settings.read(path, encoding="utf-8")
    except configparser.Error:
        # DVC's own commands say what is wrong with it
        return

    section = f"'remote \"{NAME}\"'"
    name = settings.get("core", "remote", fallback=NAME)
    if name == NAME and not settings.has_option(section, "url"):
        return
    fix = f"remove --local {NAME}" if name == NAME else "default --local --unset"
    raise ConfigError(
        f"{path} names the remote {name} for this clone alone, which DVC would go on using here: set that one "
        f"(--local), or run `dvc remote {fix}` first."
    )


def _write_file() -> None:
    """Push a file, always the same, from a DVC project with this one's remote."""
    with TemporaryDirectory() as folder:
        # The settings alone: the cache beside them may take a disk
        shutil.copytree(
            ".dvc",
            Path(folder, ".dvc"),
            ignore=lambda _, names: {*names} - {"config", "config.local"},
        )
        Path(folder, "check").write_text("deepsearch remote set\n", encoding="utf-8")
        no_scm = ["config", "--local", "core.no_scm", "true"]
        _dvc([no_scm, ["add", "check"], ["push"]], folder)


def _dvc(commands: Sequence[Sequence[str]], folder: str = ".") -> None:
    """Run commands of DVC until one fails; raise as :func:`run_program`."""
    command = [sys.executable, "-c", RUN_COMMANDS, json.dumps(commands)]
    run_program("dvc", command, folder=folder)
