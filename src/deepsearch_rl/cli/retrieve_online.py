"""``deepsearch retrieve online``: one search by an online provider, to try its key."""

from typing import Annotated

import typer

SHOWN = 5


def online_command(
    name: Annotated[
        str, typer.Argument(help="serpapi | google | brave | searxng, or your own FILE.py:NAME.")
    ],
    query: Annotated[str, typer.Argument(help="The words to search for.")],
) -> None:
    """Search the web once and print the passages, to try a key before `serve --online NAME`.

    Keys and addresses are read from the environment or .env: SERPAPI_API_KEY; GOOGLE_API_KEY and
    GOOGLE_ENGINE_ID; BRAVE_API_KEY; SEARXNG_URL.

        deepsearch retrieve online brave "first lander on a comet"
    """
    from deepsearch_rl.chat.chat_messages import format_passages  # noqa: PLC0415
    from deepsearch_rl.server.online import open_online  # noqa: PLC0415 - loads FAISS

    [hits] = open_online(name).find_hits([query], SHOWN)
    typer.echo(format_passages([hit.chunk for hit in hits]))
