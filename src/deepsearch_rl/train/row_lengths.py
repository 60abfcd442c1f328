"""Rows that are longer than ``sft.max_length``: ms-swift leaves them out without a word.

Where none is left, it ends with a TypeError after it has loaded the model, so rows are looked at
before. The template adds tokens to a row's texts, and only ms-swift counts them, which takes
seconds to import. The texts alone are enough to find a limit that is far too low.
"""

import logging
from pathlib import Path

from tokenizers import Tokenizer

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.train.swift_rows import SwiftRow
from deepsearch_rl.train.trainer_state import fitting_rows

_LOG = logging.getLogger(__name__)


def require_fitting_row(rows: Path, model: Path, max_length: int) -> None:
    """Raise ConfigError where the texts of every row have more tokens than ``max_length``.

    The tokens are those of the model's tokenizer.json; a model that has none is not refused.
    """
    file = model / "tokenizer.json"
    if not file.is_file():
        return

    tokenizer = Tokenizer.from_file(str(file))
    # One that cuts its input, as a model needs it, would count too few
    tokenizer.no_truncation()
    tokenizer.no_padding()
    shortest = 0

    for row in read_jsonl(rows, SwiftRow):
        texts = [row.tools, *(message.content for message in row.messages)]
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        tokens = sum(map(len, encodings))
        if tokens <= max_length:
            return

        shortest = min(shortest or tokens, tokens)

    raise ConfigError(
        f"every row in {rows} is longer than sft.max_length = {max_length}, so none would be left to "
        f"train on: the texts of the shortest alone have {shortest} tokens. Raise sft.max_length; "
        "`tokens` in the report of the stage filter says how long rows are."
    )


def trained_rows(count: int, scratch: Path, max_length: int) -> int:
    """Return how many of ``count`` rows were not too long; warn where some were."""
    fitting = fitting_rows(scratch)
    if fitting is None or fitting == count:
        return count

    _LOG.warning(
        "%d of %d rows are longer than sft.max_length = %d and were left out; raise it, or lower "
        "filter.max_tokens, which counts such rows as dropped.",
        count - fitting,
        count,
        max_length,
    )
    return fitting
