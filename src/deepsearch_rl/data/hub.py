"""Files of pinned Hugging Face dataset repositories.

A download resumes after a kill (``hf_hub_download`` 1.33 starts again). A file grows under
``<name>.partial`` and gets its own name only when its digest is the expected one: the config's or,
where that is null, the one that the hub publishes for the revision (SHA-256 for large files, git's
blob SHA-1 for small ones).
"""

import logging
import re
from pathlib import Path
from typing import Annotated

import httpx
from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.utils.sha import git_hash
from pydantic import Field

from deepsearch_rl.core.errors import CheckFailedError, EndpointError
from deepsearch_rl.core.files import sha256_file
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import Record
from deepsearch_rl.core.redaction import mask_users
from deepsearch_rl.core.retries import retry

logger = logging.getLogger(__name__)

TIMEOUT_S = 30.0
RECONNECT_WAIT_S = 2.0

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


def fetch(config: HubConfig, root: Path) -> None:
    """Complete every file of the config under ``root/<folder>/``; files with the right digest stay.

    Raises EndpointError if the hub does not give a file, CheckFailedError if its digest is not the
    expected one.
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
                # Of a pinned revision the server's own digest will do: it finds a file that was cut
                # off
                expected = digest or get_hf_file_metadata(url, endpoint=config.endpoint).etag or ""
                if not re.fullmatch(DIGEST_PATTERN, expected):
                    raise EndpointError(
                        f"{mask_users(url)}: the server names no digest ({expected!r}); give the SHA-256 in "
                        "the parameters."
                    )

                _fetch_file(url, root / folder / name, expected, config.attempts)
            except httpx.HTTPError as error:
                problem = f"{url} was not fetched: {str(error) or type(error).__name__}"
                raise EndpointError(
                    f"{mask_users(problem)}. Check the "
                    "network and the names in the parameters; running the command again continues "
                    "where it stopped."
                ) from error


def _fetch_file(url: str, path: Path, expected: str, attempts: int) -> None:
    """Append the rest of a file, reconnecting after a break until no attempt is left, and check its digest."""

    def warn(error: BaseException, attempt: int) -> None:
        problem = mask_users(f"{url} broke off ({error})")
        logger.warning("%s; %d attempts left", problem, attempts - attempt)

    if path.is_file() and file_digest(path, expected) == expected:
        return

    # With the digest in its name, a partial file of another revision is never continued with this
    # one.
    partial = path.with_name(f"{path.name}.{expected[:12]}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)

    # A break after some bytes is no sign of a server that is overloaded: the wait does not grow.
    reconnecting = retry(
        attempts, RECONNECT_WAIT_S, httpx.TransportError, warn, max_wait_s=RECONNECT_WAIT_S
    )
    reconnecting(_append)(url, partial)

    digest = file_digest(partial, expected)
    if digest != expected:
        partial.unlink()
        raise CheckFailedError(
            f"{mask_users(url)} arrived with the digest {digest}, not {expected}; what arrived was deleted. "
            "Run the command again; if it happens again, the server has another file or the digest "
            "in the parameters is wrong."
        )

    partial.replace(path)


def _append(url: str, partial: Path) -> None:
    have_bytes = partial.stat().st_size if partial.exists() else 0

    # Of compressed bytes no place in the file could be asked for.
    headers = {"Accept-Encoding": "identity", "Range": f"bytes={have_bytes}-"}

    with httpx.stream(
        "GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S
    ) as response:
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            # There is nothing beyond what is here; the digest decides whether that is right
            return

        response.raise_for_status()

        # A server without ranges sends the file from its beginning.
        if response.status_code != httpx.codes.PARTIAL_CONTENT:
            have_bytes = 0
        total_bytes = have_bytes + int(response.headers.get("Content-Length", 0))

        with (
            partial.open("ab" if have_bytes else "wb") as out,
            ProgressBar(url, total_bytes, "bytes") as bar,
        ):
            bar.advance(have_bytes)
            for block in response.iter_raw():
                out.write(block)
                bar.advance(len(block))


def file_digest(path: Path, like: str) -> str:
    """Return the SHA-256 of a file or, where ``like`` has 40 digits, its git blob SHA-1."""
    return git_hash(path.read_bytes()) if len(like) == 40 else sha256_file(path)
