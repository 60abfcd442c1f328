"""What dvc.yaml says of its stages is true: their imports are deps, their params are loaded, every profile resolves."""

import ast
from contextlib import chdir
from functools import cache
from pathlib import Path

import pytest
import yaml
from deepsearch_rl.core.stage_graph import DVC_YAML, SOURCES, read_stage, stage_names
from dvc.dependency import ParamsDependency
from dvc.repo import Repo
from dvc.stage import PipelineStage
from tools.imports import ROOT, closure, parse, unchosen

from deepsearch_rl.core.profile import PARAMS, dvc_file, load_profile, profile_names
from tests.pipeline.own_deps import families_with_own_code
from tools.packages import PACKAGES_FILE, generated_packages
from tools.params import generated_graphs

LOADERS = {"section", "mapping", "value"}


@cache
def read_stages(profile: str) -> list[PipelineStage]:
    with Repo(str(ROOT)) as repo:
        return [
            stage
            for stage in repo.stage.collect(dvc_file(profile))
            if isinstance(stage, PipelineStage)
        ]


PROMPTS = "src/deepsearch_rl/prompts"
"""The folder of the prompts that a profile names by their files; no module imports them."""
CONVERSATION = "src/deepsearch_rl/conversation"
STAGES = {
    stage.name: stage
    for profile in ("multihoprag", "own", "tiny")
    for stage in read_stages(profile)
}


def stage_file(stage: PipelineStage) -> Path:
    module = stage.cmd.split(" -m ")[1].split()[0]
    return ROOT / f"{module.replace('.', '/')}.py"


@pytest.mark.slow
@pytest.mark.parametrize("profile", profile_names(ROOT))
def test_the_folders_of_a_stage_hold_all_that_it_can_load_and_none_holds_nothing_of_it(
    profile: str,
) -> None:
    values = load_profile((ROOT / dvc_file(profile)).with_name(PARAMS)).values
    for stage in read_stages(profile):
        loaded = {path.relative_to(ROOT) for path in closure(stage_file(stage), unchosen(values))}
        of_any_choice = {path.relative_to(ROOT) for path in closure(stage_file(stage))}
        declared = [
            Path(dep.def_path)
            for dep in stage.deps
            if dep.def_path.startswith(SOURCES) and not dep.def_path.startswith(PROMPTS)
        ]
        missing = {path.as_posix() for path in loaded if not {path, *path.parents} & set(declared)}
        assert not missing, f"{stage.name} loads them: add their folders to its deps in dvc.yaml"
        idle = {
            source.as_posix()
            for source in declared
            if not any(source in (path, *path.parents) for path in of_any_choice)
        }
        assert not idle, f"{stage.name} loads nothing of them: take them from its deps in dvc.yaml"


# Who loads each kind of a user's own code, and stages that import that module for something else
OWN_CODE = {
    "reader": ("data/download.py", set[str]()),
    # The audit of made questions searches by BM25 alone
    "encoder": ("search/encoders/own.py", {"make_questions"}),
    "retriever": ("search/own_retriever.py", {"make_questions", "index"}),
    # Rewards and the report ask that module what evidence was shown
    "filter": ("train/filters.py", {"rl", "optimize_prompt", "report"}),
    "reward": ("train/rewards.py", set[str]()),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OWN_CODE)
def test_a_stage_that_loads_a_users_own_code_has_its_file_as_a_dep(kind: str) -> None:
    module, exceptions = OWN_CODE[kind]
    loader = ROOT / "src" / "deepsearch_rl" / module
    graph = yaml.safe_load((ROOT / DVC_YAML).read_text(encoding="utf-8"))["stages"]
    loading = {
        family for family in graph if loader in closure(ROOT / "stages" / f"{family}.py")
    } - exceptions
    assert loading == families_with_own_code(kind)


@pytest.mark.slow
@pytest.mark.parametrize("name", profile_names(ROOT))
def test_what_download_fetches_reaches_other_stages_through_its_outs_alone(name: str) -> None:
    values = load_profile((ROOT / dvc_file(name)).with_name(PARAMS)).values
    # No clone has what lies in the work folder: DVC neither restores nor waits for it
    sections = {
        section for section, value in values.items() if f"work/{name}/sources" in yaml.dump(value)
    }
    assert sections <= {"download"}
    stages = read_stages(name)
    outs = {out.def_path for stage in stages for out in stage.outs}
    for stage in stages:
        if stage.name.startswith("ifeval@"):
            path = Path(values["ifeval"]["path"])
            assert path.as_posix() in {dep.def_path for dep in stage.deps}
            assert (ROOT / path).is_dir() or outs & set(map(str, path.parents))


@pytest.mark.slow
@pytest.mark.parametrize("name", profile_names(ROOT))
def test_a_stage_depends_on_the_prompts_that_it_reads(name: str) -> None:
    profile = load_profile((ROOT / dvc_file(name)).with_name(PARAMS))
    own = profile.value("agent.prompt")
    readers = {
        "prepare_model", "synthesize", "filter", "choose_checkpoint", "rl", "optimize_prompt",
    }  # fmt: skip
    for stage in read_stages(name):
        family = stage.name.partition("@")[0]
        prompts = {dep.def_path for dep in stage.deps if dep.def_path.startswith(PROMPTS)}
        if family == "evaluate":
            assert prompts == {own, PROMPTS}, "variants may name any prompt"
        elif family == "track":
            assert prompts == {PROMPTS}
        else:
            assert prompts == ({own} if family in readers else set()), (
                "a new prompt would run this stage again"
            )


def test_the_conversation_is_a_dep_of_every_stage_from_the_base_model_on() -> None:
    """It holds the tool schema and the chat template, and says what a model's thoughts are."""
    without = {
        name.partition("@")[0]
        for name, stage in STAGES.items()
        if CONVERSATION not in {dep.def_path for dep in stage.deps}
    }
    assert without == {"download", "chunk", "index"}
    assert (ROOT / CONVERSATION / "chat_template.jinja").is_file()
    assert (ROOT / CONVERSATION / "chat_messages.py").is_file()


@pytest.mark.slow
def test_stages_follow_another_prompt_and_no_further_one(tmp_path: Path) -> None:
    """In a repository of its own, with the lines of the project's graph."""
    with chdir(tmp_path), Repo.init(no_scm=True) as repo:
        Path("prompts").mkdir()
        for name in ("a", "b"):
            Path(f"prompts/{name}.txt").write_text(name)
        graph = {
            "trained": {"cmd": "cat ${agent.prompt} > trained", "deps": ["${agent.prompt}"]},
            "evaluated": {
                "cmd": "cat ${agent.prompt} > evaluated",
                "deps": ["${agent.prompt}", "prompts", "${evaluate.prompts}"],
            },
        }
        Path("dvc.yaml").write_text(
            yaml.safe_dump(
                {"stages": {name: {**stage, "outs": [name]} for name, stage in graph.items()}}
            )
        )

        def ran(prompt: str, **texts: str) -> list[str]:
            values = {"agent": {"prompt": prompt}, "evaluate": {"prompts": "prompts"}}
            Path("params.yaml").write_text(yaml.safe_dump(values))
            for name, text in texts.items():
                Path(f"prompts/{name}.txt").write_text(text)
            return sorted(str(stage.addressing) for stage in repo.reproduce())

        assert ran("prompts/a.txt") == ["evaluated", "trained"], "a folder may be named twice"
        assert ran("prompts/a.txt") == []
        assert ran("prompts/a.txt", b="edited") == ["evaluated"], "a variant may name it"
        assert ran("prompts/a.txt", a="edited") == ["evaluated", "trained"]
        assert ran("prompts/b.txt") == ["evaluated", "trained"]
        assert Path("trained").read_text() == "edited"


@pytest.mark.parametrize("folder", ["commands", "planning", "measurement", "presets"])
def test_no_stage_imports_what_only_commands_need(folder: str) -> None:
    deps = {(dep.def_path, name) for name, stage in STAGES.items() for dep in stage.deps}
    assert [dep for dep in sorted(deps) if dep[0].startswith(f"src/deepsearch_rl/{folder}")] == []


def test_a_stage_samples_from_the_model_that_another_stage_makes() -> None:
    [stage] = [stage for stage in read_stages("single_gpu") if stage.name == "synthesize"]
    [base] = [
        out.def_path
        for stage in read_stages("single_gpu")
        if stage.name == "prepare_model"
        for out in stage.outs
    ]
    assert base in {dep.def_path for dep in stage.deps}


@cache
def generated_texts() -> dict[Path, str]:
    """The text of each generated file; it takes seconds, which a test pays and not the collection of every process."""
    return {**generated_graphs(), **generated_packages()}


GENERATED = [
    (ROOT / dvc_file(profile)).with_name(name)
    for name in (DVC_YAML, PACKAGES_FILE)
    for profile in profile_names(ROOT)
    if (profile, name) != ("tiny", DVC_YAML)
]
"""Files of all profiles; tiny's graph is the one that the others copy."""


@pytest.mark.slow
@pytest.mark.parametrize("path", GENERATED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_profile_has_its_graph_and_packages_as_files_that_dvc_can_read_from_a_commit(
    path: Path,
) -> None:
    assert not path.is_symlink()
    assert path.read_text(encoding="utf-8") == generated_texts()[path], "run `make params`"


@pytest.mark.slow
def test_every_generated_file_is_compared() -> None:
    assert generated_texts().keys() == set(GENERATED)


@cache
def loaded_sections(path: Path) -> frozenset[str]:
    """The names that a file hands to ``section``, ``mapping`` and ``value``."""
    return frozenset(
        node.args[0].value
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in LOADERS
        and node.args
        and isinstance(node.args[0], ast.Constant)
    )


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_declares_exactly_the_params_that_it_loads_and_its_own_packages(name: str) -> None:
    stage = STAGES[name]
    declared = {Path(params.def_path).name: set(params.params) for params in stage.params}
    assert declared == {
        PARAMS: loaded_by(stage_file(stage)),
        PACKAGES_FILE: {name.partition("@")[0]},
    }


def loaded_by(*files: Path) -> set[str]:
    """The sections that programs of a stage can load."""
    used = {
        path
        for file in files
        for path in closure(file)
        if path.name not in {"stage_entry.py", "profile.py"}
    }
    return {section for path in used if path.suffix == ".py" for section in loaded_sections(path)}


@pytest.mark.parametrize("profile", profile_names(ROOT))
def test_stages_read_their_deps_and_params_from_the_graph_as_dvc_does(profile: str) -> None:
    settings = load_profile((ROOT / dvc_file(profile)).with_name(PARAMS))
    stages = {str(stage.name): stage for stage in read_stages(profile)}
    assert sorted(stage_names(settings, ROOT)) == sorted(stages)
    for name, stage in stages.items():
        declared = read_stage(settings, name, ROOT)
        params = [dep for dep in stage.deps if isinstance(dep, ParamsDependency)]
        files = [dep.def_path for dep in stage.deps if dep not in params]
        assert sorted([*declared.sources, *declared.data]) == sorted(files)
        assert set(declared.params) == {
            (dep.def_path, name) for dep in params for name in dep.params
        }


def test_a_stages_name_is_its_file_and_its_interpreter_is_named_in_params() -> None:
    for name, stage in STAGES.items():
        assert stage_file(stage).stem == name.partition("@")[0]
        assert stage.cmd.startswith("tools/python .venv/bin/python -m stages.")


@pytest.mark.parametrize("profile", profile_names(ROOT))
def test_every_profile_has_the_same_stage_families_but_for_those_that_it_runs_for_nothing(
    profile: str,
) -> None:
    params = load_profile((ROOT / dvc_file(profile)).with_name("params.yaml"))
    families = {stage.name.partition("@")[0] for stage in read_stages(profile)}
    without = set() if params.value("rl")["starts"] else {"rl", "unsloth_merge"}
    without |= set() if params.value("optimize_prompt")["models"] else {"optimize_prompt"}
    without |= set() if params.value("make_questions")["documents"] else {"make_questions"}
    assert families == {name.partition("@")[0] for name in STAGES} - without


@pytest.mark.parametrize("profile", profile_names(ROOT))
def test_no_stage_writes_where_another_profile_does(profile: str) -> None:
    outs = [out.def_path for stage in read_stages(profile) for out in stage.outs]
    assert all(out.split("/")[1] == profile for out in outs)
