"""``deepsearch ask``: the evaluated agent on one question of yours, shown while it works, with a profile's settings."""

import asyncio
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

import typer
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text
from typer import Option

from deepsearch_rl.agent.config import prompt_option
from deepsearch_rl.cli.shared import (
    PROMPT_HELP,
    RequestOption,
    request_values,
    require_effect,
    with_options,
)
from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.profile import Profile, find_profile
from deepsearch_rl.core.records import Message, Question, Trajectory

# Of every passage so much is shown; the model reads all of it
PASSAGE_CHARACTERS = 240
_TAGGED = re.compile(r"</?think>|<(search|answer)>.*?</\1>", re.DOTALL)
_PASSAGES = re.compile(r"^(?=\[\d+\] |Doc \d+\(Title: )", re.MULTILINE)


def ask(
    question: str,
    settings: Profile,
    model: Path,
    dataset: str,
    temperature: float,
    retrieval_url: str | None,
    observer: Callable[[Message], None],
    request: Mapping[str, object] | None = None,
) -> Trajectory:
    """Answer one question; ``observer`` is shown every message, ``retrieval_url`` replaces the index of ``dataset``.

    ``request`` holds options of the endpoint's requests that take the place of its own.
    """
    from deepsearch_rl.serve.launch import ServingConfig, start_model  # noqa: PLC0415 - takes a second

    serving = settings.section("serving", ServingConfig)
    # A question has golden answers, and nothing is scored here
    record = Question(id="ask", question=question, golden_answers=("",))

    with ExitStack() as servers:
        # The model takes longest to load. The agent's libraries load beside it, and then the index:
        # all three at once would take the model's core.
        wait_for_model = servers.enter_context(start_model(model, serving))
        from deepsearch_rl.agent.collect import RolloutSetting  # noqa: PLC0415
        from deepsearch_rl.agent.rollout import SearchAgent  # noqa: PLC0415 - takes two seconds
        from deepsearch_rl.server.launch import start_index  # noqa: PLC0415 - FAISS

        setting = RolloutSetting.of(settings, dataset)
        wait_for_index: Callable[[], str] | None = None
        if not retrieval_url:
            starting = start_index(setting.index, setting.chunks, setting.retrieval)
            wait_for_index = servers.enter_context(starting)

        url = wait_for_index() if wait_for_index else str(retrieval_url)
        endpoint = wait_for_model()
        if request:
            endpoint = replace(endpoint, options=endpoint.options.changed(request))
        agent = SearchAgent(setting.agent, endpoint, url, temperature, observer=observer)

        async def answer() -> Trajectory:
            async with agent:
                return await agent.answer(record, 0)

        return asyncio.run(answer())


_Model: TypeAlias = Annotated[
    str | None, Option(help="One of the profile's (its last if not given), or a folder.")
]
_Dataset: TypeAlias = Annotated[
    str | None, Option(help="Search this set's corpus (the first if not given).")
]
_RetrievalUrl: TypeAlias = Annotated[
    str | None, Option(help="A running server in place of the profile's index.")
]
_Prompt: TypeAlias = Annotated[
    str | None,
    Option(help=PROMPT_HELP, show_default="the profile's; search_tags with that protocol"),
]
_Protocol: TypeAlias = Annotated[
    str | None, Option(help="function_calling, or search_tags for Search-R1's models.")
]


def ask_command(
    context: typer.Context,
    question: Annotated[str, typer.Argument(help="What you want to know.", show_default=False)],
    profile: Annotated[str, Option(help="Whose models, corpora and settings.")] = "tiny",
    model: _Model = None,
    dataset: _Dataset = None,
    retrieval_url: _RetrievalUrl = None,
    prompt: _Prompt = None,
    protocol: _Protocol = None,
    top_k: Annotated[int | None, Option(min=1, help="Passages per search.")] = None,
    temperature: Annotated[float, Option(min=0, max=2, help="Of sampling.")] = 0.0,
    request: RequestOption = None,
    as_json: Annotated[
        bool, Option("--json", help="Print the whole trajectory as JSON instead.")
    ] = False,
) -> None:
    """Let the agent answer a question, and show its queries, the passages it finds and its answer as they come.

    Profile multihoprag asks the API model that OPENAI_BASE_URL, OPENAI_MODEL and OPENAI_API_KEY
    name. The exit status is 1 if there is no answer.

        deepsearch ask "Name Bitter Journey's director's mentor's employer."
    """
    if retrieval_url:
        reason = "with --retrieval-url, whose server decides it; leave one of them out"
        require_effect(context, ["top_k", "dataset"], reason)

    options = {
        "agent.prompt": prompt_option(prompt, protocol),
        "agent.protocol": protocol,
        "retrieval.top_k": top_k,
    }
    settings = with_options(find_profile(Path(), profile), options)
    name, folder = _find_model(settings, model)
    # As evaluate has it, so that an answer here is one of the table's
    settings = settings.with_values(settings.value("model_settings").get(name, {}))
    dataset = dataset or next(iter(settings.value("datasets")))
    extra = _request_options(request, folder)

    def answer(observer: Callable[[Message], None]) -> Trajectory:
        return ask(question, settings, folder, dataset, temperature, retrieval_url, observer, extra)

    if as_json:
        trajectory = answer(lambda _: None)
        typer.echo(trajectory.model_dump_json(indent=2, exclude_none=True))
    else:
        source = retrieval_url or f"the index of {dataset}"
        with _Display(f"loading {folder} and {source}") as display:
            trajectory = answer(display.show)
        display.show_end(trajectory)

    sys.exit(1 if trajectory.failed else 0)


def _request_options(request: Sequence[str] | None, folder: Path) -> dict[str, Any]:
    """Return the values of ``--request``; raise ConfigError for a model that no endpoint serves."""
    values = request_values(request or ())
    if values and not (folder / "endpoint.json").is_file():
        raise ConfigError(
            f"--request is for a model behind an endpoint, and {folder} holds weights; leave it out."
        )

    return values


def _find_model(settings: Profile, model: str | None) -> tuple[str, Path]:
    """Return name and folder of a model of the profile, of its last one, or of a folder beside them."""
    models = settings.mapping("models", Path)
    name = model or list(models)[-1]
    is_other_folder = name not in models and Path(name).is_dir()
    return name, Path(name) if is_other_folder else look_up("model", name, models)


class _Display:
    """Shows a rollout on standard output and, on a terminal, a line below it that says what is waited for."""

    def __init__(self, waits_for: str) -> None:
        self._console = Console(highlight=False)
        self._spinner = Spinner("dots", Text(waits_for, "dim"))
        self._live = Live(
            self._spinner, console=self._console, refresh_per_second=10, transient=True
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, message: Message) -> None:
        """Show what the model thought, asked for, was shown or answered; not the prompt and the question."""
        awaited = "the search" if message.tool_calls else "the model"
        self._spinner.update(text=Text(f"waiting for {awaited}", "dim"))
        self._live.refresh()
        if message.role == "assistant":
            thought = " ".join((message.reasoning or "", _TAGGED.sub("", message.content))).strip()
            if thought:
                self._line("thinks", thought, "italic dim")
            for call in message.tool_calls:
                query = str((call.parsed or {}).get("query", call.arguments))
                self._line("searches", query, "bold cyan")
        elif message.role == "tool":
            for passage in filter(str.strip, _PASSAGES.split(message.content)):
                title, _, body = re.sub(r"</?information>", "", passage).strip().partition("\n")
                text = f"{title}{': ' if body else ''}{body}"
                self._line("", textwrap.shorten(text, PASSAGE_CHARACTERS, placeholder=" ..."), "")

    def show_end(self, trajectory: Trajectory) -> None:
        """Show the answer, or why there is none, and what it took."""
        if trajectory.failed:
            reason = f"{trajectory.stop_reason}: {trajectory.error or 'no answer tag'}"
            self._line("no answer", reason, "red")
        else:
            self._line("answer", trajectory.answer or "(blank)", "bold green")

        counts = f"{trajectory.prompt_tokens} + {trajectory.completion_tokens} tokens"
        tokens = counts if trajectory.usage else "tokens not counted"
        # A passage that several searches found counts once
        chunk_ids: set[str] = set()
        for retrieval in trajectory.retrievals:
            chunk_ids.update(retrieval.chunk_ids)
        took = (
            f"{len(trajectory.retrievals)} searches, {len(chunk_ids)} passages, "
            f"{trajectory.rounds} turns, {tokens}"
        )
        self._console.print(Text(took, "dim"))

    def _line(self, label: str, text: str, style: str) -> None:
        label_text = Text(f"{label:>9}  ", "dim")
        self._console.print(label_text, Text(text, style), sep="", soft_wrap=True)
