"""Tables on a terminal, as wide as it is; in a pipe or a file as wide as they need to be."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Characters: nothing is cut where no terminal limits a line
PIPE_WIDTH = 240


def print_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], is_ruled: bool = False
) -> None:
    """Print a table, ``is_ruled`` with a line below every row. Brackets in a text are brackets, not markup."""
    table = Table(title=Text(title) if title else None, title_justify="left", show_lines=is_ruled)
    for name in header:
        table.add_column(Text(name))
    for cells in rows:
        table.add_row(*map(Text, cells))
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)
