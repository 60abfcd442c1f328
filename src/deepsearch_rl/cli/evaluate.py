"""``deepsearch evaluate``: one model on one question set, without a profile; options are fields of a preset."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from typer import Option

from deepsearch_rl.agent.config import prompt_option
from deepsearch_rl.cli.defaults import (
    PROMPT_HELP,
    FieldOption,
    Fields,
    RequestOption,
    field_options,
    first_given,
    given_fields,
    request_values,
    with_options,
)
from deepsearch_rl.cli.evaluation_rows import print_rows
from deepsearch_rl.cli.targets import writable_folder
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.core.profile import PARAMS, Profile, load_profile
from deepsearch_rl.core.records import ProtocolName
from deepsearch_rl.core.stage import package_digest
from deepsearch_rl.search import RetrieverName
from deepsearch_rl.serve.launch import ServingBackend

if TYPE_CHECKING:
    from deepsearch_rl.evaluate.standalone import Standalone, WorldEvaluation

WORK = Path("work", "evaluate")
# Of a digest at the end of a folder's name
DIGITS = 8
# A model call may take this part of a question's time; one that takes longer is retried
CALLS_PER_DEADLINE = 4
# Where less than the tokens of a call are left, the model is asked to answer in this part of them
ANSWERS_PER_CALL = 4

_PRESET = load_preset("evaluate")
# The packaged prompt of the tiny profile, which names its file
_TINY_PROMPT = "tiny"
_FIELDS = {
    "temperature": FieldOption("evaluate.temperature", float, "Of sampling.", min=0.01),
    "protocol": FieldOption("agent.protocol", ProtocolName, "How the model asks for a search."),
    "top_k": FieldOption("retrieval.top_k", int, "Passages per search.", min=1),
    "chunk_size": FieldOption(
        "chunk.chunk_size", int, "Words and marks of a passage, at most.", min=1
    ),
    "retriever": FieldOption("retrieval.retriever", RetrieverName, "How passages are found."),
    "max_searches": FieldOption("agent.max_searches", int, "Searches per question.", min=0),
    "max_tokens": FieldOption(
        "agent.max_tokens", int, "Tokens that the model may write per call.", min=1
    ),
    "context_tokens": FieldOption(
        "agent.context_tokens", int, "Prompt and answer of one call together.", min=2
    ),
    "timeout_s": FieldOption("agent.timeout_s", float, "Seconds per question.", min=0.1),
    "concurrency": FieldOption("agent.concurrency", int, "Questions answered at once.", min=1),
    "backend": FieldOption(
        "serving.backend", ServingBackend, "What serves a folder of weights; vllm needs a GPU."
    ),
    "random_passages": FieldOption(
        "evaluate.random_passages",
        bool,
        "With --controls: with random passages as well.",
        "--random-passages",
    ),
    "draws": FieldOption("evaluate.draws", int, "Bootstrap resamples of the intervals.", min=100),
    "seed": FieldOption("seed", int, "Of sampling and resampling.", min=0, max=2**31 - 1),
}


_Model: TypeAlias = Annotated[
    str, Option(help="Model name to ask the endpoint for, or a folder with weights.")
]
_Dataset: TypeAlias = Annotated[
    str,
    Option(
        help="Question set: multihoprag, which is fetched, or with --data musique, 2wikimultihopqa, hotpotqa, nq, "
        "triviaqa, popqa, bamboogle or graphrag_bench."
    ),
]
_BaseUrl: TypeAlias = Annotated[
    str,
    Option(
        help="Address of an OpenAI-compatible server, up to and including /v1, or a $VARIABLE with it."
    ),
]
_Data: TypeAlias = Annotated[
    Path | None,
    Option(help="Folder with its files: the repository's, or corpus*.jsonl and questions*.jsonl."),
]
_WorldSeed: TypeAlias = Annotated[
    int | None,
    Option(
        help="In place of --dataset: the four sets of a generated world of this seed, with the settings of the tiny "
        "profile where no option says otherwise.",
        min=0,
        max=2**31 - 1,
        show_default="no world",
    ),
]
_Questions: TypeAlias = Annotated[
    int | None, Option(help="The first N of a set.", min=1, show_default="all")
]
_Samples: TypeAlias = Annotated[
    int, Option(help="Answers per question; they are averaged per question first.", min=1)
]
_Greedy: TypeAlias = Annotated[
    int, Option(help="The first N once more at temperature 0, as a row of their own.", min=0)
]
_Controls: TypeAlias = Annotated[
    int,
    Option(
        help="The first N without search, and with gold passages, where questions have facts or ids of documents.",
        min=0,
    ),
]
_Out: TypeAlias = Annotated[
    Path | None,
    Option(
        help="For rollouts and rows.json.",
        show_default="below work/evaluate",
        callback=writable_folder,
    ),
]
_AsJson: TypeAlias = Annotated[
    bool, Option("--json", help="Print the rows as JSON instead of a table.")
]
_Prompt: TypeAlias = Annotated[
    str | None,
    Option(
        help=PROMPT_HELP,
        show_default=f"{_PRESET.value('agent')['prompt']}; search_tags with that protocol",
    ),
]


@field_options("evaluate", _FIELDS)
def evaluate_command(
    context: typer.Context,
    model: _Model,
    dataset: _Dataset = "multihoprag",
    base_url: _BaseUrl = "$OPENAI_BASE_URL",
    key_variable: Annotated[
        str, Option(help="Environment variable that holds the key.")
    ] = "OPENAI_API_KEY",
    request: RequestOption = None,
    data: _Data = None,
    world_seed: _WorldSeed = None,
    questions: _Questions = None,
    samples: _Samples = 1,
    greedy: _Greedy = 0,
    controls: _Controls = 0,
    prompt: _Prompt = None,
    *,
    fields: Fields,
    name: Annotated[
        str | None, Option(help="The model's name in the row.", show_default="as --model ends")
    ] = None,
    out: _Out = None,
    as_json: _AsJson = False,
) -> None:
    """Let a model answer a question set with search, and print its row of the F1 table.

    The set is fetched and indexed below work/evaluate where it is not there yet; no GPU and no
    weights are needed for a model behind an endpoint. A run that was stopped goes on where it was
    when it is started again with the same version of this package. Rollouts and rows.json lie in a
    folder per model, set and setting, which is named at the end; they can be read with `deepsearch
    trajectories`, scored again and compared (`deepsearch compare`).

        deepsearch evaluate --model gpt-x --base-url https://api.example.com/v1 --questions 50
        deepsearch evaluate --model gpt-5 --request token_limit=max_completion_tokens --request temperature=omit
        deepsearch evaluate --model models/tiny/sft --dataset musique --data FOLDER --context-tokens 2048
        deepsearch evaluate --model models/tiny/sft --world-seed 90210 --greedy 400

    The last line scores a model of the tiny profile on names, facts and questions that nothing was
    trained or tuned on.
    """
    if fields["evaluate.random_passages"] and not controls:
        raise ConfigError(
            "--random-passages is one of the controls: say for how many questions (--controls N)."
        )
    counts = {"questions": questions, "samples": samples, "greedy": greedy, "controls": controls}
    folder = _model_folder(context, model, base_url, key_variable, request or [])
    if world_seed is not None:
        _require_no_set(context)
        options = {field: fields[field] for field in given_fields(context, _FIELDS)}
        prompt = prompt_option(prompt, options.get("agent.protocol"))
        options["agent.prompt"] = prompt or _TINY_PROMPT
        world = _describe_world(name or _slug(model), folder, world_seed, counts, options)
        _evaluate(world, f"world-{world_seed}", out, as_json)
        return

    prompt = prompt_option(prompt, fields["agent.protocol"])
    options = {**fields, "agent.prompt": prompt, "evaluate.sets": {dataset: counts}}
    described = _describe(name or _slug(model), folder, dataset, data, options)
    _evaluate(described, dataset, out, as_json)


def _require_no_set(context: typer.Context) -> None:
    """Raise ConfigError where an option names a question set beside --world-seed."""
    if option := first_given(context, ("dataset", "data")):
        raise ConfigError(
            f"--world-seed makes its question sets, so {option} does not go with it; leave one of them out."
        )


def _model_folder(
    context: typer.Context, model: str, base_url: str, key_variable: str, request: list[str]
) -> Path:
    """Return the folder of weights, or one that is made for the endpoint.

    Raise ConfigError as :func:`_require_name` and :func:`_endpoint_folder`, and where an option
    describes an endpoint beside a model's folder, or a server of weights beside an endpoint.
    """
    is_folder = bool(model) and Path(model).is_dir()
    if not is_folder:
        _require_name(model)
    has_weights = is_folder and not Path(model, "endpoint.json").is_file()
    if not has_weights and (option := first_given(context, ("backend",))):
        raise ConfigError(
            f"{option} serves the weights of a folder, and --model is behind an endpoint; leave it out."
        )
    if not is_folder:
        return _endpoint_folder(model, base_url, key_variable, request)

    if option := first_given(context, ("base_url", "key_variable", "request")):
        raise ConfigError(
            f"{option} is for a model behind an endpoint, and --model is a folder; leave it out. The endpoint of a "
            "folder without weights stands in its endpoint.json."
        )

    return Path(model)


def _describe(
    name: str, model: Path, dataset: str, data: Path | None, options: Fields
) -> "Standalone":
    """Return the evaluation of a model folder on a set, with the fields that follow from options."""
    from deepsearch_rl.data.dataset_presets import SPLIT, source_of  # noqa: PLC0415 - with the rest below, which loads FAISS
    from deepsearch_rl.evaluate.evaluation_plan import Evaluation  # noqa: PLC0415
    from deepsearch_rl.evaluate.standalone import Standalone  # noqa: PLC0415
    from deepsearch_rl.search.build import IndexSection  # noqa: PLC0415

    changes = {
        "datasets": {dataset: {"corpus": dataset}},
        "evaluate.split": SPLIT,
        "evaluate.variants": {},
    }
    settings = _with_consequences(_PRESET.with_overrides(changes), options)
    return Standalone(
        name=name,
        model=model,
        dataset=dataset,
        source=source_of(dataset, data, WORK / "data" / "fetched"),
        index=settings.section("index", IndexSection).of(dataset),
        setting=Evaluation.of(settings),
    )


def _describe_world(
    name: str, model: Path, seed: int, counts: Mapping[str, int | None], options: Fields
) -> "WorldEvaluation":
    """Return the evaluation of a model folder on every set of a generated world, ``counts`` of each."""
    from deepsearch_rl.evaluate.standalone import WorldEvaluation  # noqa: PLC0415 - loads FAISS, the agent and its clients

    tiny = load_profile(Path(PARAMS))
    plan = {dataset: dict(counts) for dataset in tiny.value("evaluate.sets")}
    vllm = _PRESET.value("serving.vllm") | {"max_model_len": tiny.value("agent.context_tokens")}
    changes = {
        "evaluate.sets": plan,
        "evaluate.variants": {},
        "chunk.variants": {},
        "serving": tiny.value("serving") | {"vllm": vllm},
    }
    settings = _with_consequences(tiny.with_overrides(changes), options)
    return WorldEvaluation(name, model, seed, settings)


def _with_consequences(settings: Profile, options: Fields) -> Profile:
    """Return settings with options, and with the fields that follow from those of them that are there.

    Raise ConfigError where the tokens of a call do not fit into its context.
    """
    following: dict[str, object] = {}
    if "agent.max_searches" in options:
        following["agent.max_turns"] = options["agent.max_searches"] + 2
    if "agent.max_tokens" in options:
        following["agent.answer_tokens"] = max(1, options["agent.max_tokens"] // ANSWERS_PER_CALL)
    if "agent.timeout_s" in options:
        following["agent.call_timeout_s"] = options["agent.timeout_s"] / CALLS_PER_DEADLINE
    if "agent.context_tokens" in options:
        following["serving.cpu.context_tokens"] = options["agent.context_tokens"]
        following["serving.vllm.max_model_len"] = options["agent.context_tokens"]

    changed = with_options(settings, {**options, **following})
    max_tokens, context_tokens = map(changed.value, ("agent.max_tokens", "agent.context_tokens"))
    if max_tokens >= context_tokens:
        raise ConfigError(
            f"--max-tokens {max_tokens} leaves no room for a prompt in --context-tokens {context_tokens}, which is "
            "prompt and answer together; write a smaller one or a larger one."
        )
    return changed


def _evaluate(
    request: "Standalone | WorldEvaluation", sets: str, out: Path | None, as_json: bool
) -> None:
    """Run an evaluation and print its rows and where they lie, a folder that is called after its ``sets``."""
    from deepsearch_rl.evaluate.standalone import evaluate  # noqa: PLC0415 - loads FAISS, the agent and its clients

    place = out or WORK / "results" / f"{request.name}-{sets}-{request.digest()[:DIGITS]}"
    # Another version of the package answers anew
    logs = WORK / "logs" / package_digest()[:DIGITS]
    evaluation = evaluate(request, WORK / "data", place, logs)

    if as_json:
        typer.echo(evaluation.model_dump_json(indent=2))
    else:
        print_rows(evaluation)

    # On standard error, where JSON is read by a program
    typer.echo(f"rollouts and rows.json: {place}", err=as_json)


def _require_name(model: str) -> None:
    """Raise ConfigError where the name of a model behind an endpoint reads as a path."""
    # An empty name has no parts
    first_part = Path(model).parts[:1]
    begins_as_here = any(Path(part).exists() for part in first_part)
    if model.startswith(("models/", ".", "/", "~")) or begins_as_here:
        raise ConfigError(
            f"--model {model} reads as a path, and there is no such folder; correct it. A name is taken for a model of "
            "the endpoint only where no file or folder here is called as the name begins."
        )


def _endpoint_folder(model: str, base_url: str, key_variable: str, request: list[str]) -> Path:
    """Return a folder that is made for a model behind an endpoint; raise ConfigError for a key."""
    from pydantic import ValidationError  # noqa: PLC0415

    from deepsearch_rl.chat.endpoint import FILE, RemoteConfig  # noqa: PLC0415
    from deepsearch_rl.core.files import first_problem, sha256_json, write_json  # noqa: PLC0415

    if "@" in base_url:
        raise ConfigError(
            "--base-url holds a user or password, which would be kept in a file; put the address into a variable and "
            "name it: --base-url '$OPENAI_BASE_URL'."
        )

    try:
        remote = RemoteConfig.model_validate(
            {
                "base_url": base_url,
                "model": model,
                "api_key_variable": key_variable,
                "request": request_values(request),
            }
        )
    except ValidationError as error:
        field, problem = first_problem(error)
    else:
        folder = WORK / "models" / f"{_slug(model)}-{sha256_json(remote.of_answers())[:DIGITS]}"
        write_json(folder / FILE, remote.model_dump(mode="json", exclude_defaults=True))
        return folder

    # Raised here, because pydantic's own error shows the value, which may be a key.
    if field == "api_key_variable":
        raise ConfigError(
            "--key-variable takes the name of an environment variable, never the key itself."
        )

    option, _, name = field.partition(".")
    raise ConfigError(f"--{option.replace('_', '-')}{' ' if name else ''}{name}: {problem}.")


def _slug(model: str) -> str:
    return re.sub(r"[^\w.-]+", "_", Path(model).name) or "model"
