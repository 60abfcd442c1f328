"""Who answers the training questions: a folder, as those of `models` are.

- weights, or an adapter that names its base: the model is served as the section `serving` says.
  `synthesize.teacher: models/tiny/base` lets a model learn from its own right answers;
- an ``endpoint.json``: the model behind that address;
- :data:`SCRIPTED`, this package's own code: the scripted teacher of the generated worlds.

DVC makes the folder first where a stage does, and runs `synthesize` again where it changes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from deepsearch_rl.agent.rollout import PolicyPerRollout
from deepsearch_rl.agent.rollout_setting import RolloutSetting
from deepsearch_rl.agent.scripted_config import SCRIPTED, ScriptedConfig
from deepsearch_rl.chat.address import Endpoint
from deepsearch_rl.chat.remote import open_endpoint, read_remote
from deepsearch_rl.chat.trained_with import require_trained_with, served_with
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.records import Question
from deepsearch_rl.serve.adapters import digest_weights, tokenizer_folder
from deepsearch_rl.serve.launch import ServingConfig, serve_model


@dataclass(frozen=True, slots=True)
class Teacher:
    """A teacher that answers now, and what its answers depend on besides params and questions."""

    policy: Endpoint | PolicyPerRollout
    determined_by: JsonValue


@contextmanager
def open_teacher(
    name: str,
    scripted: ScriptedConfig | None,
    questions: Sequence[Question],
    setting: RolloutSetting,
    serving: ServingConfig,
) -> Iterator[Teacher]:
    """Open the teacher in the folder ``name``; a model with weights is served until the block ends.

    Raises:
        ConfigError: there is no such folder, the scripted teacher has no error rates or cannot
            answer these questions, an environment variable of an endpoint is not set, or the
            model was trained with another prompt.
        EndpointError: nothing answers at the endpoint's address.
    """
    folder = Path(name)
    if name.rstrip("/") == SCRIPTED:
        yield Teacher(_scripted(scripted, questions, setting.seed), None)
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


def _scripted(
    config: ScriptedConfig | None, questions: Sequence[Question], seed: int
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

    return lambda question, sample: ScriptedTeacher(question, sample, config, seed)
