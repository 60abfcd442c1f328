"""Streams that say that they are a terminal."""

import io


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TerminalPipe(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True
