"""`make params`: params.yaml and dvc.yaml of every profile, from the project's own two and its profile.yaml.

    python -m tools.params

It also writes packages.txt from the lock.

A profile.yaml holds what differs from the profile that it extends: ``extends: tiny`` is the project's
params.yaml, any other name is the profile of that name. Mappings are merged, and one with the tag
``!replace`` takes the place of the other. ``stages:`` lists the stages that the profile has; the
generated files hold these stages and the sections that they read, and nothing else.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.synthesize import SynthesizeConfig
from deepsearch_rl.chat.endpoint import RemoteConfig
from deepsearch_rl.core.errors import ConfigError, DeepsearchError
from deepsearch_rl.core.files import atomic_file
from deepsearch_rl.core.own_code import model_deps, own_files
from deepsearch_rl.core.profile import PARAMS, Profile, read_values
from deepsearch_rl.core.records import Record
from deepsearch_rl.data.chunking import ChunkConfig
from deepsearch_rl.data.download import DownloadConfig
from deepsearch_rl.data.question_writing.make import WritingConfig
from deepsearch_rl.evaluate.evaluation_plan import EvaluateConfig, Evaluation
from deepsearch_rl.evaluate.ifeval import IfevalConfig
from deepsearch_rl.evaluate.report.write_report import ReportConfig
from deepsearch_rl.search.build import IndexSection
from deepsearch_rl.search.quality import DatasetConfig
from deepsearch_rl.serve.launch import ServingConfig
from deepsearch_rl.server.config import RetrievalConfig
from deepsearch_rl.track.contents import TrackConfig
from deepsearch_rl.train.choose_checkpoint import ChooseCheckpointConfig
from deepsearch_rl.train.merge import MergeConfig
from deepsearch_rl.train.prepare_model import PrepareModelConfig
from deepsearch_rl.train.prompt_search import OptimizePromptConfig
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.sft import SftConfig
from deepsearch_rl.train.training_set import FilterConfig
from tools import ROOT
from tools.packages import package_files

BASE = "tiny"
GRAPH = "dvc.yaml"
CONFIGS: Mapping[str, type[Record]] = {
    "agent": AgentConfig,
    "retrieval": RetrievalConfig,
    "download": DownloadConfig,
    "make_questions": WritingConfig,
    "chunk": ChunkConfig,
    "index": IndexSection,
    "prepare_model": PrepareModelConfig,
    "synthesize": SynthesizeConfig,
    "filter": FilterConfig,
    "sft": SftConfig,
    "choose_checkpoint": ChooseCheckpointConfig,
    "merge": MergeConfig,
    "serving": ServingConfig,
    "rl": RlConfig,
    "unsloth_merge": MergeConfig,
    "optimize_prompt": OptimizePromptConfig,
    "evaluate": EvaluateConfig,
    "ifeval": IfevalConfig,
    "report": ReportConfig,
    "track": TrackConfig,
}
TOY = "src/deepsearch_rl/toy"
# Stage -> the field of its section, and the value with which the stage loads the toy package
TOY_CHOICES = {
    "download": ("source", "world"),
    "prepare_model": ("source", "pretrain"),
    "synthesize": ("teacher", TOY),
}
# Sections that no stage reads
SETTINGS = ("profile", "packages", "python", "requires", "flow")
# Of a profile.yaml alone
_OF_PROFILES = ("extends", "stages")
_SECTION = re.compile(
    r"(?P<lead>(?:^(?:#.*)?\n)*)(?P<body>^(?P<name>\w+):.*\n(?:^[ -].*\n|^\n(?= ))*)", re.MULTILINE
)
_REPLACE = "!replace"
_NULL = "tag:yaml.org,2002:null"
# What stands before a comment that ends a line
_COMMENT = re.compile(r"^([^#\n]*\S) +# ", re.MULTILINE)
_INNER_COLON = re.compile(r":(?=\S)")
_VALUE = re.compile(r"\$\{(\w+)")


class Section(NamedTuple):
    """The text of one section: the blank and comment lines above it, and its own lines."""

    lead: str
    body: str


def main() -> None:
    """Write all generated files; an error ends the command with status 1 and one paragraph."""
    try:
        check(Profile(ROOT / PARAMS, read_values(ROOT / PARAMS)))
        for path, text in {**generated(), **package_files()}.items():
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                with atomic_file(path) as partial:
                    partial.write_text(text, encoding="utf-8")
                print(f"wrote {path.relative_to(ROOT)}")  # noqa: T201 - what the command says
    except DeepsearchError as error:
        sys.exit(f"error: {error}")


def generated() -> dict[Path, str]:
    """Return the text of every generated file by its path; raise ConfigError where a profile does not fit."""
    texts: dict[Path, str] = {}
    for source in sorted(ROOT.glob("profiles/*/profile.yaml")):
        params, graph = generate(source)
        texts[source.with_name(PARAMS)] = params
        texts[source.with_name(GRAPH)] = graph

    return texts


def generate(source: Path) -> tuple[str, str]:
    """Return the params.yaml and the dvc.yaml of a profile.yaml."""
    name = source.parent.name
    sections = _sections_of(source)
    header = next(iter(_read_sections(source).values())).lead
    stages = yaml.safe_load(sections.pop("stages").body)["stages"]
    values = {key: _load(section.body)[key] for key, section in sections.items()}
    graph = _graph(name, stages, values)

    used = {*SETTINGS, *_VALUE.findall(graph)}
    for stage in yaml.safe_load(graph)["stages"].values():
        [names] = stage.get("do", stage)["params"][0].values()
        used.update(param.partition(".")[0] for param in names)

    text = f"{header}# Generated by `make params` from profile.yaml; edit that one.\n"
    kept = [key for key in sections if key in used]
    for key in kept:
        text += (sections[key].lead if key != kept[0] else "") + sections[key].body

    check(Profile(source, yaml.safe_load(text)))
    return text, graph


def check(profile: Profile) -> None:
    """Validate every section of a profile; raise ConfigError for the first value that does not fit."""
    for name in profile.values:
        if name in CONFIGS:
            profile.section(name, CONFIGS[name])

    profile.mapping("datasets", DatasetConfig)
    if "endpoints" in profile.values:
        profile.mapping("endpoints", RemoteConfig)
    for model in profile.value("models"):
        settings = profile.value("model_settings").get(model, {})
        Evaluation.of(profile.with_values(settings))


def _sections_of(source: Path) -> dict[str, Section]:
    """Return the sections of a profile.yaml, merged into those of what it extends."""
    if source == ROOT / PARAMS:
        graph = yaml.safe_load((ROOT / GRAPH).read_text(encoding="utf-8"))
        stages = Section("", yaml.safe_dump({"stages": list(graph["stages"])}))
        return {**_read_sections(source), "stages": stages}

    changes = _read_sections(source)
    name = source.parent.name
    extended = yaml.safe_load(changes.pop("extends").body)["extends"]
    below = ROOT / PARAMS if extended == BASE else source.parents[1] / extended / source.name
    if not below.is_file():
        raise ConfigError(f"{source} extends {extended}, which is no profile: {below} is missing.")

    sections: dict[str, Section] = {}
    for key, section in _sections_of(below).items():
        own = Section(section.lead, _renamed(section.body, extended, name))
        sections[key] = _merged(own, changes.pop(key, None))
    if changes:
        raise ConfigError(f"{source}: {', '.join(changes)} is no section of params.yaml.")

    return sections


def _renamed(text: str, old: str, new: str) -> str:
    """Return a text with the folders of one profile in place of those of another."""
    return re.sub(rf"\b(data|models|reports|work)/{old}\b", rf"\1/{new}", text)


def _read_sections(path: Path) -> dict[str, Section]:
    text = path.read_text(encoding="utf-8")
    return {
        match["name"]: Section(match["lead"], match["body"]) for match in _SECTION.finditer(text)
    }


def _merged(section: Section, change: Section | None) -> Section:
    if change is None:
        return section
    values = _load(section.body)
    _merge(values, _load(change.body))
    _in_blocks(values)
    text = _dump(values).replace(f" {_REPLACE}", "")
    text = _COMMENT.sub(lambda match: f"{match[1]:<26}  # ", text)
    return Section(change.lead if "#" in change.lead else section.lead, text)


def _merge(base: CommentedMap, changes: CommentedMap) -> None:
    """Put changed values into ``base``; a field keeps its comment where the change has none."""
    for name, value in changes.items():
        below = base.get(name)
        are_mappings = isinstance(value, CommentedMap) and isinstance(below, CommentedMap)
        if are_mappings and value.tag.value != _REPLACE:
            _merge(below, value)
        else:
            base[name] = value

        if name in changes.ca.items:
            comments = zip(changes.ca.items[name], base.ca.items.get(name, [None] * 4), strict=True)
            base.ca.items[name] = [new or old for new, old in comments]


def _in_blocks(value: Any) -> bool:
    """Take values with a colon out of braces, where DVC's parser reads none; return whether there are any."""
    if isinstance(value, CommentedMap):
        inner = [*value, *value.values()]
    elif isinstance(value, CommentedSeq):
        inner = list(value)
    else:
        return isinstance(value, str) and bool(_INNER_COLON.search(value))

    found = any([_in_blocks(each) for each in inner])
    if found:
        value.fa.set_block_style()
    return found


def _graph(name: str, stages: Sequence[str], values: Mapping[str, Any]) -> str:
    """Return the dvc.yaml of a profile: the project's, less what the profile's stages lack."""
    text = _renamed((ROOT / GRAPH).read_text(encoding="utf-8"), BASE, name)
    graph = _load(text)
    unknown = set(stages) - set(graph["stages"])
    if unknown:
        raise ConfigError(f"profile {name}: {', '.join(sorted(unknown))} is no stage of dvc.yaml.")

    params = f"profiles/{name}/{PARAMS}"
    missing = graph["stages"].keys() - set(stages)
    missing_outs = {out for key in missing for out in _outs(graph["stages"][key])}
    result = CommentedMap(stages=CommentedMap())
    for key in stages:
        stage = graph["stages"][key]
        body = stage.get("do", stage)
        body.insert(0, "wdir", "../..")
        body["cmd"] = body["cmd"].replace(PARAMS, params)
        sections = body["params"]
        for param in [param for param in sections if param in missing]:
            sections.remove(param)
        for dep in [dep for dep in body["deps"] if dep in missing_outs]:
            body["deps"].remove(dep)
        field, value = TOY_CHOICES.get(key, ("", None))
        if value and values[key][field] != value:
            body["deps"].remove(TOY)
        body["deps"].extend(_own_deps(body, sections, values))
        body["params"] = [{params: sections}]
        result["stages"][key] = stage

    text = re.sub(r"^  (?=\w)", "\n  ", _dump(result), flags=re.MULTILINE).replace("\n\n", "\n", 1)
    return f"# Generated by `make params` from the project's dvc.yaml; edit that one.\n{text}"


def _outs(stage: Mapping[str, Any]) -> Iterator[str]:
    """Yield the outs of a stage; of one for each model, the folder that they are in."""
    body = stage.get("do", stage)
    for out in [*body.get("outs", ()), *body.get("metrics", ())]:
        path = out if isinstance(out, str) else next(iter(out))
        yield path.partition("/${")[0]


def _own_deps(
    body: Mapping[str, Any], sections: Sequence[str], values: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the files of the user's own code that a stage loads, and prompts that are not the project's."""
    names = set(sections)
    if any(dep.endswith("/index") for dep in body["deps"]):
        names.add("index")  # it names the encoder

    found: set[str] = set()
    for name in sorted(names):
        found.update(own_files(values.get(name)))
        if name != "agent":
            found.update(_own_prompts(values.get(name)))

    if "prepare_model" in sections:
        yield from model_deps(values)
    yield from sorted(found)


def _own_prompts(value: Any) -> Iterator[str]:
    """Yield the paths of prompts in a section that lie outside of the project's own folder."""
    if not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        if key == "prompt" and inner and not inner.startswith("src/deepsearch_rl/"):
            yield inner
        yield from _own_prompts(inner)


def _editor() -> YAML:
    """Return a parser and writer that keeps comments, number formats and quotes."""
    editor = YAML()
    editor.width = 4096
    editor.preserve_quotes = True
    editor.indent(mapping=2, sequence=4, offset=2)
    editor.representer.add_representer(type(None), lambda it, _: it.represent_scalar(_NULL, "null"))
    return editor


def _load(text: str) -> CommentedMap:
    return _editor().load(text)


def _dump(values: CommentedMap) -> str:
    text = StringIO()
    _editor().dump(values, text)
    return text.getvalue()


if __name__ == "__main__":
    main()
