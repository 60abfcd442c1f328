"""The state of a stage changes with each of its inputs, and with nothing else."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ConfigError, UnknownNameError
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.stage_graph import read_stage, require_data
from deepsearch_rl.core.stage_state import DIGESTS, StageState, differences, read_state, summary

DVC_YAML = """
stages:
  rl:
    matrix: {start: "${rl.starts}"}
    params: [{"${params}": [seed, rl, agent]}, {packages.yaml: [rl.torch]}]
    deps: ["models/${profile}/${item.start}", src/loss.py, src/prompts]
  evaluate:
    foreach: ${models}
    do:
      params: [{"${params}": [seed, agent]}]
      deps: ["${item}", src/agent.py]
"""
PARAMS = """
profile: tiny
params: params.yaml
seed: 3
rl: {starts: [sft, base], learning_rate: 1.0e-3, watchdog: {start_s: 5}}
agent: {concurrency: 8, max_turns: 4}
models: {base: models/tiny/base}
other: {unread: 1}
"""
FILES = {
    "dvc.yaml": DVC_YAML,
    "params.yaml": PARAMS,
    "packages.yaml": "rl: {torch: 2.13.0, numpy: 2.0.0}",
    "src/loss.py": "loss = 1",
    "src/agent.py": "agent = 1",
    "src/prompts/tiny.txt": "Answer.",
    "models/tiny/sft/model.safetensors": "weights",
    "models/tiny/base/model.safetensors": "start",
}


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project of a few files is the working directory."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def state_of(stage: str) -> StageState:
    return read_state(load_profile(Path("params.yaml")), stage, Path())


def edit(name: str, old: str, new: str) -> Callable[[], None]:
    def change() -> None:
        path = Path(name)
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (edit("src/loss.py", "1", "2"), "src/loss.py (changed)"),
        (edit("src/prompts/tiny.txt", "Answer", "Search"), "src/prompts/tiny.txt (changed)"),
        (lambda: Path("src/prompts/new.txt").touch(), "src/prompts/new.txt (new)"),
        (edit("models/tiny/sft/model.safetensors", "w", "W"), "models/tiny/sft (changed)"),
        (lambda: Path("src/loss.py").unlink(), "src/loss.py (gone)"),
        (
            edit("params.yaml", "1.0e-3", "2.0e-3"),
            "params.yaml: rl.learning_rate (was 0.001, is 0.002)",
        ),
        (edit("params.yaml", "seed: 3", "seed: 4"), "params.yaml: seed (was 3.0, is 4.0)"),
        (
            edit("params.yaml", "start_s: 5", "start_s: 6"),
            "params.yaml: rl.watchdog.start_s (was 5.0, is 6.0)",
        ),
        (
            edit("packages.yaml", "2.13.0", "2.14.0"),
            'packages.yaml: rl.torch (was "2.13.0", is "2.14.0")',
        ),
    ],
)
def test_a_change_of_an_input_is_a_difference_in_words(
    change: Callable[[], None], sentence: str
) -> None:
    before = state_of("rl@sft")
    change()
    now = state_of("rl@sft")
    assert differences(before, now) == [sentence]
    assert now.digest() != before.digest()


@pytest.mark.parametrize(
    "change",
    [
        edit("src/agent.py", "1", "2"),
        edit("models/tiny/base/model.safetensors", "start", "START"),
        edit("params.yaml", "unread: 1", "unread: 2"),
        edit("packages.yaml", "numpy: 2.0.0", "numpy: 2.1.0"),
        lambda: os.utime("src/loss.py", (1, 1)),
        lambda: os.utime("models/tiny/sft/model.safetensors", (1, 1)),
    ],
)
def test_what_a_stage_does_not_declare_and_times_of_files_are_no_part_of_its_state(
    change: Callable[[], None],
) -> None:
    before = state_of("rl@sft")
    change()
    assert state_of("rl@sft") == before


def test_a_run_resumes_under_other_limits_and_not_under_another_learning_rate() -> None:
    before = state_of("rl@sft").resumable().digest()
    edit("params.yaml", "start_s: 5", "start_s: 6")()
    edit("params.yaml", "concurrency: 8", "concurrency: 2")()
    assert state_of("rl@sft").resumable().digest() == before
    edit("params.yaml", "max_turns: 4", "max_turns: 5")()
    assert state_of("rl@sft").resumable().digest() != before


def test_an_evaluation_resumes_under_other_params_and_data_but_not_with_other_code() -> None:
    before = state_of("evaluate@base").resumable().digest()
    edit("params.yaml", "max_turns: 4", "max_turns: 5")()
    edit("models/tiny/base/model.safetensors", "start", "START")()
    assert state_of("evaluate@base").resumable().digest() == before
    edit("src/agent.py", "1", "2")()
    assert state_of("evaluate@base").resumable().digest() != before


def test_a_prompt_that_params_name_is_data_and_one_that_the_graph_does_not_name_is_refused() -> (
    None
):
    edit("dvc.yaml", "src/agent.py]", 'src/agent.py, "${agent.prompt}"]')()
    edit("params.yaml", "max_turns: 4", "max_turns: 4, prompt: src/prompts/tiny.txt")()
    profile = load_profile(Path("params.yaml"))
    declared = read_stage(profile, "evaluate@base", Path())
    assert (declared.sources, declared.data) == (
        ("src/agent.py",),
        ("models/tiny/base", "src/prompts/tiny.txt"),
    )

    require_data(profile, "evaluate@base", ["src/prompts/tiny.txt"], Path())
    with pytest.raises(
        ConfigError, match=r"evaluate@base would read tiny, .* dep of it in dvc\.yaml"
    ):
        require_data(profile, "evaluate@base", ["tiny", "src/prompts/tiny.txt"], Path())


def test_params_without_a_graph_beside_them_have_that_of_the_project() -> None:
    copy = Path("work", "cut", "params.yaml")
    copy.parent.mkdir(parents=True)
    copy.write_text(PARAMS.replace("models/tiny/base", "models/tiny/cut"))
    declared = read_stage(load_profile(copy), "evaluate@base", Path())
    assert (declared.sources, declared.data) == (("src/agent.py",), ("models/tiny/cut",))


def test_a_number_is_the_same_however_it_is_written() -> None:
    before = state_of("rl@sft")
    edit("params.yaml", "1.0e-3", "1e-3")()  # a text for YAML 1.1
    edit("params.yaml", "seed: 3", "seed: 3.0")()
    assert state_of("rl@sft") == before


def test_data_of_an_unchanged_stamp_are_not_read_again() -> None:
    before = state_of("rl@sft")
    known = json.loads(DIGESTS.read_text())
    known["models/tiny/sft"][1] = "known"
    DIGESTS.write_text(json.dumps(known))
    assert state_of("rl@sft").data == {"models/tiny/sft": "known"}
    DIGESTS.write_text(DIGESTS.read_text()[:-9])  # as a full disk leaves it
    assert state_of("rl@sft") == before


def test_a_stage_that_is_not_in_the_graph_and_a_value_that_does_not_exist_are_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown stage 'rl@sfd'\. Did you mean 'rl@sft'"):
        state_of("rl@sfd")
    edit("params.yaml", "models: {base: models/tiny/base}", "models: {}")()
    edit("params.yaml", "agent:", "agents:")()
    with pytest.raises(ConfigError, match=r"params\.yaml has no 'agent', which dvc\.yaml declares"):
        state_of("rl@sft")
    edit("dvc.yaml", "stages:", "stages: [")()
    with pytest.raises(ConfigError, match=r"dvc\.yaml is no graph of DVC"):
        state_of("rl@sft")


def test_a_summary_names_the_first_few_differences() -> None:
    assert summary(["a", "b"]) == "a, b"
    assert summary([*"abcdefg"]) == "a, b, c, d and 3 more"


def test_no_stage_resumes_under_other_versions_of_what_it_imports() -> None:
    edit("params.yaml", "params: params.yaml", "params: params.yaml\npackages: packages.json")()
    edit(
        "dvc.yaml",
        '[{"${params}": [seed, agent]}]',
        '[{"${params}": [seed, agent], "${packages}": [evaluate]}]',
    )()
    Path("packages.json").write_text('{"evaluate": {"serve": {"torch": "2.1"}}}')
    before = state_of("evaluate@base")
    edit("packages.json", "2.1", "2.10")()
    now = state_of("evaluate@base")
    assert differences(before, now) == [
        'packages.json: evaluate.serve.torch (was "2.1", is "2.10")'
    ]
    assert now.resumable().digest() != before.resumable().digest()
