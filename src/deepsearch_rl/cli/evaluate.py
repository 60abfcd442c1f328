"""``deepsearch evaluate``: one model on one question set, without a profile; options are fields of a preset."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from typer import Option

from deepsearch_rl.agent.config import prompt_option
from deepsearch_rl.cli.shared import (
    PROMPT_HELP,
    RequestOption,
    first_given,
    is_given,
    print_table,
    request_values,
    with_options,
)
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.core.profile import PARAMS, Profile, load_profile
from deepsearch_rl.core.records import ProtocolName
from deepsearch_rl.core.stage import package_digest
from deepsearch_rl.search import RetrieverName
from deepsearch_rl.serve.launch import ServingBackend

if TYPE_CHECKING:
    from deepsearch_rl.evaluate.f1_row import F1TableRow, ModelEvaluation
    from deepsearch_rl.evaluate.standalone import Standalone, WorldEvaluation

WORK = Path("work", "evaluate")
# Of a digest at the end of a folder's name
DIGITS = 8
# A model call may take this part of a question's time; one that takes longer is retried
CALLS_PER_DEADLINE = 4
# Where less than the tokens of a call are left, the model is asked to answer in this part of them
ANSWERS_PER_CALL = 4

_PRESET = load_preset("evaluate")
_EVALUATE = _PRESET.value("evaluate")
_AGENT = _PRESET.value("agent")
_RETRIEVAL = _PRESET.value("retrieval")
_CHUNK_SIZE = _PRESET.value("chunk.chunk_size")
_BACKEND = _PRESET.value("serving.backend")
_SEED = _PRESET.value("seed")
# The packaged prompt of the tiny profile, which names its file
_TINY_PROMPT = "tiny"

_Model: TypeAlias = Annotated[
    str, Option(help="Name of a model behind the endpoint, or a folder with weights.")
]
_Dataset: TypeAlias = Annotated[
    str,
    Option(
        help="Question set. multihoprag is downloaded; the others of `deepsearch datasets` need --data."
    ),
]
_BaseUrl: TypeAlias = Annotated[
    str, Option(help="OpenAI-compatible server, up to /v1, or a $VARIABLE that holds it.")
]
_KeyVariable: TypeAlias = Annotated[str, Option(help="Environment variable that holds the key.")]
_Data: TypeAlias = Annotated[
    Path | None,
    Option(help="Folder of the set: its repository's, or corpus*.jsonl and questions*.jsonl."),
]
_WorldSeed: TypeAlias = Annotated[
    int | None,
    Option(
        help="Instead of --dataset, use the sets of a generated world, with tiny's settings.",
        min=0,
        max=2**31 - 1,
        show_default=False,
    ),
]
_Questions: TypeAlias = Annotated[
    int | None, Option(help="Only the first N questions.", min=1, show_default="all")
]
_Samples: TypeAlias = Annotated[int, Option(help="Answers per question, averaged.", min=1)]
_Greedy: TypeAlias = Annotated[
    int, Option(help="Also answer the first N at temperature 0 (a row of its own).", min=0)
]
_Controls: TypeAlias = Annotated[
    int, Option(help="Also answer the first N without search and with gold passages.", min=0)
]
_Prompt: TypeAlias = Annotated[
    str | None,
    Option(
        help=PROMPT_HELP,
        show_default=f"{_AGENT['prompt']}; search_tags with that protocol",
    ),
]
_Out: TypeAlias = Annotated[
    Path | None,
    Option(
        help="Folder for rollouts and rows.json.",
        show_default="below work/evaluate",
        file_okay=False,
        writable=True,
    ),
]


def evaluate_command(
    context: typer.Context,
    model: _Model,
    dataset: _Dataset = "multihoprag",
    base_url: _BaseUrl = "$OPENAI_BASE_URL",
    key_variable: _KeyVariable = "OPENAI_API_KEY",
    request: RequestOption = None,
    data: _Data = None,
    world_seed: _WorldSeed = None,
    questions: _Questions = None,
    samples: _Samples = 1,
    greedy: _Greedy = 0,
    controls: _Controls = 0,
    prompt: _Prompt = None,
    temperature: Annotated[
        float, Option(help="Of sampling; 0: greedy answers alone.", min=0)
    ] = _EVALUATE["temperature"],
    protocol: Annotated[ProtocolName, Option(help="How the model asks for a search.")] = _AGENT[
        "protocol"
    ],
    top_k: Annotated[int, Option(help="Passages per search.", min=1)] = _RETRIEVAL["top_k"],
    chunk_size: Annotated[int, Option(help="Longest passage, in tokens.", min=1)] = _CHUNK_SIZE,
    retriever: Annotated[RetrieverName, Option(help="How passages are found.")] = _RETRIEVAL[
        "retriever"
    ],
    max_searches: Annotated[int, Option(help="Searches per question.", min=0)] = _AGENT[
        "max_searches"
    ],
    max_tokens: Annotated[int, Option(help="Completion tokens per call.", min=1)] = _AGENT[
        "max_tokens"
    ],
    context_tokens: Annotated[
        int, Option(help="Prompt and completion tokens per call.", min=2)
    ] = _AGENT["context_tokens"],
    timeout_s: Annotated[float, Option(help="Seconds per question.", min=0.1)] = _AGENT[
        "timeout_s"
    ],
    concurrency: Annotated[int, Option(help="Questions at once.", min=1)] = _AGENT["concurrency"],
    backend: Annotated[
        ServingBackend, Option(help="Server for a folder of weights; vllm needs a GPU.")
    ] = _BACKEND,
    random_passages: Annotated[
        bool, Option("--random-passages", help="With --controls: with random passages as well.")
    ] = _EVALUATE["random_passages"],
    draws: Annotated[
        int, Option(help="Bootstrap resamples of the intervals.", min=100)
    ] = _EVALUATE["draws"],
    seed: Annotated[int, Option(help="Of sampling and resampling.", min=0, max=2**31 - 1)] = _SEED,
    name: Annotated[
        str | None, Option(help="The model's name in the row.", show_default="as --model ends")
    ] = None,
    out: _Out = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Let a model answer a question set with search, and print its row of the F1 table.

    The set is downloaded and indexed below work/evaluate on first use. A model behind an endpoint
    needs no GPU and no weights. The same command resumes a run that was interrupted. The last line
    names the folder with rollouts and rows.json, which `deepsearch trajectories`, `explain` and
    `compare` read.

        deepsearch evaluate --model gpt-x --base-url https://api.example.com/v1 --questions 50
    """
    # An option is called like the last part of its field
    fields: dict[str, Any] = {
        "evaluate.temperature": temperature,
        "agent.protocol": protocol,
        "retrieval.top_k": top_k,
        "chunk.chunk_size": chunk_size,
        "retrieval.retriever": retriever,
        "agent.max_searches": max_searches,
        "agent.max_tokens": max_tokens,
        "agent.context_tokens": context_tokens,
        "agent.timeout_s": timeout_s,
        "agent.concurrency": concurrency,
        "serving.backend": backend,
        "evaluate.random_passages": random_passages,
        "evaluate.draws": draws,
        "seed": seed,
    }
    if random_passages and not controls:
        raise ConfigError(
            "--random-passages is one of the controls: say for how many questions (--controls N)."
        )
    counts = {"questions": questions, "samples": samples, "greedy": greedy, "controls": controls}
    folder = _model_folder(context, model, base_url, key_variable, request or [])
    if world_seed is not None:
        _require_no_set(context)
        given = {
            field: value
            for field, value in fields.items()
            if is_given(context, field.rpartition(".")[2])
        }
        given_prompt = prompt_option(prompt, protocol if "agent.protocol" in given else None)
        given["agent.prompt"] = given_prompt or _TINY_PROMPT
        world = _describe_world(name or _slug(model), folder, world_seed, counts, given)
        _evaluate(world, f"world-{world_seed}", out, as_json)
        return

    fields |= {
        "agent.prompt": prompt_option(prompt, protocol),
        "evaluate.sets": {dataset: counts},
    }
    described = _describe(name or _slug(model), folder, dataset, data, fields)
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
    name: str, model: Path, dataset: str, data: Path | None, options: Mapping[str, Any]
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
    name: str,
    model: Path,
    seed: int,
    counts: Mapping[str, int | None],
    options: Mapping[str, Any],
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


def _with_consequences(settings: Profile, options: Mapping[str, Any]) -> Profile:
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
        _print_rows(evaluation)

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


def _print_rows(evaluation: "ModelEvaluation") -> None:
    """Print the rows of an evaluation as a table, and below it its controls."""
    from deepsearch_rl.evaluate.f1_row import counts_text  # noqa: PLC0415 - loads pydantic

    header = [
        "set",
        "retriever",
        "n x samples",
        "T",
        "F1",
        "95 % interval",
        "EM",
        "acc",
        "searches",
        "constant",
        "failures",
    ]
    rows = evaluation.rows
    title = f"{evaluation.model}: {rows[0].checkpoint}"
    print_table(title, header, [_cells(row) for row in rows])

    for row in rows:
        for control, score in row.controls.items():
            interval = f"{score.f1:.3f} [{score.f1_low:.3f}, {score.f1_high:.3f}]"
            text = f"{row.dataset}, {control}: F1 {interval} on {score.n}; with search {score.searched_f1:.3f}"
            if score.failures:
                text += f"; ended without an answer: {counts_text(score.failures)}"
            typer.echo(text)


def _cells(row: "F1TableRow") -> list[str]:
    from deepsearch_rl.evaluate.f1_row import counts_text  # noqa: PLC0415 - loads pydantic

    return [
        row.dataset,
        row.retriever,
        f"{row.n} x {row.samples}",
        row.temperature_text,
        f"{row.f1:.3f}",
        f"[{row.f1_low:.3f}, {row.f1_high:.3f}]",
        f"{row.em:.3f}",
        f"{row.acc:.3f}",
        f"{row.mean_tool_calls:.2f}",
        f"{row.constant.f1:.3f}",
        counts_text(row.counts),
    ]
