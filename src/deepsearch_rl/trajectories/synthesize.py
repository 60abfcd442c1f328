"""Teacher trajectories: the training questions answered through the same agent, tool and retriever as any model's."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import Field, JsonValue, field_validator

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.endpoint import Endpoint
from deepsearch_rl.agent.rollout import PolicyPerRollout, SearchAgent
from deepsearch_rl.agent.teacher import ScriptedTeacher, TeacherConfig, read_plan
from deepsearch_rl.errors import ArtifactError, ConfigError, UnknownNameError
from deepsearch_rl.files import read_distinct, sha256_file
from deepsearch_rl.records import NonEmpty, Question, Record
from deepsearch_rl.retrieval.manifest import digest_index
from deepsearch_rl.retrieval.server.launch import RetrievalConfig, serve_index
from deepsearch_rl.serving.remote import RemoteConfig, open_endpoint, resolve_endpoint
from deepsearch_rl.trajectories.collect import collect, log_path

TEACHERS = ("scripted", "endpoint")
MODEL_NAME = "teacher"
"""What trajectories of a teacher name as their model."""


class SynthesizeConfig(Record):
    """Section ``synthesize``: who teaches, and which questions.

    Raises:
        UnknownNameError: ``teacher`` is not a known name.
    """

    teacher: str = Field(description="scripted (generated worlds only) or endpoint")
    dataset: NonEmpty
    split: NonEmpty
    questions: int | None = Field(ge=1, description="the first so many; null: all")
    samples: int = Field(ge=1, description="trajectories per question")
    temperature: float = Field(ge=0)
    scripted: TeacherConfig | None = Field(description="mistakes of the scripted teacher")
    endpoint: RemoteConfig | None = Field(description="an OpenAI-compatible server and the variable that holds its key")

    @field_validator("teacher")
    @classmethod
    def _known_teacher(cls, name: str) -> str:
        if name not in TEACHERS:
            raise UnknownNameError("teacher", name, TEACHERS)
        return name


@dataclass(frozen=True, slots=True)
class Source:
    """What is asked and what is searched."""

    questions: Path
    index: Path
    chunks: Path


def synthesize(
    config: SynthesizeConfig, agent: AgentConfig, retrieval: RetrievalConfig, source: Source, seed: int, out: Path
) -> int:
    """Write the teacher's trajectories to ``out``, sorted by id, and return how many there are.

    Raises:
        ConfigError: the teacher has no settings, or cannot answer these questions.
        ArtifactError: an input is missing or empty.
        EndpointError: a server does not answer.
    """
    questions = list(islice(read_distinct(source.questions, Question), config.questions))
    if not questions:
        raise ArtifactError(f"{source.questions} holds no questions, so there is nothing to synthesize.")
    determined_by: list[JsonValue] = [
        config.model_dump(mode="json"),
        agent.digest_of_rollouts(),
        retrieval.digest_of_searches(),
        digest_index(source.index),
        sha256_file(source.questions),
        seed,
        _asked(config),
    ]
    log = log_path("synthesize", determined_by)
    with _teacher(config, questions, seed) as teacher, serve_index(source.index, source.chunks, retrieval) as url:

        def make_agent() -> SearchAgent:
            return SearchAgent(agent, teacher, url, config.temperature, model_name=MODEL_NAME, seed=seed)

        found = collect(questions, config.samples, make_agent, log, agent.concurrency, "synthesize", out)
    if not found.server_failures:
        log.unlink()  # the artifact is whole; a forced run is to ask again
    return len(found)


def _asked(config: SynthesizeConfig) -> JsonValue:
    """The address and the model's name that an endpoint's environment variables hold now."""
    if config.teacher != "endpoint" or config.endpoint is None:
        return None
    endpoint = resolve_endpoint(config.endpoint)
    return [endpoint.base_url, endpoint.model]


@contextmanager
def _teacher(config: SynthesizeConfig, questions: list[Question], seed: int) -> Iterator[Endpoint | PolicyPerRollout]:
    if config.teacher == "endpoint":
        if config.endpoint is None:
            raise ConfigError("synthesize.teacher is 'endpoint' but synthesize.endpoint is null; give its address.")
        yield open_endpoint(config.endpoint)
    elif config.scripted is None:
        raise ConfigError("synthesize.teacher is 'scripted' but synthesize.scripted is null; give its error rates.")
    else:
        yield _scripted(config.scripted, questions, seed)


def _scripted(config: TeacherConfig, questions: list[Question], seed: int) -> PolicyPerRollout:
    for question in questions:
        read_plan(question)  # refuse a set without plans before the first answer, not in every rollout
    return lambda question, sample: ScriptedTeacher(question, sample, config, seed)
