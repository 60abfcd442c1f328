"""An encoder of the user's own: a class of a file that params name (docs/own_code.md).

It has the attribute ``dimension`` and the method ``encode`` of
:class:`~deepsearch_rl.search.encoders.encoder.Encoder`. It need not normalise its vectors, nor
think of blank texts.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from deepsearch_rl.core.files import sha256_file
from deepsearch_rl.core.own_code import OwnName, load_own, own_path
from deepsearch_rl.search.encoders.encoder import EncoderConfig, Kind, Vectors, encode_readable


class OwnEncoderConfig(EncoderConfig):
    """An encoder of the user's own (docs/own_code.md)."""

    name: Literal["own"]
    code: OwnName = Field(description="path/to/file.py:name, called without arguments")

    def open(self, folder: Path) -> "OwnEncoder":  # noqa: ARG002 - nothing is learnt
        """See :class:`OwnEncoder`."""
        return OwnEncoder(self)

    def files(self) -> dict[str, str]:
        """Return the digest of the user's file."""
        path = own_path(self.code)
        return {self.code: sha256_file(path)} if path.is_file() else {}


class OwnEncoder:
    """The user's encoder, with a check of all that it returns."""

    def __init__(self, config: OwnEncoderConfig) -> None:
        """Make the encoder; raise ConfigError or UnknownNameError where it cannot be made."""
        self._code = load_own("encoder", config.code, ())
        self._encoder = self._code()
        dimension = getattr(self._encoder, "dimension", None)
        if not isinstance(dimension, int) or dimension < 1:
            raise self._code.error(
                f"has the dimension {dimension!r}; it must be the length of its vectors"
            )
        if not callable(getattr(self._encoder, "encode", None)):
            raise self._code.error("made an object without a method encode")
        self.dimension = dimension

    def encode(self, texts: Sequence[str], kind: Kind) -> Vectors:
        """Return embeddings_ND of N texts; raise ConfigError where the user's vectors are not N of D numbers."""

        def encode(readable: list[str]) -> Vectors:
            """Encode texts that are not blank, and check what comes back."""
            with self._code.named():
                vectors_ND = np.asarray(self._encoder.encode(readable, kind), dtype=np.float32)
            expected = (len(readable), self.dimension)
            if vectors_ND.shape != expected:
                raise self._code.error(
                    f"returned an array of shape {vectors_ND.shape}; it must have shape {expected}"
                )
            return vectors_ND

        return encode_readable(texts, self.dimension, encode)
