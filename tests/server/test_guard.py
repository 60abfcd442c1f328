from collections.abc import Iterator

import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from deepsearch_rl.server.requests import Guard, is_loopback
from deepsearch_rl.server.service import make_app
from tests.server.searchers import engine, open_searcher, service_config

ROUTES = [
    ("POST", "/retrieve"),
    ("POST", "/access"),
    ("GET", "/metrics"),
    ("POST", "/mcp"),
    ("GET", "/sse"),
    ("POST", "/messages/?session_id=0"),
    ("GET", "/nowhere"),
]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """A client of a server that wants a token."""
    guard = Guard(b"sesame", loopback=False)
    with TestClient(make_app(engine(open_searcher()), service_config(), guard)) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic sesame"}]
)
def test_every_route_wants_the_token(
    client: TestClient, method: str, path: str, header: dict[str, str]
) -> None:
    answer = client.request(method, path, headers=header)
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "sesame" not in answer.text


def test_the_token_opens_and_health_needs_none(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    answer = client.post(
        "/retrieve", json={"queries": ["a"]}, headers={"Authorization": "bearer sesame"}
    )
    assert answer.status_code == 200


def test_a_guard_does_not_show_its_token() -> None:
    assert "sesame" not in repr(Guard(b"sesame", loopback=True))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.7", False),
        ("example.org", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_loopback_is_told_from_other_addresses(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"host": b"127.0.0.1:8000"},
        {b"host": b"localhost"},
        {b"host": b"[::1]:8000", b"origin": b"http://localhost:3000"},
    ],
)
def test_names_of_this_machine_pass(headers: object) -> None:
    Guard(None, loopback=True).check_names(headers)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({b"host": b"evil.example"}, 421),
        ({b"host": b"127.0.0.1.evil.example:8000"}, 421),
        ({b"host": b"[::1"}, 421),
        ({b"host": b"localhost", b"origin": b"https://evil.example"}, 403),
        ({b"host": b"localhost", b"origin": b"null"}, 403),
    ],
)
def test_names_that_a_browser_was_led_to_are_refused_on_loopback_alone(
    headers: object, status: int
) -> None:
    with pytest.raises(HTTPException) as raised:
        Guard(None, loopback=True).check_names(headers)
    assert raised.value.status_code == status
    Guard(None, loopback=False).check_names(headers)
