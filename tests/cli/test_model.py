"""Checkpoints of other trainers: the calls of their converters, and what is refused before one starts."""

import stat
import sys
from pathlib import Path

import pytest

from deepsearch_rl.cli.model import Conversion, Kind, conversion_commands, convert
from deepsearch_rl.core.errors import ArtifactError, CommandError, ConfigError
from tests.environment.check_environments import packages_of

SHARD = {
    Kind.VERL_FSDP: "model_world_size_8_rank_0.pt",
    Kind.VERL_MEGATRON: "dist_ckpt/common.pt",
    Kind.RLINF_MEGATRON: "iter_0000050/mp_rank_00/model_optim_rng.pt",
}


def checkpoint(folder: Path, kind: Kind) -> Path:
    """Make a folder that looks like a checkpoint."""
    path = folder / "actor" / SHARD[kind]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return folder / "actor"


def test_verls_merger_is_called_with_the_shards_and_keeps_their_dtype(tmp_path: Path) -> None:
    actor = checkpoint(tmp_path, Kind.VERL_FSDP)
    conversion = Conversion(Kind.VERL_FSDP, actor, "python")
    [call] = conversion_commands(conversion, tmp_path / "out", tmp_path / "between")
    assert call[:4] == ["python", "-u", "-m", "deepsearch_rl.train.verl.checkpoints"]
    assert call[4:] == ["merge", "--backend", "fsdp", "--local_dir", str(actor), *call[-2:]]
    assert call[-2:] == ["--target_dir", str(tmp_path / "out")]

    actor = checkpoint(tmp_path, Kind.VERL_MEGATRON)
    megatron = Conversion(Kind.VERL_MEGATRON, actor, "python")
    [call] = conversion_commands(megatron, tmp_path / "out", tmp_path / "between")
    assert call[3:7] == ["verl.model_merger", "merge", "--backend", "megatron"]


def test_rlinfs_converter_goes_by_a_folder_between(tmp_path: Path) -> None:
    actor = checkpoint(tmp_path, Kind.RLINF_MEGATRON)
    conversion = Conversion(
        Kind.RLINF_MEGATRON, actor, "python", "Qwen2.5-3B", tensor_parallel=2, pipeline_parallel=4
    )
    first, second = conversion_commands(conversion, tmp_path / "out", tmp_path / "between")
    assert first[first.index("--tp-size") + 1] == "2"
    assert first[first.index("--pp-size") + 1] == "4"
    assert first[first.index("--save-path") + 1] == second[second.index("--load-path") + 1]
    assert second[second.index("--save-path") + 1] == str(tmp_path / "out")
    assert first[first.index("--model") + 1] == second[second.index("--model") + 1] == "Qwen2.5-3B"


@pytest.mark.slow
@pytest.mark.skipif(not packages_of("rlinf").is_dir(), reason="make check-trainers fetches RLinf")
def test_rlinfs_converter_knows_every_option_of_the_calls(tmp_path: Path) -> None:
    actor = checkpoint(tmp_path, Kind.RLINF_MEGATRON)
    conversion = Conversion(Kind.RLINF_MEGATRON, actor, "python", "Qwen2.5-3B")
    for call in conversion_commands(conversion, tmp_path / "out", tmp_path / "between"):
        module = packages_of("rlinf") / f"{call[2].replace('.', '/')}.py"
        text = module.read_text(encoding="utf-8")
        for option in call:
            if option.startswith("--"):
                assert f'"{option}"' in text, option


@pytest.mark.parametrize("kind", list(Kind))
def test_a_folder_without_shards_or_with_half_of_a_checkpoint_is_named(
    kind: Kind, tmp_path: Path
) -> None:
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "optim_world_size_8_rank_0.pt").write_bytes(b"")
    model = "Qwen2.5-3B" if kind == Kind.RLINF_MEGATRON else None
    conversion = Conversion(kind, tmp_path / "actor", "python", model)
    with pytest.raises(ArtifactError, match=f"it is no checkpoint of {kind}, or half of one"):
        conversion_commands(conversion, tmp_path / "out", tmp_path / "between")


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        (Kind.RLINF_MEGATRON, {}, "rlinf-megatron needs --model"),
        (Kind.VERL_FSDP, {"model": "Qwen2.5-3B"}, "rlinf-megatron needs --model"),
        (Kind.VERL_MEGATRON, {"rounds": True}, "--rounded is for verl-fsdp"),
        (Kind.VERL_FSDP, {"tensor_parallel": 2}, "--tensor-parallel .* are for rlinf-megatron"),
        (Kind.VERL_MEGATRON, {"pipeline_parallel": 4}, "--pipeline-parallel are for rlinf-mega"),
    ],
)
def test_an_option_of_another_owner_is_named(
    kind: Kind, changes: dict[str, object], named: str, tmp_path: Path
) -> None:
    conversion = Conversion(kind, checkpoint(tmp_path, kind), "python", **changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=named):
        conversion_commands(conversion, tmp_path / "out", tmp_path / "between")


def start_model(folder: Path) -> Path:
    """Make a folder that looks like a model."""
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder


def failing_conversion(folder: Path) -> Conversion:
    """Return a conversion whose converter ends with an error."""
    python = folder / "python"
    python.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no such tensor')\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return Conversion(Kind.VERL_FSDP, checkpoint(folder, Kind.VERL_FSDP), str(python))


def test_a_folder_with_files_is_not_replaced_and_an_empty_one_is(tmp_path: Path) -> None:
    start = start_model(tmp_path / "start")
    conversion = failing_conversion(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(CommandError):
        convert(conversion, start, out)

    (out / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="out exists already; remove it, or name another folder"):
        convert(conversion, start, out)
    assert (out / "notes.txt").read_text() == "mine"


def test_a_converter_that_fails_leaves_no_folder_and_its_last_lines_are_shown(
    tmp_path: Path,
) -> None:
    start = start_model(tmp_path / "start")
    conversion = failing_conversion(tmp_path)
    with pytest.raises(CommandError, match="no such tensor"):
        convert(conversion, start, tmp_path / "out")
    assert not (tmp_path / "out").exists()

    with pytest.raises(ArtifactError, match=r"has no config\.json"):
        convert(conversion, tmp_path / "actor", tmp_path / "out")
