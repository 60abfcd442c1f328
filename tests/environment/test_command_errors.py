"""The commands that write rows for other trainers, where their user made a mistake."""

import importlib
import sys
from pathlib import Path

import pytest

from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import Question

# The options of each command besides params, questions, model and server
OPTIONS = {
    "ms_swift_rows": ["--output", "rows.jsonl"],
    "rlinf_rows": ["--output_dir", "rows", "--rlinf", "RLinf", "--megatron_model", "Qwen3-0.6B"],
    "verl_rows": ["--output_dir", "rows"],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_command_ends_with_one_paragraph_that_names_the_missing_params(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = importlib.import_module(f"deepsearch_rl.environment.adapters.{name}")
    write_jsonl(
        tmp_path / "train.jsonl", [Question(id="q", question="Who?", golden_answers=("A",))]
    )
    line = ["--params", "missing.yaml", "--questions", "train.jsonl", "--model", "model"]
    line += ["--retrieval_url", "http://127.0.0.1:9", *OPTIONS[name]]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *line])

    with pytest.raises(SystemExit) as end:
        command.main()

    message = str(end.value.code)
    assert message.startswith("error: ")
    assert "missing.yaml" in message
    assert "\n" not in message
