"""Revisions of encoders from a hub."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.search.encoders.folders import encoder_config


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs/pr/1", "abc123", "F52BF8E", ""])
def test_an_encoders_revision_that_can_move_is_refused(tmp_path: Path, revision: str) -> None:
    with pytest.raises(ValidationError, match="is no commit"):
        encoder_config(tmp_path, revision=revision)
