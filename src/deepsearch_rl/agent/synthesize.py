"""Teacher trajectories for the training questions.

The teacher answers through the same agent, tool and retriever as any model.
:mod:`deepsearch_rl.agent.teachers` says who it can be.
"""

from functools import partial
from pathlib import Path

from pydantic import Field

from deepsearch_rl.agent.collect import (
    BulkRun,
    TrajectoryFile,
    collect,
    read_questions,
)
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.agent.rollout_setting import RolloutSetting
from deepsearch_rl.agent.scripted_config import ScriptedConfig
from deepsearch_rl.agent.teacher_manifest import write_manifest
from deepsearch_rl.agent.teachers import open_teacher
from deepsearch_rl.core.files import sha256_json
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.serve.launch import ServingConfig
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
        open_teacher(config.teacher, config.scripted, questions, setting, serving) as teacher,
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
