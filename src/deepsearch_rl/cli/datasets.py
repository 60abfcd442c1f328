"""``deepsearch datasets``: public data that can be read, and how a profile asks for it."""

import json
from typing import Annotated

import typer

from deepsearch_rl.core.errors import look_up
from deepsearch_rl.data.catalogue import CARDS

Name = Annotated[
    str | None, typer.Argument(help="A data set; without one, all are listed.", show_default=False)
]


def datasets_command(name: Name = None) -> None:
    """List the readable data sets, or show one: source, licence, a row, and the params that fetch it.

    The name of a question set is what `deepsearch evaluate --dataset` and `format` in a profile.yaml
    take.

        deepsearch datasets popqa
    """
    if name is None:
        width = max(map(len, CARDS))
        for each, card in CARDS.items():
            typer.echo(f"{each:{width}}  {card.holds} ({card.licence})")
        return

    card = look_up("data set", name, CARDS)
    reading = f"`download.folder` reads them with `format: {name}`"
    # Prompts, not questions: the stage of that name reads them
    if name == "ifeval":
        reading = "`download.folder.files` copies the one that `ifeval.path` names, with `ifeval.prompts: real`"
    revision = (
        card.revision or "<a commit of your choice: none was seen when the loader was written>"
    )
    typer.echo(
        f"{name}: {card.holds}\n"
        f"paper:    {card.paper}\n"
        f"licence:  {card.licence}\n"
        f"hub:      {card.repository} at {revision}\n"
        f"files:    {', '.join(card.files)}\n"
        f"a row:    {json.dumps(card.sample, ensure_ascii=False)}\n\n"
        f"In a profile.yaml, `download.hub.repositories` fetches the files, and {reading} "
        "(profiles/gpu/profile.yaml shows both)."
    )
