"""``deepsearch experiments``."""

import typer

from deepsearch_rl.cli.checkout import checkout_module
from deepsearch_rl.cli.profile_argument import ProfileName


def experiments_command(profile: ProfileName = "tiny") -> None:
    """Show a profile's DVC experiments: F1 on the in-domain set by model, and the params that differ.

    An experiment is compared with the commit that it began at. `dvc exp show` has
    a column for every metric and param of every profile; this table is at most
    119 characters wide.

        deepsearch experiments
        deepsearch experiments smoke
    """
    typer.echo(checkout_module("graph_commands.experiments").show_experiments(profile))
