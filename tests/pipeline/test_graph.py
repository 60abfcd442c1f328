"""What dvc.yaml says of its stages is true: their imports are deps, their params are loaded, every profile resolves."""

import ast
from contextlib import chdir
from functools import cache
from pathlib import Path

import pytest
import yaml
from dvc.dependency import ParamsDependency
from dvc.repo import Repo
from dvc.stage import PipelineStage

from deepsearch_rl.core.profile import PARAMS, dvc_file, load_profile, profile_names
from deepsearch_rl.core.stage_graph import read_stage, stage_names
from scripts.deps import SOURCES, generated_files, source_deps, with_choices, with_source_deps
from scripts.imports import ROOT, closure, parse
from scripts.packages import PACKAGES_FILE

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
STAGES = {
    stage.name: stage for profile in ("multihoprag", "tiny") for stage in read_stages(profile)
}


def stage_file(stage: PipelineStage) -> Path:
    module = stage.cmd.split(" -m ")[1].split()[0]
    return ROOT / f"{module.replace('.', '/')}.py"


def is_prompt(path: str) -> bool:
    return path.startswith(PROMPTS) and path.endswith(".txt")


@pytest.mark.parametrize("name", STAGES)
def test_a_stages_source_deps_are_exactly_what_it_imports(name: str) -> None:
    stage = STAGES[name]
    paths = (dep.def_path for dep in stage.deps)
    declared = [path for path in paths if path.startswith(SOURCES) and not is_prompt(path)]
    assert declared == source_deps(stage_file(stage).stem), "run `make deps`"


@pytest.mark.parametrize("name", profile_names(ROOT))
def test_a_stage_depends_on_exactly_the_prompts_that_it_reads(name: str) -> None:
    profile = load_profile((ROOT / dvc_file(name)).with_name(PARAMS))
    own = {profile.value("agent.prompt")}
    variants = {
        plan["prompt"] for plan in profile.value("evaluate.variants").values() if plan["prompt"]
    }
    of_models = {
        settings["agent"]["prompt"]
        for settings in profile.value("model_settings").values()
        if "prompt" in settings.get("agent", {})
    }
    in_evaluation = {profile.value("evaluate.agent").get("prompt")} - {None}

    read = {
        "prepare_model": own if profile.value("prepare_model.source") == "pretrain" else set(),
        "synthesize": own,
        "filter": own,
        "sft": own if profile.value("sft.checkpoint") == "dev" else set(),
        "rl": own,
        "optimize_prompt": own,
        "evaluate": own | variants | of_models | in_evaluation,
        "track": variants,
    }
    declared: dict[str, set[str]] = {}
    for stage in read_stages(name):
        prompts = {
            dep.def_path
            for dep in stage.deps
            if dep.def_path.startswith(PROMPTS) and is_prompt(dep.def_path)
        }
        declared.setdefault(stage.name.partition("@")[0], set()).update(prompts)
        assert PROMPTS not in {dep.def_path for dep in stage.deps}, (
            "a new prompt would run this stage again"
        )
    assert declared == {family: read.get(family, set()) for family in declared}


TEMPLATE_READERS = {
    "prepare_model",
    "synthesize",
    "filter",
    "sft",
    "rl",
    "optimize_prompt",
    "evaluate",
    "ifeval",
}
TOOL_READERS = TEMPLATE_READERS | {"merge", "unsloth_merge", "report", "track"}


@pytest.mark.parametrize(
    ("file", "families"),
    [("chat_template.jinja", TEMPLATE_READERS), ("chat_messages.py", TOOL_READERS)],
)
def test_the_tool_schema_and_the_chat_template_are_deps_of_every_stage_that_reads_them(
    file: str, families: set[str]
) -> None:
    path = f"src/deepsearch_rl/agent/{file}"
    declared = {
        name.partition("@")[0]
        for name, stage in STAGES.items()
        if path in {dep.def_path for dep in stage.deps}
    }
    assert declared == families


def test_stages_follow_another_prompt_and_no_further_one(tmp_path: Path) -> None:
    """In a repository of its own, with the lines of the project's graph."""
    with chdir(tmp_path), Repo.init(no_scm=True) as repo:
        for name in ("a", "b"):
            Path(f"{name}.txt").write_text(name)
        lines = ["- ${agent.prompt}", "# - ${evaluate.variants.*.prompt}  # for each"]
        graph = "stages:\n  s:\n    cmd: cat ${agent.prompt} > out\n    deps:\n"
        graph += "".join(f"      {line}\n" for line in lines) + "    outs: [out]\n"
        values = {
            "agent": {"prompt": "a.txt"},
            "evaluate": {"variants": {"v": {"prompt": "a.txt"}, "w": {"prompt": None}}},
        }

        def ran(values: dict[str, object], **texts: str) -> list[str]:
            Path("params.yaml").write_text(yaml.safe_dump(values))
            Path("dvc.yaml").write_text(with_choices(graph, values))
            for name, text in texts.items():
                Path(f"{name}.txt").write_text(text)
            return [str(stage.addressing) for stage in repo.reproduce()]

        assert ran(values) == ["s"], "one prompt may be named twice"
        assert ran(values, b="edited", new="new") == []
        assert ran(values, a="edited") == ["s"]
        other = {**values, "agent": {"prompt": "b.txt"}}
        assert ran(other) == ["s"]
        assert Path("out").read_text() == "edited"


@pytest.mark.parametrize("folder", ["commands", "planning", "retrieval/measurement", "presets"])
def test_no_stage_imports_what_only_commands_need(folder: str) -> None:
    deps = {(dep.def_path, name) for name, stage in STAGES.items() for dep in stage.deps}
    assert [dep for dep in sorted(deps) if dep[0].startswith(f"src/deepsearch_rl/{folder}")] == []


def test_generated_deps_replace_source_files_and_keep_data() -> None:
    text = (
        "stages:\n"
        "  merge:\n"
        "    cmd: ${python.sft} -m stages.merge ${params}\n"
        "    deps:\n"
        "      - src/deepsearch_rl/gone.py\n"
        "      - models/${profile}/base\n"
        "    outs:\n"
        "      - models/${profile}/sft\n"
    )
    generated = with_source_deps(text)
    assert yaml.safe_load(generated)["stages"]["merge"]["deps"] == [
        "models/${profile}/base",
        *source_deps("merge"),
    ]
    assert "src/deepsearch_rl/training/merging/merge.py" in generated
    assert generated.endswith("    outs:\n      - models/${profile}/sft\n")
    assert with_source_deps(generated) == generated


def test_each_prompt_of_the_variants_is_a_dep_until_the_variant_is_gone() -> None:
    text, tiny = (ROOT / "dvc.yaml").read_text(encoding="utf-8"), load_profile(ROOT / PARAMS)
    variants = {
        name: {"prompt": prompt} for name, prompt in {"short": "short.txt", "top5": None}.items()
    }
    more = tiny.with_overrides(
        {"evaluate.variants": variants, "evaluate.agent": {"prompt": "own.txt"}}
    )

    chosen_text = with_source_deps(with_choices(text, more.values))
    plain, chosen = yaml.safe_load(text)["stages"], yaml.safe_load(chosen_text)["stages"]
    evaluated = set(chosen["evaluate"]["do"]["deps"]) - set(plain["evaluate"]["do"]["deps"])
    assert evaluated == {"${evaluate.variants.short.prompt}", "${evaluate.agent.prompt}"}
    assert set(chosen["track"]["deps"]) - set(plain["track"]["deps"]) == {
        "${evaluate.variants.short.prompt}"
    }

    assert with_source_deps(with_choices(chosen_text, more.values)) == chosen_text
    assert with_source_deps(with_choices(chosen_text, tiny.values)) == text


CHOSEN = {"synthesize.teacher": "self", "sft.checkpoint": "dev"}


def test_what_only_a_choice_needs_is_in_the_graph_of_a_profile_that_chooses_it() -> None:
    text, tiny = (ROOT / "dvc.yaml").read_text(encoding="utf-8"), load_profile(ROOT / PARAMS)
    plain = yaml.safe_load(text)["stages"]
    chosen_text = with_source_deps(with_choices(text, tiny.with_overrides(CHOSEN).values))
    assert with_source_deps(with_choices(chosen_text, tiny.values)) == text, (
        "a choice can be taken back"
    )
    chosen = yaml.safe_load(chosen_text)["stages"]
    assert {name for name in plain if plain[name] != chosen[name]} == {"synthesize", "sft"}
    for name, modules in {"synthesize": ["synthesize_self"], "sft": ["sft", "sft_dev"]}.items():
        assert [part for part in chosen[name]["cmd"].split() if part.startswith("stages.")] == [
            f"stages.{module}" for module in modules
        ]
        sources = {dep for dep in chosen[name]["deps"] if dep.startswith(SOURCES)}
        assert sources == set(source_deps(*modules))
        declared = {
            section for entry in chosen[name]["params"] for section in entry.get("${params}", ())
        }
        assert declared == loaded_by(*(ROOT / f"stages/{module}.py" for module in modules))
    assert set(chosen["synthesize"]["deps"]) - set(plain["synthesize"]["deps"]) >= {
        "${synthesize.self.model}"
    }
    data = {f"data/${{profile}}/{name}" for name in ("index", "chunks", "questions")}
    assert set(chosen["sft"]["deps"]) - set(plain["sft"]["deps"]) >= data | {"${agent.prompt}"}


def test_a_stage_samples_from_the_model_that_another_stage_makes() -> None:
    [stage] = [stage for stage in read_stages("single_gpu") if stage.name == "synthesize"]
    [base] = [
        out.def_path
        for stage in read_stages("single_gpu")
        if stage.name == "prepare_model"
        for out in stage.outs
    ]
    assert base in {dep.def_path for dep in stage.deps}


@pytest.mark.parametrize(
    "path", generated_files(), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_profile_has_its_graph_and_packages_as_files_that_dvc_can_read_from_a_commit(
    path: Path,
) -> None:
    assert not path.is_symlink()
    assert path.read_text(encoding="utf-8") == generated_files()[path], "run `make deps`"


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
        if path.name not in {"entry.py", "profile.py"}
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
        assert stage.cmd.startswith("scripts/python .venv/bin/python -m stages.")


@pytest.mark.parametrize("profile", profile_names(ROOT))
def test_every_profile_has_the_same_stage_families_but_for_those_that_it_runs_for_nothing(
    profile: str,
) -> None:
    params = load_profile((ROOT / dvc_file(profile)).with_name("params.yaml"))
    families = {stage.name.partition("@")[0] for stage in read_stages(profile)}
    without = set() if params.value("rl")["starts"] else {"rl", "unsloth_merge"}
    without |= set() if params.value("optimize_prompt")["models"] else {"optimize_prompt"}
    assert families == {name.partition("@")[0] for name in STAGES} - without


@pytest.mark.parametrize("profile", profile_names(ROOT))
def test_no_stage_writes_where_another_profile_does(profile: str) -> None:
    outs = [out.def_path for stage in read_stages(profile) for out in stage.outs]
    assert all(out.split("/")[1] == profile for out in outs)
