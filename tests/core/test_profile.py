"""The one reader of params.yaml: values, sections, overrides, and errors that name file and field."""

import traceback
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from deepsearch_rl.core.errors import ConfigError, UnknownNameError
from deepsearch_rl.core.profile import Profile, find_profile, load_profile
from deepsearch_rl.core.records import Record


class ChunkSettings(Record):
    chunk_size: int = Field(ge=1)


class FileSettings(Record):
    prompt: str
    rewards: dict[str, float]
    sets: list[str]


class ServerSettings(Record):
    backend: Literal["cpu", "vllm"]


@pytest.fixture
def params_file(tmp_path: Path) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text(
        "profile: tiny\nseed: 7\nchunk: {chunk_size: 0}\nsets: {a: {chunk_size: 1}, b: {chunk_size: x}}\n"
    )
    return path


def test_a_value_out_of_range_names_file_section_and_field(params_file: Path) -> None:
    profile = load_profile(params_file)
    with pytest.raises(
        ConfigError,
        match=r"params\.yaml, chunk\.chunk_size: .* greater than or equal to 1 \(given: 0\)",
    ):
        profile.section("chunk", ChunkSettings)
    with pytest.raises(ConfigError, match=r"sets\.b\.chunk_size: .* \(given: 'x'\)"):
        profile.mapping("sets", ChunkSettings)
    with pytest.raises(ConfigError, match="has no 'index'"):
        profile.value("index")


def test_a_misspelt_choice_gets_the_nearest_names_and_a_key_is_not_repeated(
    params_file: Path,
) -> None:
    misspelt = Profile(params_file, {"serving": {"backend": "vlm"}})
    with pytest.raises(UnknownNameError, match=r"serving\.backend .* 'vlm'. Did you mean 'vllm'\?"):
        misspelt.section("serving", ServerSettings)
    with_key = Profile(params_file, {"serving": {"backend": "cpu", "api_key": "sk-secret"}})
    with pytest.raises(ConfigError, match=r"serving\.api_key") as caught:
        with_key.section("serving", ServerSettings)
    assert "sk-secret" not in "".join(traceback.format_exception(caught.value))


def test_a_profile_that_does_not_exist_gets_the_nearest_names(tmp_path: Path) -> None:
    (tmp_path / "profiles" / "smoke").mkdir(parents=True)
    (tmp_path / "profiles" / "smoke" / "params.yaml").write_text("profile: smoke")
    with pytest.raises(UnknownNameError, match=r"unknown profile 'smok'\. Did you mean 'smoke'"):
        load_profile(tmp_path / "profiles" / "smok" / "params.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "does not exist"),
        ("a: [", "is not valid YAML"),
        ("seed: 1", "is not a profile"),
        ("- a", "is not a profile"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(
    tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "params.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_profile(path)


def test_a_profile_has_its_own_folders_and_plain_values(params_file: Path) -> None:
    profile = find_profile(params_file.parent, "tiny")
    folders = (profile.data, profile.models, profile.reports, profile.work)
    assert folders == (
        Path("data/tiny"),
        Path("models/tiny"),
        Path("reports/tiny"),
        Path("work/tiny"),
    )
    assert profile.value("seed") == 7
    assert profile.mapping("chunk", int) == {"chunk_size": 0}


def test_overrides_change_a_copy_and_reach_nested_fields(params_file: Path) -> None:
    profile = load_profile(params_file)
    changed = profile.with_overrides({"chunk.chunk_size": 5, "sets.b": {"chunk_size": 6}})
    assert changed.section("chunk", ChunkSettings).chunk_size == 5
    assert changed.mapping("sets", ChunkSettings)["b"].chunk_size == 6
    assert profile.value("chunk") == {"chunk_size": 0}


def test_an_error_in_an_override_names_the_field_and_no_file(params_file: Path) -> None:
    profile = load_profile(params_file).with_overrides(
        {"chunk.chunk_size": -1, "sets.a": {"chunk_size": "y"}}
    )
    with pytest.raises(ConfigError, match=r"^chunk\.chunk_size: .* \(given: -1\)"):
        profile.section("chunk", ChunkSettings)
    with pytest.raises(ConfigError, match=r"^sets\.a\.chunk_size: .* \(given: 'y'\)"):
        profile.mapping("sets", ChunkSettings)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chunk.chunk_sise", r"'chunk\.chunk_sise'\. Did you mean 'chunk\.chunk_size'\?"),
        ("chunks.chunk_size", r"'chunks\.chunk_size'.* Valid names: chunk, profile, seed, sets\."),
        ("seed.first", r"'seed\.first'"),
    ],
)
def test_an_override_of_an_unknown_field_names_it_and_the_nearest(
    params_file: Path, name: str, message: str
) -> None:
    with pytest.raises(UnknownNameError, match=message):
        load_profile(params_file).with_overrides({name: 1})


def test_nested_values_change_the_fields_that_they_name(params_file: Path) -> None:
    profile = load_profile(params_file)
    changed = profile.with_values({"chunk": {"chunk_size": 5}})
    assert changed.values == profile.with_overrides({"chunk.chunk_size": 5}).values
    assert profile.with_values({}).values == profile.values
    with pytest.raises(UnknownNameError, match=r"chunk\.chunk_sise"):
        profile.with_values({"chunk": {"chunk_sise": 5}})


@pytest.mark.parametrize("kind", ["it's", "a, 'b' or c", "plain"])
def test_the_valid_names_are_those_of_the_field_whatever_signs_they_have(
    tmp_path: Path, kind: str
) -> None:
    class Tagged(Record):
        kind: Literal["it's", "a, 'b' or c", "plain"]

    class Other(Record):
        kind: Literal["other"]

    class Settings(Record):
        tagged: Annotated[Tagged | Other, Field(discriminator="kind")]

    profile = Profile(
        tmp_path, {"plain": {"kind": f"{kind}x"}, "settings": {"tagged": {"kind": f"{kind}x"}}}
    )
    with pytest.raises(UnknownNameError) as literal:
        profile.section("plain", Tagged)
    with pytest.raises(UnknownNameError) as tag:
        profile.section("settings", Settings)
    assert all(f"Did you mean {kind!r}?" in str(error.value) for error in (literal, tag))


@pytest.mark.parametrize("params", ["params.yaml", "profiles/mine/params.yaml"])
@pytest.mark.parametrize("is_shadowed", [False, True])
def test_files_that_params_name_are_found_from_the_file_in_every_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: str, is_shadowed: bool
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    files = ("prompts/mine.txt", "own/rewards.py", "sets/dev.jsonl")
    for folder in (project, elsewhere) if is_shadowed else (project,):
        for name in files:
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text(folder.name)
    values = (
        "profile: mine\n"
        "agent: {prompt: prompts/mine.txt, rewards: {own/rewards.py:cites: 1.0, f1: 1.0}, "
        "sets: [sets/dev.jsonl, dev]}\n"
    )
    (project / params).parent.mkdir(parents=True, exist_ok=True)
    (project / params).write_text(values)
    elsewhere.mkdir(exist_ok=True)
    monkeypatch.chdir(elsewhere)
    for path in (project / params, Path("..", "project", params)):
        settings = load_profile(path).section("agent", FileSettings)
        assert Path(settings.prompt).read_text() == "project"
        assert Path(settings.sets[0]).read_text() == "project"
        own_code, ours = settings.rewards
        assert Path(own_code.removesuffix(":cites")).read_text() == "project"
        assert (ours, settings.sets[1]) == ("f1", "dev")

    monkeypatch.chdir(project)
    settings = load_profile(Path(params)).section("agent", FileSettings)
    assert settings.prompt == "prompts/mine.txt", "records hold no absolute path"
