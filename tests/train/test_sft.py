"""Supervised fine-tuning: what is refused, what a killed run leaves, what is published, and one real run."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import ValidationError
from safetensors.torch import load_file

from deepsearch_rl.chat.prompts import PromptDigests, chat_template, read_trained_with, served_with
from deepsearch_rl.core.errors import (
    ArtifactError,
    CommandError,
    ConfigError,
    RecordError,
    UnavailableError,
)
from deepsearch_rl.core.files import file_digests, read_jsonl, read_record, write_json
from deepsearch_rl.train import sft as sft
from deepsearch_rl.train.curves import CurveLine, curve_path, recorded_curve
from deepsearch_rl.train.finite import NotFiniteError, not_finite_metrics
from deepsearch_rl.train.model_folder import ADAPTER_FILES, LOWEST_LOSS, require_files
from deepsearch_rl.train.sft import (
    SftConfig,
    canonical_adapter_config,
    require_attention,
    swift_sft_command,
    train_adapter,
)
from deepsearch_rl.train.swift import (
    TRAINER_STATE,
    TrainerState,
    logged_metrics,
    newest_checkpoint,
    remove_not_finite,
)
from deepsearch_rl.train.swift_rows import SwiftRow, require_fitting_row

ENTRY = {
    "loss": 1.5,
    "grad_norm": 0.2,
    "learning_rate": 1e-3,
    "token_acc": 0.7,
    "epoch": 0.1,
    "step": 5,
}
SUMMARY = {"train_runtime": 3.0, "train_loss": 1.5, "epoch": 1.0, "step": 5}


@pytest.fixture
def config(root: Path) -> SftConfig:
    section = yaml.safe_load((root / "params.yaml").read_text())["sft"]
    return SftConfig.model_validate({**section, "max_length": 512, "epochs": 1, "save_steps": 2})


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Sixteen agent rows as the filter stage writes them."""
    tools = json.dumps(
        [{"type": "function", "function": {"name": "retrieve", "parameters": {"type": "object"}}}]
    )
    call = json.dumps({"name": "retrieve", "arguments": {"query": "the film's director"}})
    path = tmp_path / "train.jsonl"
    with path.open("w") as out:
        for number in range(16):
            messages = [
                {"role": "system", "content": "Search, then answer."},
                {"role": "user", "content": f"Who directed film {number}?"},
                {"role": "tool_call", "content": call},
                {
                    "role": "tool_response",
                    "content": f"[1] Film {number}\nIts director is person {number}.",
                },
                {"role": "assistant", "content": f"<answer> person {number}</answer>"},
            ]
            out.write(json.dumps({"tools": tools, "messages": messages}) + "\n")
    return path


def flags_of(command: list[str]) -> dict[str, str]:
    return {
        name.removeprefix("--"): value
        for name, value in zip(command[2::2], command[3::2], strict=True)
    }


def test_rows_that_do_not_exist_or_are_empty_are_refused(
    config: SftConfig, policy_folder: Path, tmp_path: Path
) -> None:
    for rows in (tmp_path / "missing.jsonl", tmp_path / "empty.jsonl"):
        if rows.stem == "empty":
            rows.touch()
        with pytest.raises(ArtifactError, match="holds no rows to train on"):
            train_adapter(config, policy_folder, rows, 0, tmp_path / "work", tmp_path / "out")


def test_a_line_that_is_no_row_names_file_line_and_field(
    config: SftConfig, policy_folder: Path, rows: Path, tmp_path: Path
) -> None:
    with rows.open("a") as out:
        out.write('{"tools": "[]", "messages": [{"role": "robot", "content": ""}]}\n')
    with pytest.raises(RecordError, match=r"train\.jsonl, line 17: field 'messages\.0\.role'"):
        train_adapter(config, policy_folder, rows, 0, tmp_path / "work", tmp_path / "out")


def test_a_folder_without_weights_is_refused(config: SftConfig, rows: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="holds no model weights"):
        train_adapter(config, tmp_path, rows, 0, tmp_path / "work", tmp_path / "out")


def test_rows_of_several_prompts_and_a_base_of_another_prompt_are_refused(
    config: SftConfig, policy_folder: Path, rows: Path, tmp_path: Path
) -> None:
    base = shutil.copytree(policy_folder, tmp_path / "base")
    other = PromptDigests.of("Another prompt.", "[]").with_template(chat_template(base))
    write_json(base / "manifest.json", {"trained_with": other.model_dump()})
    with pytest.raises(
        ConfigError, match=r"base was trained with another system prompt and tool .*train\.jsonl"
    ):
        train_adapter(config, base, rows, 0, tmp_path / "work", tmp_path / "out")

    lines = rows.read_text().splitlines()
    rows.write_text("\n".join([*lines, lines[0].replace("Search, then answer.", "Search.")]))
    with pytest.raises(ConfigError, match=r"train\.jsonl have 2 different system prompts"):
        train_adapter(config, policy_folder, rows, 0, tmp_path / "work", tmp_path / "out")
    assert not (tmp_path / "work").exists()


def test_rows_that_are_all_too_long_are_refused_before_the_trainer_starts(
    config: SftConfig, policy_folder: Path, rows: Path, tmp_path: Path
) -> None:
    config = config.model_copy(update={"max_length": 20})
    with pytest.raises(
        ConfigError,
        match=r"every row in .*train\.jsonl is longer than sft\.max_length = 20, .* [1-9]\d+ tokens",
    ):
        train_adapter(config, policy_folder, rows, 0, tmp_path / "work", tmp_path / "out")
    assert not (tmp_path / "work").exists()


def test_one_row_that_fits_is_enough_to_train_on(policy_folder: Path, rows: Path) -> None:
    lines = rows.read_text().splitlines()
    rows.write_text("\n".join([lines[0].replace("Who directed", "Who directed " * 500), lines[1]]))
    require_fitting_row(rows, policy_folder, 512)
    rows.write_text(lines[0].replace("Who directed", "Who directed " * 500))
    with pytest.raises(ConfigError, match="longer than"):
        require_fitting_row(rows, policy_folder, 512)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_training_on_a_gpu_that_is_not_there_stops_before_anything_is_read(
    config: SftConfig, tmp_path: Path
) -> None:
    gpu = config.model_copy(
        update={"device": "cuda", "attention": "flash_attn", "liger_kernel": True}
    )
    with pytest.raises(
        UnavailableError, match=r"'flash_attn' and the package 'liger_kernel' and a CUDA GPU"
    ):
        train_adapter(
            gpu, tmp_path / "missing", tmp_path / "missing", 0, tmp_path / "work", tmp_path / "out"
        )
    assert not (tmp_path / "work").exists()


def test_a_flash_attention_that_does_not_load_stops_before_training_and_says_why(
    config: SftConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flash_attn.py").write_text(
        "raise ImportError('undefined symbol: _ZN3c105ErrorC2E')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        UnavailableError,
        match=r"flash_attn, in python\.sft \(ImportError: undefined symbol: _ZN3c105ErrorC2E\); build it",
    ):
        require_attention(config.model_copy(update={"attention": "flash_attn"}))
    require_attention(config)


def test_float32_switches_both_kinds_of_mixed_precision_off(
    config: SftConfig, tmp_path: Path
) -> None:
    flags = flags_of(swift_sft_command(config, tmp_path, tmp_path, tmp_path, 3))
    assert (flags["torch_dtype"], flags["fp16"], flags["bf16"]) == ("float32", "false", "false")
    assert (flags["seed"], flags["data_seed"]) == ("3", "3")


def test_a_checkpoint_that_was_being_written_is_passed_over(tmp_path: Path) -> None:
    for step, state in (
        (90, '{"global_step": 90}'),
        (100, '{"global_step": 100}'),
        (110, '{"global_st'),
        (120, None),
    ):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if state is not None:
            (folder / "trainer_state.json").write_text(state)
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-100"
    assert newest_checkpoint(tmp_path / "nothing") is None


def test_equal_runs_in_different_folders_publish_equal_settings() -> None:
    one = {"r": 4, "base_model_name_or_path": "/a/base", "target_modules": ["v_proj", "q_proj"]}
    other = {"r": 4, "base_model_name_or_path": "/b/base", "target_modules": ["q_proj", "v_proj"]}
    folder = Path("models/tiny/base")
    published = canonical_adapter_config(one, folder)
    assert published == canonical_adapter_config(other, folder)
    assert (published["r"], published["base_model_name_or_path"]) == (4, "models/tiny/base")


def write_state(folder: Path, **changes: object) -> Path:
    """A checkpoint with a finished run's state, some of it replaced."""
    state = {"global_step": 5, "max_steps": 5, "log_history": [ENTRY, SUMMARY], "best_metric": None}
    (folder / TRAINER_STATE).write_text(json.dumps(state | changes))
    return folder / TRAINER_STATE


def test_the_training_curve_leaves_out_the_closing_summary(tmp_path: Path) -> None:
    state = read_record(write_state(tmp_path), TrainerState)
    assert [(line.step, line.loss, line.token_acc) for line in state.lines] == [(5, 1.5, 0.7)]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-4, 'global_step/max_steps': '7/9'}",
            "grad_norm nan",
        ),
        ("{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '1e-4'}", "grad_norm nan"),
        ("{'loss': inf, 'grad_norm': -inf}", "loss inf, grad_norm -inf"),
        ("{'eval_loss': nan, 'eval_runtime': 2.0}", "eval_loss nan"),
        ("{'loss': 0.5, 'grad_norm': 1.5, 'note': 'nan'}", ""),
    ],
)
def test_a_loss_or_gradient_that_is_no_number_is_read_from_what_the_trainer_prints(
    line: str, problem: str
) -> None:
    assert not_finite_metrics(line) == problem


def test_training_stops_at_the_first_loss_that_is_no_number_and_keeps_no_checkpoint_from_there_on(
    config: SftConfig,
    policy_folder: Path,
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As ms-swift reports it: ``loss: 0.0, grad_norm: nan``. What it prints is read while it runs; its state after."""
    scratch = tmp_path / "work"
    bad = {**ENTRY, "loss": 0.0, "grad_norm": float("nan"), "step": 6}

    def swift(*arguments: Any) -> None:
        for step, log_history in (
            (5, [ENTRY]),
            (6, [ENTRY, bad]),
            (7, [ENTRY, bad, {**ENTRY, "step": 7}]),
        ):
            folder = scratch / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            write_state(folder, global_step=step, max_steps=7, log_history=log_history)
        if on_its_output:
            arguments[-1](f"{bad}")  # the reader of its lines

    monkeypatch.setattr(sft, "run_swift", swift)
    for on_its_output in (False, True):
        with pytest.raises(
            NotFiniteError, match=r"swift sft computed no number \(.*step .*: grad_norm nan"
        ):
            train_adapter(config, policy_folder, rows, 0, scratch, tmp_path / "out")
        assert remove_not_finite(scratch) == ("step 6: grad_norm nan" if on_its_output else "")
        assert [folder.name for folder in scratch.iterdir()] == ["checkpoint-5"]
        shutil.rmtree(scratch)
    assert not (tmp_path / "out").exists()


def test_with_liger_the_training_curve_has_no_token_accuracy(tmp_path: Path) -> None:
    """Entries of ms-swift 4.6 with ``use_liger_kernel``: training makes no logits, an evaluation does."""
    entry = {name: value for name, value in ENTRY.items() if name != "token_acc"}
    evaluation = {
        "eval_loss": 1.25,
        "eval_token_acc": 0.7,
        "eval_runtime": 2.0,
        "epoch": 0.1,
        "step": 5,
    }
    state = read_record(
        write_state(tmp_path, log_history=[entry, evaluation, SUMMARY]), TrainerState
    )
    assert [(line.loss, line.token_acc, line.eval_loss) for line in state.lines] == [
        (1.5, None, 1.25)
    ]


def test_the_training_curve_has_the_evaluation_loss_at_the_steps_that_have_one(
    tmp_path: Path,
) -> None:
    log = [
        ENTRY,
        {"eval_loss": 1.25, "eval_runtime": 2.0, "epoch": 0.1, "step": 5},
        {**ENTRY, "step": 6},
    ]
    state = read_record(write_state(tmp_path, log_history=log, best_global_step=5), TrainerState)
    assert [(line.step, line.eval_loss) for line in state.lines] == [(5, 1.25), (6, None)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packing": True}, "packing needs flash attention"),
        ({"eval_share": 0.1, "save_steps": 7}, "save_steps 7 is no multiple of log_steps 5"),
    ],
)
def test_settings_that_cannot_work_together_are_refused(
    config: SftConfig, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        SftConfig.model_validate(config.model_dump() | changes)


@pytest.mark.parametrize(("steps", "calls"), [(4, 1), (5, 0)])
def test_swift_runs_unless_the_newest_checkpoint_has_the_last_step(
    config: SftConfig,
    policy_folder: Path,
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    calls: int,
) -> None:
    write_state(tmp_path, global_step=steps)
    (tmp_path / "adapter_config.json").write_text('{"target_modules": []}')
    (tmp_path / "adapter_model.safetensors").touch()
    commands: list[object] = []
    monkeypatch.setattr(sft, "newest_checkpoint", lambda _: tmp_path)
    monkeypatch.setattr(sft, "run_swift", lambda *call: commands.append(call))
    train_adapter(config, policy_folder, rows, 0, tmp_path / "work", tmp_path / "out")
    assert len(commands) == calls
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["steps"] == steps
    [row, *_] = read_jsonl(rows, SwiftRow)
    assert read_trained_with(tmp_path / "out") == served_with(policy_folder, row.prompt_digests())


def test_all_checkpoints_are_published_for_dev_to_choose_from_and_another_choice_of_a_killed_run_trains_nothing(
    config: SftConfig,
    policy_folder: Path,
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[list[str]] = []

    def run_swift(command: list[str], *_: object) -> None:
        commands.append(command)
        for step in (2, 4, 5):
            folder = Path(flags_of(command)["output_dir"], f"checkpoint-{step}")
            folder.mkdir(parents=True)
            write_state(folder, global_step=step)
            (folder / "adapter_config.json").write_text('{"target_modules": []}')
            (folder / "adapter_model.safetensors").write_text(f"weights of step {step}")

    monkeypatch.setattr(sft, "run_swift", run_swift)
    train_adapter(config, policy_folder, rows, 0, tmp_path / "work", tmp_path / "out")
    assert len(commands) == 1
    weights = {
        path.parent.name: path.read_text() for path in (tmp_path / "out").rglob("*.safetensors")
    }
    assert weights == {f"{step}": f"weights of step {step}" for step in (2, 4, 5)}
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert "lowest_loss_step" not in manifest, "no row was held back"


@pytest.mark.parametrize(("packing", "trained"), [(False, 13), (True, 16)])
def test_rows_that_are_too_long_to_be_trained_on_are_counted_and_warned_of(
    config: SftConfig,
    policy_folder: Path,
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    packing: bool,
    trained: int,
) -> None:
    def run_swift(command: list[str], *_: object) -> None:
        scratch = Path(flags_of(command)["output_dir"])
        folder = scratch / "checkpoint-5"
        folder.mkdir(parents=True)
        write_state(folder, global_step=5)
        (folder / "adapter_config.json").write_text('{"target_modules": []}')
        (folder / "adapter_model.safetensors").touch()
        lengths = "207.6\u00b12.0, min=206.0, max=210.0, size="
        summary = {"train_dataset": f"{lengths}10", "val_dataset": f"{lengths}3"}
        lines = [json.dumps(line, ensure_ascii=False) for line in (ENTRY, summary)]
        (scratch / "logging.jsonl").write_text("\n".join(lines), encoding="utf-8")

    monkeypatch.setattr(sft, "run_swift", run_swift)
    config = config.model_copy(update={"packing": packing, "attention": "flash_attn"})
    train_adapter(config, policy_folder, rows, 0, tmp_path / "work", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["rows"] == trained
    assert ("3 of 16 rows are longer than sft.max_length = 512" in caplog.text) is not packing


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"global_step": "five"}, "global_step"),
        ({"log_history": None}, "log_history"),
        ({"log_history": [SUMMARY, {**ENTRY, "loss": "low"}]}, "log_history.1.loss"),
        ({"log_history": [{"loss": 1.5, "step": 5}]}, "log_history.0.learning_rate"),
    ],
)
def test_a_state_of_another_trainer_is_named_by_file_and_field(
    tmp_path: Path, changes: dict[str, object], field: str
) -> None:
    with pytest.raises(ArtifactError, match=rf"trainer_state\.json, field '{field}': "):
        read_record(write_state(tmp_path, **changes), TrainerState)


def test_the_curve_is_read_from_what_swift_prints_and_a_summary_is_no_step() -> None:
    step = (
        "Train: | {'loss': 1.36021721, 'grad_norm': 1.3, 'learning_rate': 3e-07, "
        "'token_acc': 0.75, 'epoch': 0.1} | 5s"
    )
    assert logged_metrics(step) == {
        "loss": 1.36021721,
        "grad_norm": 1.3,
        "learning_rate": 3e-07,
        "token_acc": 0.75,
    }
    assert logged_metrics(
        "{'eval_loss': 1.5, 'eval_token_acc': 0.7, 'eval_runtime': 3.0, 'epoch': 0.1}"
    ) == {
        "eval_loss": 1.5,
        "eval_token_acc": 0.7,
    }
    for line in (
        "{'train_loss': 0.9, 'token_acc': 0.8}",
        "{'loss': nan, 'epoch': 0.1}",
        "{'loss': 1.5",
        "no step",
    ):
        assert logged_metrics(line) == {}


def test_a_failing_swift_publishes_nothing(
    config: SftConfig, policy_folder: Path, rows: Path, tmp_path: Path
) -> None:
    config = config.model_copy(update={"model_type": "no_such_type"})
    with pytest.raises(CommandError, match=r"`swift sft` ended with exit code 1"):
        train_adapter(config, policy_folder, rows, 0, tmp_path / "work", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_run_that_was_killed_ends_as_one_that_was_not(
    config: SftConfig, policy_folder: Path, rows: Path, tmp_path: Path
) -> None:
    config = config.model_copy(update={"eval_share": 0.25, "epochs": 2, "log_steps": 1})
    began_ms = time.time() * 1000
    with recorded_curve(curve_path(tmp_path, "sft-0123456789ab")):
        train_adapter(
            config, policy_folder, rows, 0, tmp_path / "whole", tmp_path / "uninterrupted"
        )
    curve = list(read_jsonl(curve_path(tmp_path, "sft-0123456789ab"), CurveLine))
    assert all(began_ms - 1 < line.time_ms < time.time() * 1000 for line in curve)
    lines = read_record(next((tmp_path / "whole").rglob(TRAINER_STATE)), TrainerState).lines
    assert {line.step for line in curve} == {line.step for line in lines} | {None}
    _train_until_first_checkpoint(config, policy_folder, rows, tmp_path / "work")
    train_adapter(config, policy_folder, rows, 0, tmp_path / "work", tmp_path / "resumed")

    assert file_digests(tmp_path / "resumed") == file_digests(tmp_path / "uninterrupted")
    manifest = json.loads((tmp_path / "resumed" / "manifest.json").read_text())
    assert (manifest["rows"], manifest["steps"], manifest["device"]) == (16, 6, "cpu")
    log = [
        json.loads(line)
        for line in (tmp_path / "resumed" / "train_log.jsonl").read_text().splitlines()
    ]
    losses = {line["step"]: line["eval_loss"] for line in log if "eval_loss" in line}
    assert list(losses) == [2, 4, 6]
    lowest = manifest[LOWEST_LOSS]
    assert losses[lowest] == min(losses.values())
    for step in (lowest, 6):
        require_files(tmp_path / "resumed" / str(step), ADAPTER_FILES)
    assert list((tmp_path / "whole").rglob("tensorboard/events.out.tfevents.*"))
    weights: dict[str, Any] = load_file(tmp_path / "resumed" / "6" / "adapter_model.safetensors")
    assert any(tensor.abs().max() > 0 for name, tensor in weights.items() if "lora_B" in name)


def _train_until_first_checkpoint(config: SftConfig, model: Path, rows: Path, work: Path) -> None:
    """Run the training in another process, and kill that as soon as a checkpoint is whole."""
    call = "import sys; from pathlib import Path; "
    call += "from deepsearch_rl.train.sft import SftConfig, train_adapter; "
    call += "config = SftConfig.model_validate_json(sys.argv[1]); "
    call += "train_adapter(config, *map(Path, sys.argv[2:4]), 0, *map(Path, sys.argv[4:6]))"
    paths = [str(path) for path in (model, rows, work, work / "never")]
    run = subprocess.Popen([sys.executable, "-c", call, config.model_dump_json(), *paths])
    try:
        while run.poll() is None and newest_checkpoint(work) is None:
            pass
        assert run.poll() is None, "the run ended before it could be killed"
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert not (work / "never").exists()
