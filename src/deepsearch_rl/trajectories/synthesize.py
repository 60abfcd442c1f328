"""Teacher trajectories for the training questions.

The teacher answers through the same agent, tool and retriever as any model.
"""

from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from pydantic import Field, JsonValue

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.endpoint import Endpoint
from deepsearch_rl.agent.rollout import PolicyPerRollout, SearchAgent
from deepsearch_rl.agent.teacher import ScriptedTeacher, TeacherConfig, read_plan
from deepsearch_rl.errors import ArtifactError, ConfigError, UnknownNameError
from deepsearch_rl.files import read_distinct, sha256_file
from deepsearch_rl.records import NonEmpty, Question, Record
from deepsearch_rl.retrieval.manifest import digest_index
from deepsearch_rl.retrieval.server.launch import RetrievalConfig, serve_index
from deepsearch_rl.serving.remote import RemoteConfig, open_endpoint
from deepsearch_rl.trajectories.collect import collect, log_path, times_path


class SynthesizeConfig(Record):
    """Section ``synthesize``: the teacher and its questions."""

    teacher: str = Field(description="scripted (generated worlds only) or endpoint")
    dataset: NonEmpty
    split: NonEmpty
    questions: int | None = Field(ge=1, description="the first so many; null: all")
    samples: int = Field(ge=1, description="trajectories per question")
    temperature: float = Field(ge=0)
    scripted: TeacherConfig | None = Field(description="mistakes of the scripted teacher")
    endpoint: RemoteConfig | None = Field(description="an OpenAI-compatible server and the variable that holds its key")


@dataclass(frozen=True, slots=True)
class Source:
    """The questions to answer and the index to search."""

    questions: Path
    index: Path
    chunks: Path


def synthesize(
    config: SynthesizeConfig, agent: AgentConfig, retrieval: RetrievalConfig, source: Source, seed: int, out: Path
) -> int:
    """Write the teacher's trajectories to ``out``, sorted by id, and return how many there are.

    Raise ConfigError where the teacher is unknown, has no settings, or cannot answer these questions; ArtifactError
    where an input is missing or empty; and as :func:`serve_index` and :func:`collect`.
    """
    questions = list(islice(read_distinct(source.questions, Question), config.questions))
    if not questions:
        raise ArtifactError(f"{source.questions} holds no questions, so there is nothing to synthesize.")
    teacher, address = _teacher(config, questions, seed)
    settings = [config.model_dump(mode="json"), agent.rollout_fingerprint(), retrieval.search_fingerprint()]
    inputs = [digest_index(source.index), sha256_file(source.questions)]
    log = log_path("synthesize", [*settings, *inputs, seed, address])
    with serve_index(source.index, source.chunks, retrieval) as url:
        agents = partial(SearchAgent, agent, teacher, url, config.temperature, model_name="teacher", seed=seed)
        artifact = collect(questions, config.samples, agents, log, agent.concurrency, "synthesize", out)
    if not artifact.server_failures:
        log.unlink()  # the artifact is complete; a forced run must ask again
        times_path(log).unlink()
    return artifact.count


def _teacher(
    config: SynthesizeConfig, questions: list[Question], seed: int
) -> tuple[Endpoint | PolicyPerRollout, JsonValue]:
    """Return the teacher, and the address and model that an endpoint's environment variables hold now."""
    if config.teacher == "endpoint":
        if config.endpoint is None:
            raise ConfigError("synthesize.teacher is 'endpoint' but synthesize.endpoint is null; give its address.")
        endpoint = open_endpoint(config.endpoint)
        return endpoint, [endpoint.base_url, endpoint.model]
    scripted = config.scripted
    if config.teacher != "scripted":
        raise UnknownNameError("teacher", config.teacher, ("scripted", "endpoint"))
    if scripted is None:
        raise ConfigError("synthesize.teacher is 'scripted' but synthesize.scripted is null; give its error rates.")
    for question in questions:
        read_plan(question)  # refuse a set without plans before the first answer, not in every rollout
    return (lambda question, sample: ScriptedTeacher(question, sample, scripted, seed)), None
