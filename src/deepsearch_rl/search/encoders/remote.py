"""Encoders behind an OpenAI-compatible embeddings endpoint, as OpenAI, vLLM, TEI and llama.cpp serve one.

The client tries again where that can help (408, 409, 5xx, lost connections, time-outs). After 429
it waits for minutes, unless money or a day's quota is out. Anything else is an error at once. All
encoders of a process share the endpoint's limit of requests per minute. The server's index orders
the vectors, not their place in the answer.

An error says whether other texts would fail too (EndpointDownError) or these texts are refused
(EndpointError), so that whoever sent many texts knows whether to send parts of them again. What can
mean either (a status of ``ABOUT_TEXTS`` or 5xx, a lost connection) is decided by one more request
for a harmless text, unless a single text was refused.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import httpx
import numpy as np
from pydantic import BaseModel, Field, ValidationError

from deepsearch_rl.core.daemon_threads import map_in_daemons
from deepsearch_rl.core.errors import EndpointDownError, EndpointError
from deepsearch_rl.core.files import first_problem
from deepsearch_rl.core.rate_limits import rate_limits
from deepsearch_rl.core.records import NonEmpty
from deepsearch_rl.core.redaction import public_address, read_key, redact
from deepsearch_rl.core.retries import no_capacity, wait_for_capacity
from deepsearch_rl.search.encoders.encoder import (
    EncoderConfig,
    Kind,
    Unread,
    Vectors,
    encode_readable,
)

logger = logging.getLogger(__name__)

# Sent to servers without keys, because the client insists on one
NO_KEY = "none"

# And 5xx: some servers fail at a text that they cannot read
ABOUT_TEXTS = frozenset({400, 413, 414, 422})
SERVER_ERROR = 500

# The harmless text: a letter that every tokenizer knows
PROBE = "a"

# How much of a server's complaint an error repeats: some answer with a page of HTML
QUOTED_CHARACTERS = 300


class RemoteEncoderConfig(EncoderConfig):
    """An embeddings endpoint."""

    name: Literal["remote"]
    base_url: NonEmpty = Field(
        description="up to and without /embeddings, e.g. https://api.openai.com/v1"
    )
    model: NonEmpty
    api_key_variable: NonEmpty | None = Field(
        description="environment variable with the key; null: no key"
    )
    dimension: int = Field(ge=1, description="of the model's vectors; anything else is an error")
    query_prefix: str
    passage_prefix: str
    max_characters: int | None = Field(
        ge=1, description="longer texts are cut, prefix included; null: never"
    )
    batch_texts: int = Field(ge=1, description="texts of one request")
    concurrency: int = Field(ge=1, description="requests sent at once")
    timeout_s: float = Field(gt=0, description="of one attempt")
    retries: int = Field(ge=0, description="further attempts of one request")
    requests_per_minute: int | None = Field(
        default=None, ge=1, description="of this process, all texts together; null: no limit"
    )
    rate_limit_wait_s: float = Field(
        default=300.0,
        ge=0,
        description="how long a request may wait in all while the server answers 429",
    )

    def open(self, folder: Path) -> "RemoteEncoder":  # noqa: ARG002 - nothing is learnt
        """See :class:`RemoteEncoder`."""
        return RemoteEncoder(self)


class _Vector(BaseModel):
    """One text's vector, as the server numbers it; other fields are ignored, here and in the answer."""

    index: int
    # Some servers write NaN as null
    embedding: list[float | None]


class _EmbeddingsAnswer(BaseModel):
    data: list[_Vector]


def _leave_capacity_to_us(response: httpx.Response) -> None:
    """Keep the client from repeating after 429 with the few short waits that it has for other failures."""
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        response.headers["x-should-retry"] = "false"


class RemoteEncoder:
    """Asks an embeddings endpoint; may be used from several threads. The key is in no error, log or ``repr``."""

    def __init__(self, config: RemoteEncoderConfig) -> None:
        """Make the client, send nothing; raise as :func:`read_key`."""
        from openai import DefaultHttpxClient, OpenAI  # noqa: PLC0415 - half a second, needed by this encoder alone

        self._config = config
        self._place = public_address(config.base_url) or "index.encoder.base_url"
        self._key = NO_KEY
        if config.api_key_variable is not None:
            self._key = read_key(config.api_key_variable, self._place)
        self.dimension = config.dimension
        self._limits = rate_limits(f"{config.base_url} {config.model}", config.requests_per_minute)
        self._client = OpenAI(
            base_url=config.base_url,
            api_key=self._key,
            timeout=config.timeout_s,
            max_retries=config.retries,
            http_client=DefaultHttpxClient(event_hooks={"response": [_leave_capacity_to_us]}),
        )

    def encode(self, texts: Sequence[str], kind: Kind) -> Vectors:
        """Return embeddings_ND of N texts, each with its side's prefix; blank ones are zero.

        Raises:
            EndpointDownError: the server does not answer, or not with vectors of ``dimension``.
            EndpointError: it refuses these texts.
        """
        return encode_readable(
            texts, self.dimension, lambda readable: self._request_all(readable, kind)
        )

    def count_unread(self, passages: Sequence[str]) -> Unread:
        """Return how many characters of the passages lie behind ``max_characters``."""
        limit = self._config.max_characters
        if limit is None:
            return Unread()
        return Unread.of((len(self._config.passage_prefix + text) for text in passages), limit)

    def _request_all(self, texts: list[str], kind: Kind) -> Vectors:
        config = self._config
        prefix = config.query_prefix if kind == "query" else config.passage_prefix
        inputs = [(prefix + text)[: config.max_characters] for text in texts]

        batches: list[list[str]] = []
        for start in range(0, len(inputs), config.batch_texts):
            batches.append(inputs[start : start + config.batch_texts])

        return np.concatenate(map_in_daemons(self._request, batches, config.concurrency))

    def _request(self, texts: list[str]) -> Vectors:
        import openai  # noqa: PLC0415

        try:
            answer = self._ask(texts)
        except openai.APIStatusError as error:
            problem = f"answered {error.status_code}: {error.message[:QUOTED_CHARACTERS]}"
            kind = (
                EndpointError if self._refuses_only(texts, error.status_code) else EndpointDownError
            )
            raise self._failure(problem, kind) from None
        except openai.APITimeoutError as error:
            raise self._failure(f"did not answer within {self._config.timeout_s:g} s") from error
        except openai.APIConnectionError as error:
            # A server that dies of a text, or of its batch, may answer others
            is_lost = not isinstance(error.__cause__, httpx.ConnectError)
            kind = EndpointError if is_lost and self._answers_others() else EndpointDownError
            raise self._failure(f"cannot be reached ({error.__cause__ or error})", kind) from error

        return self._parse(answer, texts)

    def _parse(self, answer: bytes, texts: list[str]) -> Vectors:
        """Return the embeddings_BD of an answer to B texts; raise where it holds anything else."""
        try:
            vectors = _EmbeddingsAnswer.model_validate_json(answer).data
        except ValidationError as error:
            field, problem = first_problem(error)
            raise self._failure(
                f"answered without embeddings ({field or 'body'}: {problem})"
            ) from None

        vectors.sort(key=lambda vector: vector.index)
        if [vector.index for vector in vectors] != list(range(len(texts))):
            raise self._failure(
                f"answered {len(texts)} texts with {len(vectors)} vectors, or numbered them wrongly"
            )

        rows = [vector.embedding for vector in vectors]
        if lengths := set(map(len, rows)) - {self.dimension}:
            raise self._failure(
                f"gives vectors of dimension {max(lengths)}, where index.encoder.dimension is "
                f"{self.dimension}"
            )

        embeddings_BD = np.array(rows, dtype=np.float32)
        finite_B = np.isfinite(embeddings_BD).all(axis=1)
        if not finite_B.all():
            # Some finite vectors: the server works, and a text of this batch is the reason.
            is_of_texts = finite_B.any() or len(texts) == 1
            text = texts[int(finite_B.argmin())][:QUOTED_CHARACTERS]
            raise self._failure(
                f"gives a vector with numbers that are not finite for {text!r}",
                EndpointError if is_of_texts else EndpointDownError,
            )

        return embeddings_BD

    def _ask(self, texts: list[str]) -> bytes:
        """Return the body of the server's answer, after waits while it takes no more requests.

        Raise as the client, for 429 after ``rate_limit_wait_s``, or at once where money or a day's
        quota is out.
        """
        import openai  # noqa: PLC0415

        def log(failure: BaseException, attempt: int) -> None:
            logger.warning(
                "%s", self._failure(f"takes no more requests now ({failure}), attempt {attempt}")
            )

        @wait_for_capacity(self._config.rate_limit_wait_s, log)
        def take_turn() -> bytes:
            """Send one request as soon as the limits allow it."""
            self._limits.wait_in_thread()
            try:
                answer = self._client.embeddings.with_raw_response.create(
                    input=texts, model=self._config.model, encoding_format="float"
                )
            except openai.RateLimitError as error:
                full = no_capacity(str(error), error.response.headers, error.response.text)
                if full is None:
                    raise
                raise full from error

            return answer.content

        return take_turn()

    def _refuses_only(self, texts: list[str], status: int) -> bool:
        """Return whether an error of this status is about these texts, and others would be answered."""
        is_refusal = status in ABOUT_TEXTS
        if not is_refusal and status < SERVER_ERROR:
            return False
        if is_refusal and len(texts) == 1:
            return True
        return self._answers_others()

    def _answers_others(self) -> bool:
        """Return whether the server answers a harmless text now."""
        import openai  # noqa: PLC0415

        probing = self._client.with_options(max_retries=0)

        try:
            probing.embeddings.with_raw_response.create(
                input=[PROBE], model=self._config.model, encoding_format="float"
            )
        except openai.OpenAIError:
            return False

        return True

    def _failure(
        self, problem: str, kind: type[EndpointError] = EndpointDownError
    ) -> EndpointError:
        secret = None if self._key == NO_KEY else self._key
        return kind(f"the embeddings server at {self._place} {redact(problem, [secret])}.")
