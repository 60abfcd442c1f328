"""`deepsearch trajectories`: what became of rollouts, and files for other trainers."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Convert trajectories and questions to other systems' files, and back.")

In = Annotated[Path, typer.Argument(help="Trajectories, questions, or another system's results.", show_default=False)]
Out = Annotated[Path, typer.Argument(help="File to write.", show_default=False)]
To = Annotated[
    str,
    typer.Option(help="ms-swift | trl (of trajectories), search-r1 | verl | rlinf (of questions), or trajectories."),
]
Dataset = Annotated[str, typer.Option(help="search-r1, verl: name of the question set, kept as data_source.")]
Split = Annotated[str, typer.Option(help="search-r1, verl: split that the questions are.")]
Prompt = Annotated[str, typer.Option(help="search-r1, verl: the instruction, a file of agent/prompts.")]
Model = Annotated[str, typer.Option(help="trajectories: what made the results.")]


@app.command("convert")
def convert_command(
    source: In,
    out: Out,
    to: To,
    dataset: Dataset = "multihoprag",
    split: Split = "train",
    prompt: Prompt = "multihoprag_nothink",
    model: Model = "imported",
) -> None:
    r"""Write rows for another trainer, or read FlashRAG's and DeepSearch-RL's results back as trajectories.

    Rows are checked before the file gets its name. Failed rollouts are left out of training rows.

    \b
        deepsearch trajectories convert data/tiny/trajectories/teacher.jsonl rows.jsonl --to trl
        deepsearch trajectories convert data/tiny/questions/multihoprag/train.jsonl train.parquet --to verl
        deepsearch trajectories convert results.jsonl trajectories.jsonl --to trajectories --model kimi-k2
    """
    from deepsearch_rl.trajectories.exchange import Source, export_rows, import_results  # noqa: PLC0415 - pandera

    if to == "trajectories":
        count = import_results(source, out, model)
    else:
        count = export_rows(source, out, to, Source(dataset, split, prompt))
    typer.echo(f"{count} rows in {out}")
