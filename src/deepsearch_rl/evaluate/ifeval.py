"""IFEval of a served model, scored by evalscope's checkers.

Accuracies are those of the official scorer (Zhou et al. 2023, arXiv 2311.07911): per prompt (all
its instructions followed) and per instruction, strict (the response as it is) and loose (also
without its first or last line and without asterisks). Reasoning is no part of a response; it is
read as in every rollout (:func:`~deepsearch_rl.chat.chat_messages.spoken_reply`). Every prompt must
be answered and scored, or there is no score at all. Generated prompts have the official form and
need no download: two of the 25 official kinds of instruction, whose checkers need NLTK's data, are
left out of ``ifeval_prompts.yaml``.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import openai
import yaml
from evalscope.benchmarks.ifeval import instructions_registry
from evalscope.benchmarks.ifeval.utils import process_results
from langdetect import DetectorFactory
from openai.types.chat import ChatCompletionUserMessageParam
from pydantic import Field, JsonValue, field_validator, model_validator

from deepsearch_rl.chat.chat_messages import spoken_reply
from deepsearch_rl.chat.client import complete, open_client
from deepsearch_rl.chat.endpoint import Endpoint, shown_address
from deepsearch_rl.chat.request_options import remedy
from deepsearch_rl.core.errors import (
    ArtifactError,
    CheckFailedError,
    ConfigError,
    EndpointError,
    RecordError,
)
from deepsearch_rl.core.files import atomic_directory, write_json, write_jsonl
from deepsearch_rl.core.global_random import seeded_global_random
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.data.flashrag import numbered_rows
from deepsearch_rl.evaluate.f1_row import IfevalScore


class IfevalRow(Record):
    """One prompt in the official form."""

    key: int
    prompt: NonEmpty
    instruction_id_list: tuple[NonEmpty, ...] = Field(min_length=1)
    kwargs: tuple[dict[str, JsonValue], ...]

    @field_validator("kwargs")
    @classmethod
    def _without_nulls(
        cls, kwargs: tuple[dict[str, JsonValue], ...]
    ) -> tuple[dict[str, JsonValue], ...]:
        result: list[dict[str, JsonValue]] = []
        for arguments in kwargs:
            result.append({name: value for name, value in arguments.items() if value is not None})

        return tuple(result)

    @model_validator(mode="after")
    def _paired(self) -> "IfevalRow":
        if len(self.kwargs) != len(self.instruction_id_list):
            raise ValueError("kwargs must hold one entry per instruction")
        return self


_LOG = logging.getLogger(__name__)
SHOWN_KEYS = 10
# Arguments of checkers that are lists
LISTS = {"keywords", "forbidden_words"}
# Instructions with the arguments of their checkers, and topics: the parts of generated prompts
PROMPTS = Path(__file__).with_name("ifeval_prompts.yaml")
# Instructions that cannot be checked without NLTK's sentence model, ``punkt_tab``
NEED_NLTK_DATA = frozenset(
    {"length_constraints:number_sentences", "change_case:capital_word_frequency"}
)


class IfevalConfig(Record):
    """Section ``ifeval`` of params.yaml."""

    prompts: Literal["generated", "real"] = Field(
        description="generated: made of the instructions in path; real: those of the file path"
    )
    count: int = Field(
        ge=1, le=100, description="generated prompts; at least 23 to use every instruction once"
    )
    path: Path = Field(
        description="generated: the instructions as YAML; real: the official prompts as JSON Lines (541; key, prompt, "
        "instruction_id_list, kwargs)"
    )
    max_tokens: int = Field(ge=1, description="length limit of a response")
    concurrency: int = Field(ge=1, description="requests at once, to each server")
    timeout_s: float = Field(gt=0, description="time that one response may take")
    retries: int = Field(ge=1, description="attempts per prompt where the endpoint fails")


class IfevalPrompt(IfevalRow):
    """One prompt of IFEval whose instructions all have a checker here."""

    @model_validator(mode="after")
    def _known(self) -> "IfevalPrompt":
        unknown = sorted(
            set(self.instruction_id_list) - set(instructions_registry.INSTRUCTION_DICT)
        )
        if unknown:
            raise ValueError(f"no checker is known for {', '.join(unknown)}")
        for name, arguments in zip(self.instruction_id_list, self.kwargs, strict=True):
            _check_arguments(name, arguments)
        return self


def _check_arguments(name: str, arguments: dict[str, JsonValue]) -> None:
    """Raise ValueError where a checker cannot work with its arguments: it would fail or draw others when scoring."""
    checker = instructions_registry.INSTRUCTION_DICT[name](name)
    known = list(checker.get_instruction_args_keys())
    problems: list[str] = []
    for argument in arguments:
        if argument not in known:
            problems.append(f"{argument!r} is none of its arguments")
    for argument in known:
        if argument not in arguments:
            problems.append(f"{argument!r} is missing")
    for argument in LISTS & arguments.keys():
        # A checker would take a text for the list of its letters
        if not isinstance(arguments[argument], list):
            problems.append(f"{argument!r} must be a list")

    if problems:
        raise ValueError(
            f"{name}: {'; '.join(problems)} (its arguments: {', '.join(known) or 'none'})"
        )

    try:
        checker.build_description(**arguments)
        if arguments and name not in NEED_NLTK_DATA:
            checker.check_following("Some words.")
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise ValueError(
            f"{name}: its arguments {json.dumps(arguments)} do not work: {error}"
        ) from error


class IfevalResponse(Record):
    """A model's response to one prompt, and which of its instructions it followed (shares in [0, 1])."""

    key: int
    prompt: str
    response: str
    prompt_strict: float
    prompt_loose: float
    inst_strict: float
    inst_loose: float


def generated_prompts(count: int, path: Path = PROMPTS) -> list[IfevalPrompt]:
    """Return ``count`` prompts: every instruction alone first, then pairs of instructions that do not conflict."""
    conflicts = instructions_registry.INSTRUCTION_CONFLICTS
    checkers = instructions_registry.INSTRUCTION_DICT
    parts = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    instructions: list[tuple[str, dict[str, JsonValue]]] = list(parts["instructions"].items())
    combinations: list[Sequence[tuple[str, dict[str, JsonValue]]]] = []
    for entry in instructions:
        combinations.append((entry,))

    # Neighbours first, so that any number of prompts has all instructions about equally often
    for distance in range(1, len(instructions)):
        for first, second in zip(instructions, instructions[distance:], strict=False):
            # evalscope's table of conflicts does not name every pair on both sides
            if second[0] not in conflicts[first[0]] and first[0] not in conflicts[second[0]]:
                combinations.append((first, second))

    prompts: list[IfevalPrompt] = []
    for key, entries in enumerate(combinations[:count], 1):
        names, kwargs = zip(*entries, strict=True)
        sentences = [parts["topics"][key % len(parts["topics"])]]
        for name, arguments in entries:
            sentences.append(checkers[name](name).build_description(**arguments))

        prompt = IfevalPrompt(
            key=key, prompt=" ".join(sentences), instruction_id_list=names, kwargs=kwargs
        )
        prompts.append(prompt)

    return prompts


def read_prompts(path: Path) -> list[IfevalPrompt]:
    """Read a JSON Lines file in the official form, plain or gzipped.

    Raise RecordError where a line does not fit or names an instruction without a checker;
    ArtifactError where the file is missing, empty, or needs NLTK data that is not installed
    (evalscope would try a download in the middle of a run).
    """
    by_key: dict[int, IfevalPrompt] = {}
    for number, prompt in numbered_rows(path, IfevalPrompt):
        if by_key.setdefault(prompt.key, prompt) is not prompt:
            raise RecordError(
                path,
                number,
                "key",
                f"{prompt.key} is the key of an earlier prompt too; give it another",
            )

    prompts = list(by_key.values())
    if not prompts:
        raise ArtifactError(f"{path} holds no IFEval prompt.")
    # Before the first answer, which costs a model call
    needing = sum(not NEED_NLTK_DATA.isdisjoint(prompt.instruction_id_list) for prompt in prompts)
    if needing:
        nltk: ModuleType = instructions_registry.instructions.instructions_util.nltk
        try:
            nltk.data.find("tokenizers/punkt_tab")
        except LookupError as error:
            raise ArtifactError(
                f"{needing} of {len(prompts)} IFEval prompts need NLTK's sentence model, which is "
                "not installed. `make gpu-environments` installs it for the gpu profiles; "
                "elsewhere run `python -m nltk.downloader punkt_tab` once, or set NLTK_DATA to a "
                "folder that holds tokenizers/punkt_tab."
            ) from error

    return prompts


def load_prompts(config: IfevalConfig) -> list[IfevalPrompt]:
    """Return the prompts that ``config`` names; raise ConfigError where its file is of the other kind."""
    is_generated = config.prompts == "generated"
    if (config.path.suffix == ".yaml") != is_generated:
        wanted = f"{PROMPTS.name} for generated prompts, or the JSON Lines of the official ones for real prompts"
        raise ConfigError(
            f"ifeval.path is {config.path}, and ifeval.prompts is {config.prompts}: name {wanted}."
        )

    return (
        generated_prompts(config.count, config.path) if is_generated else read_prompts(config.path)
    )


def evaluate_ifeval(
    model: str,
    endpoints: Sequence[Endpoint],
    config: IfevalConfig,
    prompts: Sequence[IfevalPrompt],
    seed: int,
    out: Path,
) -> IfevalScore:
    """Ask and score every prompt; write ``responses.jsonl`` (by key) and ``scores.json`` into ``out``.

    ``model`` is its name in the tables; ``endpoints`` all answer as it and share the prompts;
    ``prompts`` are those of :func:`load_prompts`, which is called before a model is served;
    ``seed`` is that of the checkers' language detection. Raise CheckFailedError where a checker
    failed, EndpointError where an endpoint did.
    """
    prompts = sorted(prompts, key=lambda prompt: prompt.key)
    texts = asyncio.run(_ask_all(prompts, endpoints, config))
    # A checker draws what its prompt leaves open
    with seeded_global_random(seed):
        responses = _score_all(prompts, texts, seed)
    lengths = [len(prompt.instruction_id_list) for prompt in prompts]

    # A prompt's share of its instructions counts as often as it has instructions
    weights_of = {
        "prompt_strict": None,
        "prompt_loose": None,
        "inst_strict": lengths,
        "inst_loose": lengths,
    }
    accuracies: dict[str, Any] = {}
    for name, weights in weights_of.items():
        shares = [getattr(response, name) for response in responses]
        accuracies[name] = float(np.average(shares, weights=weights))

    distinct_instructions = set[str]().union(*(prompt.instruction_id_list for prompt in prompts))
    score = IfevalScore(
        model=model,
        prompts=config.prompts,
        n=len(responses),
        instructions=sum(lengths),
        instruction_ids=len(distinct_instructions),
        **accuracies,
    )
    with atomic_directory(out) as folder:
        write_jsonl(folder / "responses.jsonl", responses)
        write_json(folder / "scores.json", score.model_dump(mode="json"))

    return score


async def _ask_all(
    prompts: Sequence[IfevalPrompt], endpoints: Sequence[Endpoint], config: IfevalConfig
) -> list[str]:
    """Return the text of the response to each prompt, in the order of the prompts.

    Responses that are a thought and nothing else are empty, and are warned of.
    """
    # The next prompt goes to the endpoint that is free first
    free: asyncio.Queue[tuple[Endpoint, openai.AsyncOpenAI]] = asyncio.Queue()
    thoughts_alone: list[int] = []

    with ProgressBar("ifeval", len(prompts), "prompts") as bar:

        async def ask(prompt: IfevalPrompt) -> str:
            """Return what a model says to one prompt, without its thought."""
            messages: list[ChatCompletionUserMessageParam] = [
                {"role": "user", "content": prompt.prompt}
            ]
            endpoint, client = server = await free.get()
            try:
                completion = await complete(
                    client,
                    endpoint,
                    sample=0,
                    retries=config.retries - 1,
                    messages=messages,
                    temperature=0.0,
                    max_tokens=config.max_tokens,
                )
            except (openai.OpenAIError, EndpointError) as error:
                raise EndpointError(
                    f"IFEval stopped: {shown_address(endpoint.base_url)} did not answer every prompt "
                    f"({type(error).__name__}: {endpoint.redact(str(error))}); {remedy(str(error))} "
                    "and repeat the command."
                    # The library's own error may show the key
                ) from None

            free.put_nowait(server)
            bar.advance()
            message = completion.message
            response = spoken_reply(
                message.text, message.thought, begins_in_thought=endpoint.begins_in_thought
            )
            if not response.strip() and (message.thought or message.text.strip()):
                thoughts_alone.append(prompt.key)
            # Some instructions count lines: a text without a thought stays to the letter
            return response if response == message.text else response.strip()

        async with contextlib.AsyncExitStack() as clients:
            servers: list[tuple[Endpoint, openai.AsyncOpenAI]] = []
            for endpoint in endpoints:
                client = open_client(endpoint, config.timeout_s)
                servers.append((endpoint, await clients.enter_async_context(client)))
            for server in servers * config.concurrency:
                free.put_nowait(server)
            responses = await asyncio.gather(*map(ask, prompts))

    if thoughts_alone:
        _warn_of_thoughts(thoughts_alone, len(prompts))
    return responses


def _warn_of_thoughts(keys: Sequence[int], prompts: int) -> None:
    _LOG.warning(
        "IFEval: %d of %d responses are a thought without a text, and count as empty (keys %s). If "
        "the answer stands in the reasoning field, start vLLM or SGLang without "
        "--reasoning-parser (llama.cpp: --reasoning-format none), or with the model's own; if the "
        "thought was cut, raise ifeval.max_tokens.",
        len(keys),
        prompts,
        sorted(keys)[:SHOWN_KEYS],
    )


def _score_all(
    prompts: Sequence[IfevalPrompt], texts: Sequence[str], seed: int
) -> list[IfevalResponse]:
    DetectorFactory.seed = seed
    responses: list[IfevalResponse] = []
    failures: dict[int, Exception] = {}

    for prompt, text in zip(prompts, texts, strict=True):
        try:
            shares = process_results(prompt.model_dump(mode="json"), [text])
        except Exception as error:  # noqa: BLE001
            # A checker lets through whatever its libraries raise
            failures[prompt.key] = error
            continue

        # evalscope's names are prompt_level_strict and so on
        fields = {name.replace("_level", ""): share for name, share in shares.items()}
        responses.append(
            IfevalResponse(key=prompt.key, prompt=prompt.prompt, response=text, **fields)
        )

    if failures:
        first = next(iter(failures.values()))
        raise CheckFailedError(
            f"IFEval asked {len(prompts)} prompts and scored {len(responses)}; without a score: "
            f"keys {sorted(failures)[:SHOWN_KEYS]}. The first checker failed with "
            f"{type(first).__name__}: {first}."
        ) from first

    return responses
