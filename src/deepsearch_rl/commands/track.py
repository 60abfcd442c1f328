"""``deepsearch track``: a profile's reports to MLflow."""

from pathlib import Path
from typing import Annotated

import typer

from deepsearch_rl.commands.summary import ProfileName
from deepsearch_rl.errors import DeepsearchError
from deepsearch_rl.profile import require_profile


def track_command(
    profile: ProfileName = "tiny",
    to: Annotated[
        str | None,
        typer.Option(envvar="MLFLOW_TRACKING_URI", help="MLflow server or database.", show_default="mlruns/ here"),
    ] = None,
    timeout_s: Annotated[float, typer.Option(min=1, help="Seconds for one request to a server.")] = 30,
) -> None:
    """Send a profile's report to MLflow, and with it every earlier one that a server did not take.

    The stage `track` does so by itself; this command is for the reports that it had to keep, and for other servers. A
    report that the server has is not sent again; one that was sent in part is replaced.

        deepsearch track
        MLFLOW_TRACKING_URI=http://tracking:5000 deepsearch track gpu
    """
    from deepsearch_rl.tracking.store import local_store, public_uri  # noqa: PLC0415 - mlflow takes seconds to load
    from deepsearch_rl.tracking.upload import Uploaded, upload_all  # noqa: PLC0415

    require_profile(Path(), profile)
    uri = to or local_store(Path("mlruns"))
    outcomes = upload_all(Path("data", profile, "track"), Path("work", profile, "outbox"), uri, timeout_s)
    failures: list[str] = []
    for outcome in outcomes:
        if isinstance(outcome, Uploaded):
            typer.echo(f"{outcome.name}: {'sent to' if outcome.now else 'already at'} {public_uri(uri)}")
        else:
            failures.append(f"{outcome.folder} was not sent: {outcome.error}")
    if failures:
        raise DeepsearchError("\n".join(failures))
