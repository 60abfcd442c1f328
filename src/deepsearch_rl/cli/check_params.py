"""Whether a params.yaml fits: every section by its own config class, then what sections say of each other.

``make params``, ``deepsearch doctor`` and ``deepsearch plan`` ask this before anything runs. The
errors that stages raise for themselves, such as those about the files that they read, are not
repeated here.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.synthesize import SynthesizeConfig
from deepsearch_rl.chat.endpoint import RemoteConfig
from deepsearch_rl.cli.doctor import Requirements
from deepsearch_rl.core.errors import ConfigError, UnknownNameError, look_up
from deepsearch_rl.core.model_config import CONFIG, require_context
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Record
from deepsearch_rl.core.stage import SOURCES
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
from deepsearch_rl.toy.world_questions import IN_DOMAIN_SET, WorldConfig
from deepsearch_rl.track.contents import TrackConfig
from deepsearch_rl.train.choose_checkpoint import ChooseCheckpointConfig
from deepsearch_rl.train.filters import FilterConfig
from deepsearch_rl.train.merge_config import MergeConfig
from deepsearch_rl.train.prepare_model import PrepareModelConfig
from deepsearch_rl.train.prompt_search import OptimizePromptConfig
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.sft import SftConfig

CONFIGS: Mapping[str, type[Record]] = {
    "requires": Requirements,
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
MAPPINGS: Mapping[str, Any] = {
    "models": str,
    "datasets": DatasetConfig,
    "endpoints": RemoteConfig,
    "python": str,
}
OTHERS = ("profile", "packages", "flow", "seed", "model_settings")
# Fields of section sft that filter proves rows by
OF_SWIFT = ("model_type", "template", "agent_template", "loss_scale")
# A world's corpora: of the in-domain set and of the others
WORLD_CORPORA = ("world", "outworld")


def check(profile: Profile, root: Path = Path()) -> None:
    """Raise ConfigError, with the field and what to do, for the first value that does not fit.

    ``root`` is the project's folder, from which relative paths begin.
    """
    values = profile.values
    known = {*CONFIGS, *MAPPINGS, *OTHERS}
    for name in values:
        if name not in known:
            raise UnknownNameError(f"section in {profile.path},", name, known)
    for field, value in _numbers(values, ""):
        if not math.isfinite(value):
            raise ConfigError(f"{profile.path}, {field}: {value} is no number; give a finite one.")

    for name, kind in MAPPINGS.items():
        if name in values:
            profile.mapping(name, kind)
    for name, config in CONFIGS.items():
        if name in values:
            _section(profile, name, lambda name=name, config=config: profile.section(name, config))

    _check_rest(profile)
    for sentence in _contradictions(profile, root):
        raise ConfigError(f"{profile.path}, {sentence}.")
    _check_models(profile, root)


def _section(profile: Profile, name: str, read: Callable[[], object]) -> None:
    """Read a section; errors about names of prompts, rewards and other code say which section it is."""
    try:
        read()
    except ConfigError as error:
        if f"{name}." in str(error):
            raise
        raise ConfigError(f"{profile.path}, section {name}: {error}") from error


def _check_rest(profile: Profile) -> None:
    """Check what no config class of a section reads: seed, worlds, and every model's own settings."""
    seed = profile.value("seed")
    if not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"{profile.path}, seed: {seed!r} is no whole number of 0 or more.")

    download = profile.values.get("download", {})
    if download.get("source") == "world" and download.get("world"):
        profile.section("download.world", WorldConfig)

    models = profile.value("models")
    settings = profile.value("model_settings")
    for model in settings:
        look_up("model in model_settings", model, models)
    if "evaluate" in profile.values:
        for model in models:
            changes = settings.get(model) or {}
            changed = _settings_of(profile, model, changes)
            _section(profile, "evaluate", lambda changed=changed: Evaluation.of(changed))


def _settings_of(profile: Profile, model: str, changes: Mapping[str, Any]) -> Profile:
    try:
        return profile.with_values(changes)
    except UnknownNameError as error:
        raise ConfigError(f"{profile.path}, model_settings.{model}: {error}") from error


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield name, value
    items = value.items() if isinstance(value, Mapping) else ()
    if isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield from _numbers(inner, f"{name}.{key}" if name else str(key))


def _contradictions(profile: Profile, root: Path) -> Iterator[str]:
    """Yield a sentence, begun by its field, for every value that another section contradicts."""
    values = profile.values
    yield from _prompts(values, root)
    for section in (_names, _lengths, _training):
        yield from section(values)


def _names(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield names of sets, splits, corpora and models that other sections do not have."""
    datasets = values.get("datasets", {})
    corpora = _corpora(values)
    splits = _splits(values)
    models = values.get("models", {})

    for name, dataset in datasets.items():
        if corpora is not None:
            yield from _unknown(f"datasets.{name}.corpus", "corpus", dataset["corpus"], corpora)
        if splits is not None:
            yield from _unknown(f"datasets.{name}", "question set of download", name, splits)

    for field, name, split in _used_sets(values):
        yield from _unknown(field, "dataset", name, datasets)
        if splits is not None and split and name in splits:
            own = field.rpartition(".")[0] if field.endswith(".dataset") else field
            yield from _unknown(f"{own} ({name})", "split of this set", split, splits[name])

    for name in values.get("retrieval", {}).get("dataset_retrievers", {}):
        yield from _unknown("retrieval.dataset_retrievers", "dataset", name, datasets)
    if corpora is not None:
        for field in ("corpus_vectors", "corpus_only", "imported"):
            for name in values.get("index", {}).get(field) or {}:
                yield from _unknown(f"index.{field}", "corpus", name, corpora)

    for name, variant in values.get("evaluate", {}).get("variants", {}).items():
        for model in variant["models"] or ():
            yield from _unknown(f"evaluate.variants.{name}.models", "model", model, models)
        if variant["corpus"] and corpora is not None:
            field = f"evaluate.variants.{name}.corpus"
            yield from _unknown(field, "corpus", variant["corpus"], corpora)
    for pair in values.get("report", {}).get("comparisons", ()):
        for model in pair:
            yield from _unknown("report.comparisons", "model", model, models)


def _unknown(
    field: str, kind: str, name: str, valid: Mapping[str, Any] | set[str]
) -> Iterator[str]:
    if name not in valid:
        error = UnknownNameError(kind, name, valid)
        yield f"{field}: {str(error).removesuffix('.')}"


def _used_sets(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (field, question set, split) for every use of a set's questions; the split is empty if any will do."""
    for section in ("synthesize", "filter"):
        if section in values:
            yield f"{section}.dataset", values[section]["dataset"], values[section]["split"]
    for section in ("rl", "optimize_prompt"):
        if section in values and (section == "rl" or values[section]["models"]):
            for split in ("train", "dev"):
                yield f"{section}.dataset", values[section]["dataset"], split
    choice = values.get("choose_checkpoint", {})
    if choice.get("by") == "dev":
        yield "choose_checkpoint.dev.dataset", choice["dev"]["dataset"], "dev"

    evaluate = values.get("evaluate", {})
    for name in evaluate.get("sets", {}):
        yield "evaluate.sets", name, evaluate["split"]
    for name, variant in evaluate.get("variants", {}).items():
        yield f"evaluate.variants.{name}.dataset", variant["dataset"], evaluate["split"]


def _corpora(values: Mapping[str, Any]) -> set[str] | None:
    """Return the corpora that there will be; None where the profile downloads none."""
    download = values.get("download")
    if download is None:
        return None
    names = set(WORLD_CORPORA)
    if download["source"] != "world":
        folder = download.get("folder") or {}
        names = {*folder.get("corpora", ()), *folder.get("paragraphs", ())}
        names |= {"documents"} if download["source"] == "documents" else set()
    return names | set(values.get("chunk", {}).get("variants", ()))


def _splits(values: Mapping[str, Any]) -> dict[str, set[str]] | None:
    """Return the splits of every question set that is downloaded; None where that is not known."""
    download = values.get("download")
    if download is None:
        return None
    if download["source"] == "world":
        splits = {name: {"val"} for name in values.get("datasets", {})}
        return {**splits, IN_DOMAIN_SET: set(download["world"]["questions"])}
    if not download.get("folder"):
        return None

    sets: dict[str, set[str]] = {}
    for name, sources in download["folder"]["questions"].items():
        sets[name] = {split for source in sources for split in source["splits"]}
    return sets


def _prompts(values: Mapping[str, Any], root: Path) -> Iterator[str]:
    """Yield prompts that are not there and that no stage makes."""
    evaluate = values.get("evaluate", {})
    prompts = {
        "agent.prompt": values.get("agent", {}).get("prompt"),
        "evaluate.agent.prompt": evaluate.get("agent", {}).get("prompt"),
    }
    for name, variant in evaluate.get("variants", {}).items():
        prompts[f"evaluate.variants.{name}.prompt"] = variant["prompt"]
    for field, prompt in prompts.items():
        # Other names were looked up by the config
        is_path = prompt and "/" in prompt and not prompt.startswith("data/")
        ours = f"{SOURCES.as_posix()}/"
        if is_path and prompt.startswith(ours):
            is_path = not Path(__file__).parents[1].joinpath(prompt.removeprefix(ours)).exists()
        if is_path and not (root / prompt).exists():
            yield f"{field}: there is no file {prompt}; name one that exists"


def _lengths(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield contexts and rows that do not fit into those that have to hold them."""
    agent = {**values.get("agent", {}), **values.get("evaluate", {}).get("agent", {})}
    context = agent.get("context_tokens")
    holders: dict[str, int | None] = {}
    endpoints = values.get("endpoints", {})
    # Models behind endpoints are served elsewhere
    is_served = any(Path(folder).name not in endpoints for folder in values["models"].values())
    serving = values.get("serving", {}) if is_served else {}
    backend = serving.get("backend")
    if backend == "cpu" and serving.get("cpu"):
        holders["serving.cpu.context_tokens"] = serving["cpu"]["context_tokens"]
    if backend == "vllm" and serving.get("vllm"):
        holders["serving.vllm.max_model_len"] = serving["vllm"]["max_model_len"]
    if backend and not serving.get(backend):
        yield f"serving.backend: {backend} has no section serving.{backend}; add it"
    for field, tokens in holders.items():
        if context and tokens and context > tokens:
            yield (
                f"agent.context_tokens: {context} is more than {field}: {tokens}, so that the server would "
                "refuse long conversations; raise the latter"
            )

    rl = values.get("rl")
    if rl and values["agent"]["context_tokens"] > rl["max_sequence_tokens"]:
        yield (
            f"rl.max_sequence_tokens: {rl['max_sequence_tokens']} is less than agent.context_tokens: "
            f"{values['agent']['context_tokens']}, so that the longest rollouts would not be trained on; "
            "set the two to the same number"
        )
    if "filter" in values and "sft" in values:
        rows = values["filter"]["max_tokens"]
        length = values["sft"]["max_length"]
        if rows > length:
            yield (
                f"filter.max_tokens: {rows} is more than sft.max_length: {length}, so that SFT would leave "
                "out rows that the filter kept; lower the former or raise the latter"
            )


def _training(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield settings of training stages that contradict each other."""
    if "filter" in values and "sft" in values:
        for field in OF_SWIFT:
            proved, trained = values["filter"][field], values["sft"][field]
            if proved != trained:
                yield (
                    f"filter.{field}: {proved} is not sft.{field}: {trained}, so that other tokens would be "
                    "trained than the filter proves; set them to the same name"
                )
    if "merge" in values and "sft" in values and values["merge"]["backend"] == "swift":
        for field in ("model_type", "template"):
            merged, trained = values["merge"][field], values["sft"][field]
            if merged != trained:
                yield (
                    f"merge.{field}: {merged} is not sft.{field}: {trained}, of the model that it merges; set "
                    "them to the same name"
                )
    if "filter" in values and "synthesize" in values:
        for field in ("dataset", "split"):
            if values["filter"][field] != values["synthesize"][field]:
                yield (
                    f"filter.{field}: {values['filter'][field]} is not synthesize.{field}: "
                    f"{values['synthesize'][field]}, whose questions were answered; set them to the same name"
                )
    if values.get("choose_checkpoint", {}).get("by") == "loss" and not values["sft"]["eval_share"]:
        yield "choose_checkpoint.by: loss needs rows held back; set sft.eval_share above 0"

    rl = values.get("rl", {})
    starts = {
        name for name, stage in (("base", "prepare_model"), ("sft", "merge")) if stage in values
    }
    for start in rl.get("starts", ()):
        if starts:
            yield from _unknown("rl.starts", "model that a stage makes", start, starts)
        if start not in rl["steps"]:
            yield f"rl.steps: there is no entry for the start {start}; add one"
            continue

        # Questions that are made are not counted before
        made = values.get("make_questions", {})
        if rl["dataset"] in made.get("documents", {}):
            needed = math.ceil(rl["steps"][start] * rl["groups_per_step"] / rl["epochs"])
            if made["min_train"] < needed:
                yield (
                    f"make_questions.min_train: {made['min_train']} is less than the {needed} questions that "
                    f"rl.steps.{start} x rl.groups_per_step take in rl.epochs = {rl['epochs']:g}; raise it to "
                    f"{needed}, or lower the steps"
                )


def _check_models(profile: Profile, root: Path) -> None:
    """Refuse folders of this profile that no stage makes, and a base model with too few positions."""
    values = profile.values
    made = {str(profile.models / name) for name in values.get("endpoints", {})}
    for stage, name in (
        ("prepare_model", "base"),
        ("merge", "sft"),
        ("choose_checkpoint", "sft_adapter"),
    ):
        made |= {str(profile.models / name)} if stage in values else set()
    for stage, name in (("rl", "rl_adapter"), ("unsloth_merge", "rl_merged")):
        starts = values["rl"]["starts"] if stage in values else ()
        made |= {str(profile.models / name / start) for start in starts}

    named = {f"models.{model}": folder for model, folder in profile.value("models").items()}
    if "synthesize" in values:
        named["synthesize.teacher"] = values["synthesize"]["teacher"]
    for field, folder in named.items():
        is_ours = Path(folder).is_relative_to(profile.models)
        if is_ours and str(Path(folder)) not in made and not (root / folder).exists():
            raise ConfigError(
                f"{profile.path}, {field}: no stage makes {folder}; stages make {', '.join(sorted(made))}."
            )

    base = values.get("prepare_model", {})
    needed: dict[str, int] = {}
    for section, field in (
        ("agent", "context_tokens"),
        ("sft", "max_length"),
        ("rl", "max_sequence_tokens"),
    ):
        if section in values:
            needed[f"{section}.{field}"] = values[section][field]
    if base.get("source") == "folder" and (root / base["path"] / CONFIG).is_file():
        require_context(root / base["path"], needed)
    if base.get("source") == "pretrain":
        limit = base["pretrain"]["model"]["context_tokens"]
        for field, tokens in needed.items():
            if tokens > limit:
                raise ConfigError(
                    f"{profile.path}, {field}: {tokens} is more than prepare_model.pretrain.model.context_tokens: "
                    f"{limit}; lower the former."
                )
