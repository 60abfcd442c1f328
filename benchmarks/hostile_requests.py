"""Requests that no honest client sends: broken HTTP, broken JSON, wrong types, absurd sizes, half of everything.

All are drawn from one ``random.Random``, so that a seed names them. There is one maker of bytes for
each way of being hostile; most of them damage an honest body of ``DIALECTS``.
"""

import json
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pydantic import JsonValue

Headers = tuple[tuple[str, str], ...]
JSON_HEADERS: Headers = (
    ("Content-Type", "application/json"),
    ("Accept", "application/json, text/event-stream"),
)
PAGE = "http://w/index.php/Vienna"
LIVE_SESSION = b"f" * 32
"""Stands for the id of an open event stream, which whoever sends the request puts in its place."""
MESSAGES = f"/messages/?session_id={LIVE_SESSION.decode()}"
MCP_ENVELOPE = {"jsonrpc": "2.0", "id": 1}
_CALL: JsonValue = {"name": "retrieve", "arguments": {"query": "comet"}}
_CLIENT: JsonValue = {
    "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "client", "version": "1"},
}  # fmt: skip
DIALECTS: dict[str, list[dict[str, JsonValue]]] = {
    "/retrieve": [{"queries": ["comet", "river Danube"], "topk": 2, "return_scores": True}],
    "/access": [{"urls": [PAGE]}],
    "/mcp": [
        {**MCP_ENVELOPE, "method": "tools/call", "params": _CALL},
        {**MCP_ENVELOPE, "method": "tools/list", "params": {}},
        {**MCP_ENVELOPE, "method": "initialize", "params": _CLIENT},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ],
    MESSAGES: [
        {**MCP_ENVELOPE, "method": "ping"},
        {**MCP_ENVELOPE, "method": "tools/call", "params": _CALL},
    ],
}
PATHS = [
    "/", "/healthz", "/metrics", "/sse", "/retrieve/", "/mcp/", "/access", "/messages", "/docs", "*", "",
    "/../../etc/passwd", "//retrieve", "/%00", "/%zz", "/retrieve%2f..", "/retrieve?topk=1&topk=2", "/" + "a" * 60_000,
    "http://elsewhere.example/retrieve", "/\xff\xfe", "/retrieve#part", "/messages/?session_id=",
    "/messages/?session_id=x", "/messages/?session_id=" + "0" * 32, "/sse?session_id=1", "/;/", "/\\..\\",
]  # fmt: skip
RPC_METHODS = [
    "tools/call", "tools/list", "initialize", "ping", "resources/read", "prompts/get", "logging/setLevel", "",
    "completion/complete", "notifications/cancelled", "rpc.discover", "__init__", "sampling/createMessage", 5, None,
]  # fmt: skip
STRANGE_HEADERS = {
    "X-Long": ["x" * 1000, "x" * 70_000, "x" * 300_000],
    "X-Many": ["v"],
    "Content-Type": ["text/plain", "", "application/json; charset=utf-16", "multipart/x", "\x80"],
    "Accept": ["", "text/html", "*/*;q=x", "application/json", "x" * 1000],
    "Host": ["elsewhere.example", "", "127.0.0.1:99999", "[::1", "a" * 5000],
    "Origin": ["http://elsewhere.example", "null", "", "http://127.0.0.1:1"],
    "Authorization": ["Bearer", "Bearer \xe9\xff", "Basic " + "A" * 9000, "\x00"],
    "Mcp-Session-Id": ["x", "../", "0" * 5000, "\xff"],
    "MCP-Protocol-Version": ["0", "x", "2025-06-18", "9" * 500],
    "Expect": ["100-continue"],
    "Upgrade": ["h2c", "websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13"],
    "Content-Encoding": ["gzip", "br", "x"],
}
METHODS = [
    "GET",
    "PUT",
    "DELETE",
    "PATCH",
    "HEAD",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "post",
    "BREW",
    "GET\t",
    "",
]
WHOLE_S = 60.0
BRIEF_S = 0.3
NONE_S = 0.0
"""How long a client waits for the answer: until the server has closed, which it has to; for a
moment, since the server may rightly wait for more; not at all."""


class Hostile(NamedTuple):
    """``payload`` goes over a fresh connection."""

    kind: str
    patience_s: float
    payload: bytes


def draw_requests(count: int, seed: int) -> Iterator[Hostile]:
    """Yield ``count`` requests of all kinds; equal arguments give equal bytes."""
    rng = random.Random(seed)
    for kind in rng.choices(list(_KINDS), [weight for weight, *_ in _KINDS.values()], k=count):
        _, make, patience_s = _KINDS[kind]
        yield Hostile(kind, patience_s, make(rng))


def _post(path: str, body: bytes, headers: Headers = JSON_HEADERS) -> bytes:
    return head("POST", path, (*headers, ("Content-Length", str(len(body))))) + body


def head(method: str, path: str, headers: Headers) -> bytes:
    """Return request line and headers, with Host and ``Connection: close`` in front of the given ones."""
    pairs = (("Host", "127.0.0.1"), ("Connection", "close"), *headers)
    lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1", "replace")


def _honest(rng: random.Random) -> tuple[str, bytes]:
    path = rng.choice(list(DIALECTS))
    return path, json.dumps(rng.choice(DIALECTS[path])).encode()


def _wrong_type(rng: random.Random) -> bytes:
    """A field of an honest body, at any depth, holds something else; or a field is missing, doubled or unknown."""
    path, honest = _honest(rng)
    body = inside = json.loads(honest)

    while (
        deeper := [value for value in inside.values() if isinstance(value, dict) and value]
    ) and rng.random() < 0.7:
        inside = rng.choice(deeper)

    for key in rng.choices(
        [*inside, *inside, "where", "filters", "_meta", "__class__", ""], k=rng.randint(1, 2)
    ):
        inside[key] = _strange_value(rng)
        if rng.random() < 0.15:
            del inside[key]

    return _post(path, json.dumps(body).encode())


def _strange_value(rng: random.Random) -> JsonValue:
    numbers = [
        0,
        -1,
        -(2**31),
        2**31,
        2**63,
        2**64,
        10**30,
        1.5,
        -0.0,
        1e308,
        float("nan"),
        float("inf"),
    ]
    texts = [
        "", " ", "\x00", "\ud800", "\U0010ffff", "\u202e\ufeff", "a" * 20_000, "1", "null", "../../etc/passwd", "%s%n",
        "\u0130" * 50, "(" * 500, "' OR 1=1 --", "comet\r\nX-Injected: 1", "0001-01-01", "9999-99-99", "-5-1-1", "NaN",
    ]  # fmt: skip
    lists = [[], [[]], [None], [1, "a"], ["\udfff"], [""] * 50, ["comet"] * 200]
    rest = [None, True, False, {}, {"a": {"b": []}}, {"$ref": "#"}]
    return rng.choice(rng.choice([numbers, texts, lists, rest]))


def _huge_number_or_nest(rng: random.Random) -> bytes:
    """Numbers that JSON allows and machines do not hold, and nestings beyond any reader."""
    zeros = rng.choice([40, 400, 4000, 5000])
    depth = rng.choice([100, 1000, 10_000, 200_000])
    number = rng.choice(["1" + "0" * zeros, "-1" + "0" * 400, "1e999", "1e-999", "1.0", "1E5"])
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    nest = opening * depth + "1" + closing * (depth if rng.random() < 0.7 else 0)
    value = rng.choice([number, nest])
    path, body = rng.choice([
        ("/retrieve", f'{{"queries": ["comet"], "topk": {value}}}'),
        ("/retrieve", f'{{"queries": {value}}}'),
        (rng.choice(["/mcp", MESSAGES]), f'{{"jsonrpc": "2.0", "id": {value}, "method": "ping"}}'),
        ("/mcp", f'{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {value}}}'),
        (rng.choice(list(DIALECTS)), value),
    ])  # fmt: skip
    return _post(path, body.encode())


def _broken_json(rng: random.Random) -> bytes:
    """An honest body cut, flipped, encoded otherwise, followed by more, or none at all."""
    path, honest = _honest(rng)
    place = rng.randrange(len(honest))
    inserted = rng.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\\ud800", b"\\u", b"\n"])
    body = rng.choice([
        honest[:place],
        honest[:place] + inserted + honest[place:],
        honest + rng.choice([b"\x00", b"}", b" {}", b"\xff", b"//"]),
        honest.decode().encode(rng.choice(["utf-16", "utf-32", "utf-8-sig", "utf-7"])),
        bytes(rng.randrange(256) if rng.random() < 0.05 else byte for byte in honest),
        rng.randbytes(rng.randint(0, 300)),
    ])  # fmt: skip
    return _post(path, body)


def _giant(rng: random.Random) -> bytes:
    """Megabytes: in one text, in many, or of nothing; or more queries than a queue holds, or many passages of each."""
    if rng.random() < 0.6:
        queries = [f"comet {number}" for number in range(rng.choice([100, 1000, 5000]))]
        return _post(
            "/retrieve",
            json.dumps({"queries": queries, "topk": rng.choice([1, 3, 10**6])}).encode(),
        )

    size = rng.choice([1, 3, 9, 20]) * 2**20
    start, repeated, end = rng.choice([
        (b'{"queries": ["', b"comet ", b'"]}'),
        (b'{"queries": [', b'"a",', b'"a"]}'),
        (b'{"urls": [', b'"u",', b'"u"]}'),
        (b"", b" ", b""),
    ])  # fmt: skip
    return _post(rng.choice(list(DIALECTS)), start + repeated * (size // len(repeated)) + end)


def _left_early(rng: random.Random) -> bytes:
    """The client stops in the middle of line, headers or body, or does not wait for an answer or an event stream."""
    path, honest = _honest(rng)
    whole = _post(path, honest)
    length = str(10 ** rng.randint(3, 18))
    streams = [head("GET", path, (("Accept", "text/event-stream"),)) for path in ("/sse", "/mcp")]
    half = whole[: rng.randrange(len(whole))]
    false = head("POST", path, (*JSON_HEADERS, ("Content-Length", length))) + b'{"queries": ['
    return rng.choices([half, false, whole, *streams], [50, 15, 15, 10, 10])[0]


def _wrong_method_or_path(rng: random.Random) -> bytes:
    method = rng.choice([*METHODS, "GET", "POST"])
    path = rng.choice([*PATHS, *DIALECTS])
    body = b'{"queries": []}' if method == "POST" else b""
    headers = (
        (*JSON_HEADERS, ("Content-Length", str(len(body)))) if body or rng.random() < 0.5 else ()
    )
    return head(method, path, headers) + body


def _strange_headers(rng: random.Random) -> bytes:
    """One strange header, or thousands, beside those that an honest client sends or instead of them."""
    path, body = _honest(rng)
    name, values = rng.choice(list(STRANGE_HEADERS.items()))
    headers: Headers = ((name, rng.choice(values)),) * (
        rng.choice([50, 3000]) if name == "X-Many" else 1
    )
    if rng.random() < 0.7:
        headers = (*JSON_HEADERS, *headers)
    if rng.random() < 0.2:
        return head("GET", rng.choice(["/sse", "/mcp", "/healthz", "/metrics"]), headers)
    return _post(path, body, headers)


def _framing(rng: random.Random) -> bytes:
    """Lengths that lie, contradict each other or are none, and chunks that are none."""
    body = b'{"queries": ["comet"], "topk": 1}'
    length = str(len(body))
    lengths = [
        "-1",
        "abc",
        "",
        "1e3",
        "0x10",
        "9" * 40,
        f"{length}, {length}",
        f" {length} ",
        "+5",
        "0",
    ]
    chunk = b"%x\r\n%b\r\n" % (len(body), body)
    broken_chunks = [b"zz\r\n", b"-5\r\n", b"ffffffffffffffffff\r\n", b"5\r\nab"]
    encodings = ["identity", "gzip, chunked", "x", "chunked, chunked"]
    headers, sent = rng.choice([
        ((("Content-Length", rng.choice(lengths)),), body),
        ((("Content-Length", length), ("Content-Length", "5")), body),
        ((("Content-Length", length), ("Transfer-Encoding", "chunked")), chunk + b"0\r\n\r\n"),
        ((("Transfer-Encoding", "chunked"),), rng.choice(broken_chunks) + body),
        ((("Transfer-Encoding", "chunked"),), b"5;ext=" + b"e" * 50_000 + b"\r\nabcde\r\n0\r\n\r\n"),
        ((("Transfer-Encoding", "chunked"),), b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"),
        ((("Transfer-Encoding", "chunked"),), chunk + b"0\r\nX-Trailer: " + b"t" * 20_000 + b"\r\n\r\n"),
        ((("Transfer-Encoding", rng.choice(encodings)),), chunk + b"0\r\n\r\n"),
    ])  # fmt: skip
    path = rng.choice(list(DIALECTS))
    return head("POST", path, (*JSON_HEADERS, *headers)) + sent


def _no_http(rng: random.Random) -> bytes:
    """Bytes of another protocol or of none, and several requests at once, with garbage after them."""
    request = _post(*_honest(rng)).replace(b"Connection: close\r\n", b"")
    pipelined = request * rng.choice([1, 2, 20]) + rng.choice(
        [b"", rng.randbytes(50), request[:40]]
    )
    broken = rng.choice([
        rng.randbytes(rng.randint(1, 2000)),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nno colon here\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nA\x00: b\r\nHost: \r\n\r\n",
        b"GET /healthz HTTP/1.1\nHost: x\n\n",
        b"\r\n" * 1000,
        b"A" * 100_000,
    ])  # fmt: skip
    return rng.choice([pipelined, broken])


def _rpc(rng: random.Random) -> bytes:
    """JSON-RPC that is well-formed JSON and makes no sense: an unknown tool, arguments that none takes, or no call."""
    names = rng.sample(["with_meta", "source", "after", "before", "top_k"], rng.randint(0, 3))
    arguments = {
        "query": rng.choice(["comet", _strange_value(rng)]),
        **{name: _strange_value(rng) for name in names},
    }
    call: dict[str, JsonValue] = {
        "name": rng.choice(["retrieve", "retrieve", "search", "retrieve_filtered", "", None, 5]),
        "arguments": rng.choice([arguments, arguments, arguments, _strange_value(rng)]),
    }
    rest = rng.choice(
        [{}, [], None, "x", {"uri": "file:///etc/passwd"}, {"requestId": _strange_value(rng)}]
    )
    method, params = rng.choice(
        [("tools/call", call), ("tools/call", call), (rng.choice(RPC_METHODS), rest)]
    )
    version = rng.choice(["2.0", "2.0", "2.0", "1.0", 2, None])
    number = rng.choice([1, "a", None, 1.5, [], "x" * 5000])
    message = {"jsonrpc": version, "id": number, "method": method, "params": params}
    message = {key: value for key, value in message.items() if rng.random() > 0.1}
    sent = rng.choice(
        [message, message, message, [message] * 3, {"result": {}, "jsonrpc": "2.0", "id": 1}, []]
    )
    return _post(rng.choice(["/mcp", MESSAGES, "/messages/"]), json.dumps(sent).encode())


_KINDS: dict[str, tuple[float, Callable[[random.Random], bytes], float]] = {
    "wrong type": (20, _wrong_type, WHOLE_S),
    "JSON-RPC": (15, _rpc, WHOLE_S),
    "broken JSON": (15, _broken_json, WHOLE_S),
    "method or path": (10, _wrong_method_or_path, WHOLE_S),
    "headers": (10, _strange_headers, WHOLE_S),
    "left early": (9, _left_early, NONE_S),
    "framing": (7, _framing, BRIEF_S),
    "huge number or nest": (5.5, _huge_number_or_nest, WHOLE_S),
    "no HTTP or pipelined": (8, _no_http, BRIEF_S),
    "giant": (0.5, _giant, WHOLE_S),
}
"""How often each is drawn, relative to the others; what makes its bytes; how long its client stays."""
