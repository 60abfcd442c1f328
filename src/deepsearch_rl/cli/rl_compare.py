"""``deepsearch rl compare``: RL with several settings from one start, and a table of what each of them does."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from deepsearch_rl.cli.defaults import changed_field
from deepsearch_rl.cli.profile_argument import ProfileOption
from deepsearch_rl.cli.targets import writable_folder
from deepsearch_rl.cli.terminal import print_table
from deepsearch_rl.core.profile import find_profile


def compare_command(
    settings: Annotated[
        list[str],
        Argument(help="field=value of params; several of one setting with spaces between."),
    ],
    profile: ProfileOption = "tiny",
    start: Annotated[str, Option(help="The model that every run starts from.")] = "sft",
    seeds: Annotated[
        int, Option(min=1, help="Runs of each setting: with the profile's seed and those after it.")
    ] = 2,
    samples: Annotated[int, Option(min=1, help="Sampled answers per dev question.")] = 3,
    world_seed: Annotated[
        int | None,
        Option(
            help="Score also on all sets of another generated world, where the profile's questions are generated."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            help="Folder for table.md, table.json and the page, index.html.",
            show_default="work/<profile>/compare",
            callback=writable_folder,
        ),
    ] = None,
) -> None:
    """Train with several settings from one start, with equal questions and rollouts, and score them on dev.

    Every run is kept in `work/<profile>/compare/` and is not made again while code, params and data
    are what they were; one that was cut off goes on. The table and its page are written after every
    run. `val` is not looked at.

        deepsearch rl compare rl.loss.algorithm=grpo rl.loss.algorithm=gspo rl.loss.algorithm=rloo
        deepsearch rl compare rl.loss.kl_penalty=0 'rl.loss.kl_penalty=0.05 rl.learning_rate=5e-4' --seeds 3
        deepsearch rl compare rl.loss.algorithm=rloo rl.loss.algorithm=cispo --world-seed 90210
    """
    from deepsearch_rl.evaluate.rl_comparison.comparison import Settings  # noqa: PLC0415 - with the rest below, which loads the agent and matplotlib
    from deepsearch_rl.evaluate.rl_comparison.page import compare  # noqa: PLC0415
    from deepsearch_rl.evaluate.rl_comparison.tables import comparison_table  # noqa: PLC0415

    opened = find_profile(Path(), profile)
    fields = {text: dict(map(changed_field, text.split())) for text in settings}
    compared = Settings(opened, fields, start, seeds, samples, world_seed)
    folder = out or opened.work / "compare"

    table = comparison_table(compare(compared, folder, _announce))
    title = f"RL from {start}, means over seeds ± standard deviation"
    print_table(title, table.header, table.lines)
    typer.echo(f"table.md, table.json, index.html: {folder}", err=True)


def _announce(text: str) -> None:
    typer.echo(text, err=True)
