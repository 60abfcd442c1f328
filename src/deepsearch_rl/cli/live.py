"""``deepsearch live``: curves of training runs to MLflow and TensorBoard, at once or while training goes on."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deepsearch_rl.cli.profile_argument import ProfileName
from deepsearch_rl.cli.summary import STORE_HELP
from deepsearch_rl.core.profile import find_profile
from deepsearch_rl.track.local_store import local_store

# Seconds between the end of a stage and that of the process that sends its figures
END_S = 5.0
_LOG = logging.getLogger(__name__)


def live_command(
    profile: ProfileName = "tiny",
    to: Annotated[str | None, STORE_HELP] = None,
    timeout_s: Annotated[float, Option(min=1, help="Seconds for one request to a server.")] = 30,
    follow: Annotated[
        bool, Option("--follow", help="Go on with what training appends, until Ctrl-C.")
    ] = False,
    stage: Annotated[
        str, Option(hidden=True, help="Follow the curves of a running stage, until SIGTERM.")
    ] = "",
    tag: Annotated[
        list[str] | None, Option(hidden=True, help="NAME=VALUE for the runs of that stage.")
    ] = None,
) -> None:
    """Send the curves of training runs to MLflow and TensorBoard: those that a server missed, or as they grow.

    Stages that train do so by themselves. This command is for what a server missed while it was
    down, and for other servers. Every step is sent once, however often training or this command is
    killed.

    The runs are in MLflow's experiment `<track.experiment>-live`, the event files in
    `work/<profile>/tensorboard/`.

        deepsearch live
        deepsearch live gpu --follow
        tensorboard --logdir work/tiny/tensorboard
    """
    ending = threading.Event()
    notify = _once()
    if stage:
        _end_on_sigterm(ending, notify)
    from deepsearch_rl.track.live import LiveFigures  # noqa: PLC0415 - mlflow takes seconds to load
    from deepsearch_rl.track.live import follow as follow_figures  # noqa: PLC0415
    from deepsearch_rl.track.run_names import CHANGES_TAG, committed_params, describe_changes  # noqa: PLC0415
    from deepsearch_rl.track.store import public_uri  # noqa: PLC0415

    settings = find_profile(Path(), profile)
    uri = to or local_store(Path("mlruns"))
    tags = dict(text.split("=", 1) for text in tag or ())
    # Of curves that are sent later, nobody knows any more what was changed
    changes = describe_changes(settings.values, committed_params(settings.path)) if stage else ""
    if changes:
        tags[CHANGES_TAG] = changes

    experiment: str = settings.value("track.experiment")
    figures = LiveFigures(settings.work, experiment, uri, timeout_s, stage, tags)
    if stage or follow:
        follow_figures(figures, ending, notify)
        return

    figures.write_events()
    sent = figures.send()
    if not sent:
        typer.echo(f"{profile}: no training run has left a curve in {settings.work}.")

    for name, lines in sent.items():
        outcome = f"{lines} lines sent to" if lines else "already at"
        typer.echo(f"{profile} {name}: {outcome} {public_uri(uri)}")


def _once() -> Callable[[str], None]:
    """Return what shows the first of its texts as a warning: a server that stays away is told once."""
    texts: list[str] = []

    def notify(text: str) -> None:
        texts.append(text)
        if len(texts) == 1:
            _LOG.warning(text)

    return notify


def _end_on_sigterm(ending: threading.Event, notify: Callable[[str], None]) -> None:
    """Have SIGTERM end a follower: it sends what is left, and if that takes longer than :data:`END_S`, leaves it."""

    def give_up(*_: object) -> None:
        notify(
            "LIVE FIGURES WAIT: MLflow took too long for the last of them: `deepsearch live` sends them."
        )
        os._exit(0)

    def end(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, END_S)
        ending.set()

    # Training goes first
    os.nice(10)
    signal.signal(signal.SIGALRM, give_up)
    signal.signal(signal.SIGTERM, end)
