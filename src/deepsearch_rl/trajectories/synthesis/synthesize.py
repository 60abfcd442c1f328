"""Teacher trajectories for the training questions.

The teacher answers through the same agent, tool and retriever as any model. A model that is its own
teacher (rejection sampling) is served by the stage's other program, ``stages/synthesize_self.py``,
so that only its graph depends on weights and model servers.
"""

from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import Field, JsonValue

from deepsearch_rl.agent.rollout import PolicyPerRollout, SearchAgent
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import sha256_json
from deepsearch_rl.core.records import NonEmpty, Question, Record
from deepsearch_rl.endpoints.endpoint import Endpoint
from deepsearch_rl.endpoints.remote import RemoteConfig, open_endpoint
from deepsearch_rl.search_server.launch import serve_index
from deepsearch_rl.trajectories.collecting.collect import TrajectoryFile, collect, read_questions
from deepsearch_rl.trajectories.collecting.manifest import write_manifest
from deepsearch_rl.trajectories.collecting.rollout_setting import RolloutSetting
from deepsearch_rl.trajectories.synthesis.scripted_teacher import (
    ScriptedTeacher,
    TeacherConfig,
    read_plan,
)

ServedTeacher: TypeAlias = tuple[Endpoint, JsonValue]
"""A model that is served now, and what its answers depend on."""


class SelfTeacher(Record):
    """Section ``synthesize.self``."""

    model: NonEmpty = Field(description="folder of weights, or of an adapter that names its base")


class SynthesizeConfig(Record):
    """Section ``synthesize``: the teacher and its questions."""

    teacher: Literal["scripted", "endpoint", "self"] = Field(
        description="scripted: generated worlds only"
    )
    dataset: NonEmpty
    split: NonEmpty
    questions: int | None = Field(ge=1, description="the first so many; null: all")
    samples: int = Field(ge=1, description="trajectories per question")
    temperature: float = Field(ge=0)
    scripted: TeacherConfig | None = Field(description="mistakes of the scripted teacher")
    endpoint: RemoteConfig | None = Field(
        description="an OpenAI-compatible server and the variable that holds its key"
    )
    self: SelfTeacher | None = Field(
        description="the model that answers, for teacher self; DVC makes it first"
    )


def synthesize(
    config: SynthesizeConfig,
    setting: RolloutSetting,
    out: Path,
    scratch: Path,
    served: ServedTeacher | None = None,
) -> TrajectoryFile:
    """Write the teacher's trajectories to ``out``, sorted by id, and return them.

    The manifest beside them says which prompt and tool they were made with. ``served`` is the
    teacher ``self``. A killed run goes on from ``scratch``, unless the address or model that
    environment variables name is another one.

    Raise ConfigError where the teacher has no settings, cannot answer these questions or is not the
    graph's; ArtifactError where an input is missing or empty; and as :func:`serve_index` and
    :func:`collect`.
    """
    questions = read_questions(setting.split(config.split), config.questions)
    if (config.teacher == "self") != (served is not None):
        raise ConfigError(
            f"synthesize.teacher is {config.teacher!r}, but the graph's stage synthesize is that of another teacher: "
            "set it in profile.yaml (of tiny: src/deepsearch_rl/presets/tiny.yaml) and run `make params deps`."
        )

    agent = setting.agent
    seed = setting.seed
    teacher, determined_by = served or _teacher(config, questions, seed)
    log = scratch / f"{sha256_json(determined_by)[:16]}.jsonl"

    with serve_index(setting.index, setting.chunks, setting.retrieval) as url:
        agents = partial(
            SearchAgent, agent, teacher, url, config.temperature, model_name="teacher", seed=seed
        )
        artifact = collect(
            questions, config.samples, agents, log, agent.concurrency, "synthesize", out
        )

    write_manifest(out, agent)
    return artifact


def _teacher(
    config: SynthesizeConfig, questions: list[Question], seed: int
) -> tuple[Endpoint | PolicyPerRollout, JsonValue]:
    """Return the teacher, and the address and model that an endpoint's environment variables hold now."""
    if config.teacher == "endpoint":
        if config.endpoint is None:
            raise ConfigError(
                "synthesize.teacher is 'endpoint' but synthesize.endpoint is null; give its address."
            )

        endpoint = open_endpoint(config.endpoint)
        return endpoint, [endpoint.base_url, endpoint.model]

    if (scripted := config.scripted) is None:
        raise ConfigError(
            "synthesize.teacher is 'scripted' but synthesize.scripted is null; give its error rates."
        )

    for question in questions:
        # Refuse a set without plans before the first answer, not in every rollout
        read_plan(question)

    return (lambda question, sample: ScriptedTeacher(question, sample, scripted, seed)), None
