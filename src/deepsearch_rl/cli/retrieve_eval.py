"""``deepsearch retrieve eval``: how good an index's retrievers are."""

import json
import re
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deepsearch_rl.cli.terminal import print_table
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.data.flashrag import read_questions


def eval_command(
    index: Annotated[Path, Option(help="Folder that `retrieve build` wrote.")],
    questions: Annotated[
        Path, Option(help="Questions with gold evidence, in any layout that is read.")
    ],
    retriever: Annotated[
        list[str] | None,
        Option(help="bm25, dense, hybrid, or your FILE.py:NAME.", show_default="all that it has"),
    ] = None,
    cutoffs: Annotated[str, Option(help="The k of hits@k and evidence recall@k.")] = "4,10",
    chunks: Annotated[
        Path | None, Option(help="The passage file, if it was moved since the build.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Score an index's retrievers over questions with gold evidence.

    A question is `{"id", "question", "golden_answers", "metadata"}`; its metadata says which
    passages are gold: `"evidence_list"` (those that contain a `"fact"`; MultiHop-RAG's official
    scores), otherwise `"supporting_doc_ids"` or `"supporting_titles"`. Questions with none of these
    are left out. A hybrid that learnt from these questions looks better than it is: `retrieve build
    --questions` prints its scores on questions held out.

        deepsearch retrieve eval --index index --questions questions.jsonl
    """
    # Here, because it loads FAISS.
    from deepsearch_rl.search.gold import warn_of_missing, with_gold  # noqa: PLC0415
    from deepsearch_rl.search.manifest import read_manifest  # noqa: PLC0415
    from deepsearch_rl.search.own_retriever import RETRIEVERS  # noqa: PLC0415
    from deepsearch_rl.search.quality import measure  # noqa: PLC0415
    from deepsearch_rl.search.searcher import open_index  # noqa: PLC0415

    depths = list(map(str.strip, cutoffs.split(",")))
    if not all(re.fullmatch("[1-9][0-9]{0,5}", depth) for depth in depths):
        raise ConfigError(
            f"--cutoffs {cutoffs!r} should be numbers from 1 to 999999 with commas between, e.g. 4,10."
        )

    rows = list(read_questions(questions))
    examples = with_gold(rows)
    if not examples:
        raise ArtifactError(
            f"none of {len(rows)} questions has gold evidence (metadata.evidence_list, supporting_doc_ids or "
            "supporting_titles), so that there is nothing to score retrievers by."
        )

    halves = read_manifest(index).config.halves
    names = retriever or (RETRIEVERS if len(halves) > 1 else halves)
    scores: dict[str, dict[str, float]] = {}
    for name in names:
        searcher = open_index(index, chunks, name)
        if not scores:
            warn_of_missing(searcher.chunks, [gold for _, gold in examples], str(questions))
        scores[name] = measure(searcher, examples, list(map(int, depths)))

    if as_json:
        typer.echo(json.dumps(scores, indent=2))
    else:
        metrics = list(next(iter(scores.values())))[1:]
        table = [[metric, *(f"{scores[name][metric]:.3f}" for name in names)] for metric in metrics]
        print_table("", ["", *names], table)
        typer.echo(f"{len(examples)} of {len(rows)} questions have gold evidence")
