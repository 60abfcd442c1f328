"""Files of pinned Hugging Face dataset repositories.

A download continues after a kill, which ``hf_hub_download`` (1.33) does not. A file grows under
``<name>.<digest>.partial`` and gets its own name when its digest is the expected one: the config's
or, if that is null, the one that the hub publishes for the revision (SHA-256 for large files, git's
blob SHA-1 for small ones).
"""

import logging
import re
from pathlib import Path
from typing import Annotated

import httpx
from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils.sha import git_hash
from pydantic import Field

from deepsearch_rl.core.errors import CheckFailedError, EndpointError
from deepsearch_rl.core.files import sha256_file
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import Record
from deepsearch_rl.core.redaction import mask_users
from deepsearch_rl.core.retries import retry, retry_after_s

logger = logging.getLogger(__name__)

TIMEOUT_S = 30.0
RECONNECT_WAIT_S = 2.0
# The hub's rate limits are per five minutes
MAX_WAIT_S = 300.0

DIGEST_PATTERN = r"[0-9a-f]{64}|[0-9a-f]{40}"
Digest = Annotated[str, Field(pattern=f"^({DIGEST_PATTERN})$")]


class HubRepository(Record):
    """Some files of a dataset repository at one commit."""

    repository: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="owner/name")
    revision: str = Field(pattern=r"^[0-9a-f]{40}$", description="full commit hash; branches move")
    files: dict[str, Digest | None] = Field(
        description="path in the repository -> SHA-256, or null for the hub's own"
    )


class HubConfig(Record):
    """What to fetch before the folder is read."""

    endpoint: str = Field(pattern=r"^https?://", description="the hub, or a mirror of it")
    attempts: int = Field(ge=1, description="connections per file before giving up")
    repositories: dict[str, HubRepository] = Field(
        description="folder below the root -> what is fetched into it"
    )


class _InterruptedError(Exception):
    """A request that another attempt may complete; ``wait_s`` seconds later, or with back-off if None."""

    def __init__(self, reason: object, wait_s: float | None) -> None:
        super().__init__(str(reason))
        self.wait_s = wait_s


def fetch(config: HubConfig, root: Path) -> None:
    """Complete every file of the config under ``root/<folder>/``; files with the right digest stay.

    Broken connections and answers of status 429 or 5xx are tried again. A finished file is looked at
    without the hub where the config has its digest.

    Raises:
        EndpointError: the hub does not provide a file.
        CheckFailedError: a file does not have the expected digest.
    """
    for folder, repository in config.repositories.items():
        for name, digest in repository.files.items():
            url = hf_hub_url(
                repository.repository,
                name,
                repo_type="dataset",
                revision=repository.revision,
                endpoint=config.endpoint,
            )
            try:
                expected = digest or get_hf_file_metadata(url, endpoint=config.endpoint).etag or ""
                if not re.fullmatch(DIGEST_PATTERN, expected):
                    raise EndpointError(
                        f"{mask_users(url)}: the server names no digest ({expected!r}); write the file's SHA-256 "
                        "into the parameters."
                    )

                _fetch_file(url, root / folder / name, expected, config.attempts)
            except (httpx.HTTPError, OfflineModeIsEnabled, _InterruptedError) as error:
                problem = f"{url} was not fetched: {str(error) or type(error).__name__}"
                path = root / folder / name
                finished = ""
                if digest is None and path.is_file():
                    finished = (
                        f" {path} needs no hub where the parameters name its digest in place of null: "
                        f"{sha256_file(path)}."
                    )
                raise EndpointError(
                    f"{mask_users(problem)}. Check the network and the names in the parameters; "
                    f"the next run continues where this one stopped.{finished}"
                ) from error


def _fetch_file(url: str, path: Path, expected: str, attempts: int) -> None:
    def warn(error: BaseException, attempt: int) -> None:
        left = attempts - attempt
        logger.warning("%s; %d attempts left", mask_users(f"{url} broke off ({error})"), left)

    if path.is_file() and file_digest(path, expected) == expected:
        return

    # The digest in its name: a partial file of another revision must not be continued
    partial = path.with_name(f"{path.name}.{expected[:12]}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    retried = retry(attempts, RECONNECT_WAIT_S, _InterruptedError, warn, max_wait_s=MAX_WAIT_S)
    retried(_append)(url, partial)

    digest = file_digest(partial, expected)
    if digest != expected:
        partial.unlink()
        raise CheckFailedError(
            f"{mask_users(url)} arrived with the digest {digest}, not {expected}, and was deleted. Run the command "
            "again; if it happens again, the server has a different file or the digest in the parameters is wrong."
        )

    partial.replace(path)


def _append(url: str, partial: Path) -> None:
    """Append the rest of a file; raise _InterruptedError if another attempt may complete it."""
    have_bytes = partial.stat().st_size if partial.exists() else 0
    # A range of compressed bytes would be meaningless
    headers = {"Accept-Encoding": "identity", "Range": f"bytes={have_bytes}-"}

    try:
        with httpx.stream(
            "GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S
        ) as response:
            status = response.status_code
            if status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                # Nothing is missing; the digest decides whether the file is right
                return
            if status == httpx.codes.TOO_MANY_REQUESTS or response.is_server_error:
                raise _InterruptedError(f"status {status}", retry_after_s(response.headers))
            response.raise_for_status()

            # A server without ranges sends the whole file
            if status != httpx.codes.PARTIAL_CONTENT:
                have_bytes = 0
            total_bytes = have_bytes + int(response.headers.get("Content-Length", 0))

            with (
                partial.open("ab" if have_bytes else "wb") as out,
                ProgressBar(mask_users(url), total_bytes, "bytes") as bar,
            ):
                bar.advance(have_bytes)
                for block in response.iter_raw():
                    out.write(block)
                    bar.advance(len(block))
    except httpx.TransportError as error:
        # A break is no sign of overload, so the wait does not grow
        raise _InterruptedError(error or type(error).__name__, RECONNECT_WAIT_S) from error


def file_digest(path: Path, like: str) -> str:
    """Return the SHA-256 of a file, or its git blob SHA-1 if ``like`` has 40 digits."""
    return git_hash(path.read_bytes()) if len(like) == 40 else sha256_file(path)
