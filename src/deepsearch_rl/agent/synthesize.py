"""Teacher trajectories for the training questions.

The teacher answers through the same agent, tool and retriever as any model. It is a folder, as
those of `models` are:

- weights, or an adapter that names its base: the model is served as the section `serving` says.
  `synthesize.teacher: models/tiny/base` lets a model learn from its own right answers;
- an ``endpoint.json``: the model behind that address;
- :data:`GOLD`, a module of this project: a script that knows the gold evidence of real questions;
- :data:`SCRIPTED`, a package of this project: the scripted teacher of the generated worlds.

DVC makes the folder first where a stage does, and runs `synthesize` again where it changes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import Field, JsonValue

from deepsearch_rl.agent.collect import (
    BulkRun,
    RolloutSetting,
    TrajectoryFile,
    collect,
    read_questions,
)
from deepsearch_rl.agent.config import (
    FUNCTION_CALLING,
    GOLD,
    SCRIPTED,
    AgentConfig,
    GoldConfig,
    ScriptedConfig,
    is_script,
    write_manifest,
)
from deepsearch_rl.agent.gold_teacher import GoldTeacher, plan
from deepsearch_rl.agent.protocols import open_protocol
from deepsearch_rl.agent.rollout import PolicyPerRollout, SearchAgent
from deepsearch_rl.chat.endpoint import Endpoint, open_endpoint, read_remote
from deepsearch_rl.chat.prompts import (
    require_trained_with,
    served_with,
)
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import sha256_json
from deepsearch_rl.core.records import NonEmpty, Question, Record
from deepsearch_rl.serve.adapters import digest_weights, tokenizer_folder
from deepsearch_rl.serve.launch import ServingConfig, serve_model
from deepsearch_rl.server.launch import serve_index


class SynthesizeConfig(Record):
    """Section ``synthesize``: the teacher and its questions."""

    teacher: NonEmpty = Field(
        description="folder of a model, of an endpoint.json, or of the scripted teacher"
    )
    dataset: NonEmpty
    split: NonEmpty
    questions: int | None = Field(ge=1, description="the first so many; null: all")
    samples: int = Field(ge=1, description="trajectories per question")
    temperature: float = Field(ge=0)
    scripted: ScriptedConfig | None = Field(description="mistakes of the scripted teacher")
    gold: GoldConfig | None = Field(description="of the teacher from gold evidence")


def synthesize(
    config: SynthesizeConfig,
    setting: RolloutSetting,
    serving: ServingConfig,
    out: Path,
    scratch: Path,
) -> TrajectoryFile:
    """Write the teacher's trajectories to ``out``, sorted by id, and return them.

    The manifest beside them says which prompt and tool they were made with. A killed run goes on
    from ``scratch``, unless the address or model that environment variables name is another one.

    Raise ArtifactError where an input is missing or empty; and as :func:`open_teacher`,
    :func:`serve_index` and :func:`collect`.
    """
    questions = read_questions(setting.split(config.split), config.questions)
    agent = setting.agent
    seed = setting.seed

    with (
        open_teacher(config, questions, setting, serving) as teacher,
        serve_index(setting.index, setting.chunks, setting.retrieval) as url,
    ):
        agents = partial(
            SearchAgent,
            agent,
            teacher.policy,
            url,
            config.temperature,
            model_name="teacher",
            seed=seed,
        )
        # An endpoint's address and model are no params: the log's name tells them apart
        log = scratch / f"{sha256_json(teacher.determined_by)[:16]}.jsonl"
        run = BulkRun(questions, config.samples, [agents], log, "synthesize", out)
        artifact = collect(run, agent.concurrency)

    write_manifest(out, agent)
    return artifact


@dataclass(frozen=True, slots=True)
class Teacher:
    """A teacher that answers now, and what its answers depend on besides params and questions."""

    policy: Endpoint | PolicyPerRollout
    determined_by: JsonValue


@contextmanager
def open_teacher(
    config: SynthesizeConfig,
    questions: Sequence[Question],
    setting: RolloutSetting,
    serving: ServingConfig,
) -> Iterator[Teacher]:
    """Open the teacher that the config names; a model with weights is served until the block ends.

    Raises:
        ConfigError: there is no such folder, a teacher that is a script lacks its section or cannot
            answer these questions, an environment variable of an endpoint is not set, or the
            model was trained with another prompt.
        EndpointError: nothing answers at the endpoint's address.
    """
    name = config.teacher
    folder = Path(name)
    if is_script(name, GOLD):
        yield Teacher(_gold(config.gold, questions, setting.agent), None)
        return

    if is_script(name, SCRIPTED):
        yield Teacher(_scripted(config.scripted, questions, setting), None)
        return

    remote = read_remote(folder)
    if remote is not None:
        endpoint = open_endpoint(remote)
        yield Teacher(endpoint, [endpoint.base_url, endpoint.model])
        return

    if not folder.is_dir():
        raise ConfigError(
            f"synthesize.teacher is {name!r}, and there is no such folder. Give the folder of a "
            f"model, one with an endpoint.json, or {SCRIPTED}, the scripted teacher of generated "
            "questions."
        )

    served = served_with(tokenizer_folder(folder), setting.agent.prompt_digests())
    require_trained_with(folder, served, f"the agent (agent.prompt: {setting.agent.prompt})")
    with serve_model(folder, serving) as endpoint:
        # The path may have other weights at the next start: answers of these must not be mixed with
        # theirs
        weights = digest_weights(folder)
        yield Teacher(endpoint, [weights, endpoint.model, serving.digest_of_answers()])


def _gold(
    config: GoldConfig | None, questions: Sequence[Question], agent: AgentConfig
) -> PolicyPerRollout:
    if agent.protocol != FUNCTION_CALLING:
        raise ConfigError(
            f"the gold teacher reads no {agent.protocol}; set agent.protocol: {FUNCTION_CALLING}."
        )

    if config is None:
        raise ConfigError(
            f"synthesize.teacher is {GOLD}, but synthesize.gold is null; give its min_searches."
        )

    for question in questions:
        # Refuse a set without gold evidence before the first answer
        plan(question)

    return lambda question, _sample: GoldTeacher(question, config.min_searches, agent.max_searches)


def _scripted(
    config: ScriptedConfig | None, questions: Sequence[Question], setting: RolloutSetting
) -> PolicyPerRollout:
    # Its code is a dep of those stages alone whose params name it
    from deepsearch_rl.toy.scripted_teacher import (  # noqa: PLC0415
        ScriptedTeacher,
        read_plan,
    )

    if config is None:
        raise ConfigError(
            f"synthesize.teacher is {SCRIPTED}, but synthesize.scripted is null; give its error rates."
        )

    for question in questions:
        # Refuse a set without plans before the first answer, not in every rollout
        read_plan(question)

    protocol = open_protocol(setting.agent)
    return lambda question, sample: ScriptedTeacher(
        question, sample, config, setting.seed, protocol
    )
