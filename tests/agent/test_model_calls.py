"""One call of a model server, from the request to the completion, and what it logs."""

import asyncio
import base64
import logging
from dataclasses import replace

import pytest

from deepsearch_rl.endpoints.address import Endpoint
from deepsearch_rl.endpoints.completion import Completion
from deepsearch_rl.endpoints.endpoint import complete, open_client
from tests.agent.conftest import ANSWER, KEY, ChatServer, completion, response


def ask(endpoint: Endpoint, timeout_s: float = 20.0) -> Completion:
    messages = [{"role": "user", "content": "Who?"}]

    async def once() -> Completion:
        async with open_client(endpoint, timeout_s) as client:
            return await complete(
                client, endpoint.options, model=endpoint.model, messages=messages, max_tokens=9
            )

    return asyncio.run(once())


@pytest.mark.parametrize("status", [429, 200])
def test_no_secret_that_a_server_repeats_reaches_the_log(
    chat_server: ChatServer, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    """A full server and a failed generation are logged, and asked again."""
    login = "somebody:pass-word"
    said = f"{KEY} of {base64.b64encode(login.encode()).decode()} for {login}"
    body = {"error": {"message": f"the limit of {said} is reached"}}
    chat_server.script.append(response(body, status, **{"retry-after-ms": "1"}))
    chat_server.script.append(completion(ANSWER))

    address = chat_server.url.replace("://", f"://{login}@")
    endpoint = replace(chat_server.endpoint, base_url=address)
    with caplog.at_level(logging.DEBUG, "deepsearch_rl"):
        assert ask(endpoint).message.text == ANSWER
    assert "the limit of *** of *** for *** is reached" in caplog.text
