"""Starting, checking and stopping the model server that a profile names.

    with serve_model(folder, config) as endpoint:
        ...  # OpenAI-compatible, stopped at the end of the block

The folder holds a model, or an adapter that names its base (:mod:`deepsearch_rl.serve.adapters`).

Backends: ``cpu`` (our own engine over transformers' models) and ``vllm`` (GPU), each a program in a
process of its own. A folder that describes a server which runs already
(:mod:`deepsearch_rl.chat.endpoint`) needs neither.
"""

import contextlib
import json
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from deepsearch_rl.chat.endpoint import Endpoint, open_endpoint, read_remote
from deepsearch_rl.chat.prompts import prompt_opens_thought
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import sha256_json
from deepsearch_rl.core.hardware import Threads, require_gpu
from deepsearch_rl.core.processes import LOOPBACK, free_port, starting_server
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.serve.adapters import Adapter, read_adapter, served_rank
from deepsearch_rl.serve.fit import Room, require_fit

ServingBackend = Literal["cpu", "vllm"]


SERVED_NAME = "policy"
# Of a base that is served below its adapters
BASE_NAME = "base"


class CpuConfig(Record):
    """Section ``serving.cpu``."""

    slots: int = Field(
        ge=2,
        description="conversations whose keys and values are kept; half of them can run at once",
    )
    context_tokens: int = Field(ge=1, description="longest prompt plus answer")
    dtype: Literal["float32", "bfloat16"] = Field(
        description="of weights, keys and values; in float32 alone are answers equal byte for byte"
    )
    servers: int = Field(
        ge=1,
        # Answers do not depend on it, so no digest of settings may
        exclude=True,
        description="that an evaluation starts and shares its rollouts among: one for each idle core",
    )
    threads: Threads = Field(description="of each server; null: as many as cores")
    start_timeout_s: float = Field(gt=0, description="how long the server may take to load")

    def room(self, servers: int) -> Room:
        """Return what so many servers are told to keep."""
        fields = (f"serving.cpu.{name}" for name in ("slots", "context_tokens", "dtype"))
        return Room(self.slots, self.context_tokens, self.dtype, servers, *fields)


class VllmConfig(Record):
    """Section ``serving.vllm``."""

    dtype: NonEmpty = Field(description="of weights and activations, e.g. bfloat16")
    max_model_len: int = Field(ge=1, description="longest prompt plus answer, tokens")
    max_num_seqs: int = Field(ge=1, description="requests decoded together")
    gpu_memory_utilization: float = Field(
        gt=0, le=1, description="share of the GPU's memory that vLLM takes"
    )
    enforce_eager: bool = Field(
        description="no CUDA graphs: slower decoding, a sooner start; rl.sampler has its own"
    )
    tool_call_parser: NonEmpty = Field(
        description="vLLM's name of the model's tool call format, e.g. hermes"
    )
    reasoning_parser: NonEmpty | None = Field(
        description="vLLM's name of the model's think format, e.g. qwen3; null: for models that do not think"
    )
    seed: int = Field(ge=0)
    start_timeout_s: float = Field(
        gt=0, description="how long the server may take to load and compile"
    )


class ServingConfig(Record):
    """Params section ``serving``: the backend by name, and the settings of each that the profile may use."""

    backend: ServingBackend
    cpu: CpuConfig | None = None
    vllm: VllmConfig | None = None

    def digest_of_answers(self) -> str:
        """Return the SHA-256 of how weights are served: backend and settings that change an answer."""
        settings: CpuConfig | VllmConfig | None = getattr(self, self.backend)
        fields = settings and settings.model_dump(mode="json", exclude={"start_timeout_s"})
        return sha256_json([self.backend, fields])


def require_backend(config: ServingConfig) -> CpuConfig | VllmConfig:
    """Return the settings of the named backend after checking, before anything is read or started, that it can run.

    Raises ConfigError if it has no settings in params, UnavailableError if it needs a GPU or
    package that is not here.
    """
    settings = getattr(config, config.backend)
    if settings is None:
        raise ConfigError(
            f"serving.backend is {config.backend!r} but params have no serving.{config.backend} section."
        )

    if config.backend == "vllm":
        require_gpu("serving with vllm", packages=["vllm"])
    return settings


@contextlib.contextmanager
def serve_model(folder: Path, config: ServingConfig) -> Iterator[Endpoint]:
    """Serve a model folder, or reach the server that it describes, and yield where the model answers.

    Raises as :func:`start_model` and the function that it yields.
    """
    with start_model(folder, config) as wait_for_model:
        yield wait_for_model()


@contextlib.contextmanager
def serve_models(folder: Path, config: ServingConfig) -> Iterator[list[Endpoint]]:
    """Serve a folder as :func:`serve_model`, with as many servers as ``serving.cpu.servers`` says.

    A GPU, or a server that runs already, is one endpoint.
    """
    is_on_cpu = config.backend == "cpu" and read_remote(folder) is None
    count = config.cpu.servers if is_on_cpu and config.cpu else 1

    with contextlib.ExitStack() as servers:
        # They load side by side
        starting = (start_model(folder, config, count) for _ in range(count))
        waits = [servers.enter_context(server) for server in starting]
        yield [wait_for_model() for wait_for_model in waits]


@contextlib.contextmanager
def start_model(
    folder: Path, config: ServingConfig, servers: int = 1
) -> Iterator[Callable[[], Endpoint]]:
    """Start what :func:`serve_model` serves, and yield a function that waits until it answers and returns where.

    A model takes seconds to load, in which the caller can start and load other things. ``servers``
    is how many of it share this machine's memory.

    Raises as :func:`require_backend`, :func:`read_adapter`, :func:`require_fit` and
    :func:`open_endpoint`; ArtifactError if ``folder`` holds no model. The function raises
    EndpointError, with the server's last lines, if it ended or did not answer in time.
    """
    remote = read_remote(folder)
    if remote is not None:
        endpoint = open_endpoint(remote)
        yield lambda: endpoint
        return

    settings = require_backend(config)
    adapter = read_adapter(folder)
    base = adapter.base if adapter else folder

    if not (base / "config.json").is_file():
        raise ArtifactError(
            f"{folder} holds no model (config.json is missing); run the stage that makes it first."
        )

    listener = None

    if isinstance(settings, CpuConfig):
        require_fit(base, settings.room(servers))
        # Bound here and inherited, so that no other program takes the port in between
        listener = socket.create_server((LOOPBACK, 0))
        port = listener.getsockname()[1]
        arguments = [listener.fileno(), base, SERVED_NAME, _one_server(settings)]
        arguments += [adapter.folder] if adapter else []
        command = [sys.executable, "-m", "deepsearch_rl.serve.chat_process", *map(str, arguments)]
    else:
        # vLLM takes no open socket
        port = free_port()
        flags = adapter_flags(adapter) if adapter else ()
        command = vllm_serve_command(base, settings, port, flags)

        # The one installed beside this interpreter
        command[0] = str(Path(sys.executable).with_name("vllm"))

    url = f"http://{LOOPBACK}:{port}"
    splits_thoughts = isinstance(settings, VllmConfig) and settings.reasoning_parser is not None
    begins_in_thought = not splits_thoughts and prompt_opens_thought(base)
    endpoint = Endpoint(f"{url}/v1", SERVED_NAME, "EMPTY", begins_in_thought)
    name = "the model server"
    with starting_server(name, command, url, "/health", listener=listener) as server:

        def wait_for_model() -> Endpoint:
            server.wait_until_healthy(settings.start_timeout_s)
            return endpoint

        yield wait_for_model


def _one_server(config: CpuConfig) -> str:
    """Return the settings of one server as JSON."""
    return json.dumps({**config.model_dump(mode="json"), "servers": 1})


def adapter_flags(adapter: Adapter) -> list[str]:
    """Return the flags of ``vllm serve`` for an adapter beside its base; raise as :func:`served_rank`."""
    rank = served_rank(adapter.rank, str(adapter.folder))
    modules = ["--lora-modules", f"{SERVED_NAME}={adapter.folder}"]
    return ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", "1", *modules]


def vllm_serve_command(
    folder: Path, config: VllmConfig, port: int, lora: Sequence[str] = ()
) -> list[str]:
    """Return the ``vllm serve`` call for a 16-bit model folder on a loopback port (vLLM 0.32).

    ``lora`` are the flags of adapters that are served beside it; the base is then called ``base``.
    Departures from vLLM's defaults: ``--generation-config vllm``, because the model folder's own
    file would add top-k and top-p to every request; token ids in the log-probabilities, so that a
    trainer reads the very tokens that were sampled.
    """
    flags: dict[str, object] = {
        "served-model-name": BASE_NAME if lora else SERVED_NAME,
        "host": LOOPBACK,
        "port": port,
        "dtype": config.dtype,
        "max-model-len": config.max_model_len,
        "max-num-seqs": config.max_num_seqs,
        "gpu-memory-utilization": config.gpu_memory_utilization,
        "tool-call-parser": config.tool_call_parser,
        "generation-config": "vllm",
        "seed": config.seed,
    }
    if config.reasoning_parser is not None:
        flags["reasoning-parser"] = config.reasoning_parser

    command = ["vllm", "serve", str(folder)]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    command += ["--enable-auto-tool-choice", "--return-tokens-as-token-ids"]
    if config.enforce_eager:
        command.append("--enforce-eager")
    return [*command, *(lora or ["--no-enable-lora"])]
