"""dvc.yaml is true: deps are what stages import, profiles have their stages, and DVC plans what docs say."""

import ast
from contextlib import chdir
from functools import cache
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo
from dvc.repo.reproduce import plan_repro
from dvc.stage import PipelineStage

from deepsearch_rl.core.profile import dvc_file, profile_names
from tests.pipeline.smoke_copy import ROOT
from tools import params

SRC = ROOT / "src" / "deepsearch_rl"
FAMILIES = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
# Data in the package's folder; no module imports it
DATA = {"prompts"}


@cache
def imported(path: Path) -> frozenset[Path]:
    """The modules of deepsearch_rl that a file imports, also inside of functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            # `python -m deepsearch_rl...`; live curves decide nothing of a result
            and not node.value.startswith("deepsearch_rl.track")
        ):
            names.add(node.value)

    files: set[Path] = set()
    for name in names:
        package, *rest = name.split(".")
        if package == "deepsearch_rl":
            stem = SRC.joinpath(*rest)
            files |= {stem.with_suffix(".py"), stem / "__init__.py"}

    return frozenset(filter(Path.is_file, files))


def loaded_packages(path: Path) -> set[str]:
    """The packages of deepsearch_rl that a program can load."""
    files = {path}
    waiting = [path]
    while waiting:
        new = imported(waiting.pop()) - files
        files |= new
        waiting += new

    return {file.relative_to(SRC).parts[0] for file in files if SRC in file.parents} - {
        "__init__.py"
    }


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_packages_of_a_stage_are_those_that_it_imports(family: str) -> None:
    stage = FAMILIES[family]
    prefix = "src/deepsearch_rl/"
    deps = stage.get("do", stage)["deps"]
    declared = {dep.removeprefix(prefix) for dep in deps if dep.startswith(prefix)}
    assert declared - DATA == loaded_packages(ROOT / "stages" / f"{family}.py")
    assert f"stages/{family}.py" in deps


@pytest.fixture(scope="module")
def repo() -> Repo:
    return Repo(str(ROOT))


def stages_of(repo: Repo, profile: str) -> list[PipelineStage]:
    stages = repo.stage.collect(dvc_file(profile))
    return [stage for stage in stages if isinstance(stage, PipelineStage)]


@pytest.mark.slow
@pytest.mark.parametrize("profile", profile_names(ROOT))
def test_dvc_reads_the_graph_of_every_profile(repo: Repo, profile: str) -> None:
    with chdir(ROOT):
        stages = stages_of(repo, profile)
    outs = [out.def_path for stage in stages for out in stage.outs]
    assert all(out.split("/")[1] == profile for out in outs)
    for stage in stages:
        for dep in stage.deps:
            folders = dep.def_path.split("/")
            # An input of another stage's out, of the project, or of the user's
            is_users = "sources" in folders[:2] or folders[2:3] == ["documents"]
            if folders[0] in {"data", "models", "reports"} and not is_users:
                made = [out for out in outs if f"{out}/".startswith(f"{dep.def_path}/")]
                holding = [out for out in outs if f"{dep.def_path}/".startswith(f"{out}/")]
                assert made or holding, f"{stage.name}: no stage of {profile} makes {dep.def_path}"


API = {"endpoint@api", "download", "chunk", "index", "evaluate@api", "report", "track"}
PLANS = {
    ("multihoprag", None): API,
    ("own", None): API | {"make_questions@own"},
    ("own", "index"): {"endpoint@api", "make_questions@own", "download", "chunk", "index"},
    ("optimized_prompt", None): API | {"endpoint@reflection", "optimize_prompt@api"},
    ("search_r1", "report"): {
        "download", "chunk", "index", "prepare_model", "rl@base", "evaluate@base", "evaluate@rl", "report",
    },
    ("single_gpu", "merge"): {
        "download", "chunk", "index", "prepare_model", "synthesize", "filter", "sft", "choose_checkpoint", "merge",
    },
    ("tiny", "evaluate@base"): {"download", "chunk", "index", "prepare_model", "evaluate@base"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "target"), PLANS)
def test_dvc_plans_what_a_target_needs_and_nothing_else(
    repo: Repo, profile: str, target: str | None
) -> None:
    with chdir(ROOT):
        targets = repo.stage.collect(dvc_file(profile) + (f":{target}" if target else ""))
        planned = {stage.name for stage in plan_repro(repo.index.graph, targets)}
    assert planned == PLANS[profile, target]


@pytest.mark.slow
def test_what_make_params_writes_is_committed() -> None:
    for path, text in params.generated().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run `make params`"
