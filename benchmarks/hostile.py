"""Requests that no honest client sends: broken HTTP, broken JSON, wrong types, absurd sizes, half of everything.

All are drawn from one ``random.Random``, so that a seed names them. There is one maker of bytes for each way of being
hostile; most of them damage an honest body of ``DIALECTS``.
"""

import json
import random
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from pydantic import JsonValue

Headers = tuple[tuple[str, str], ...]
JSON_HEADERS: Headers = (("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream"))
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
PATHS = ["/", "/healthz", "/metrics", "/sse", "/retrieve/", "/mcp/", "/access", "/messages", "/docs", "*", ""]
STRANGE_PATHS = [
    "/../../etc/passwd", "//retrieve", "/%00", "/%zz", "/retrieve%2f..", "/retrieve?topk=1&topk=2", "/" + "a" * 60_000,
    "http://elsewhere.example/retrieve", "/\xff\xfe", "/retrieve#part", "/messages/?session_id=",
    "/messages/?session_id=x", "/messages/?session_id=" + "0" * 32, "/sse?session_id=1", "/;/", "/\\..\\",
]  # fmt: skip
RPC_METHODS = [
    "tools/call", "tools/list", "initialize", "ping", "resources/read", "prompts/get", "logging/setLevel", "",
    "completion/complete", "notifications/cancelled", "rpc.discover", "__init__", "sampling/createMessage", 5, None,
]  # fmt: skip
METHODS = ["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "post", "BREW", "GET\t", ""]


class Patience(Enum):
    """How long a client stays after it has sent its request."""

    WHOLE = "until the server has answered and closed; it has to"
    BRIEF = "for a moment: the server may rightly wait for more"
    NONE = "not at all"


class Hostile(NamedTuple):
    """``payload`` goes over a fresh connection."""

    kind: str
    patience: Patience
    payload: bytes


def hostile_requests(count: int, seed: int) -> Iterator[Hostile]:
    """Yield ``count`` requests of all kinds; equal arguments give equal bytes."""
    rng = random.Random(seed)
    for kind in rng.choices(list(_KINDS), [weight for weight, *_ in _KINDS.values()], k=count):
        _, make, patience = _KINDS[kind]
        yield Hostile(kind, patience, make(rng))


def _post(path: str, body: bytes, headers: Headers = JSON_HEADERS) -> bytes:
    """Return a complete POST that asks the server to close, so that its answer ends with the connection."""
    return head("POST", path, (*headers, ("Content-Length", str(len(body))))) + body


def head(method: str, path: str, headers: Headers) -> bytes:
    """Return request line and headers, with Host and ``Connection: close`` in front of the given ones."""
    pairs = (("Host", "127.0.0.1"), ("Connection", "close"), *headers)
    lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1", "replace")


def _honest(rng: random.Random) -> tuple[str, bytes]:
    path = rng.choice(list(DIALECTS))
    return path, _text(rng.choice(DIALECTS[path]))


def _text(body: object) -> bytes:
    return json.dumps(body).encode()


def _wrong_type(rng: random.Random) -> bytes:
    """A field of an honest body, at any depth, holds something else; or a field is missing, doubled or unknown."""
    path, honest = _honest(rng)
    body = json.loads(honest)
    for _ in range(rng.randint(1, 2)):
        inside = body
        while (deeper := [value for value in inside.values() if isinstance(value, dict) and value]) and (
            rng.random() < 0.7
        ):
            inside = rng.choice(deeper)
        key = rng.choice([*inside, *inside, "where", "filters", "_meta", "__class__", ""])
        if rng.random() < 0.15:
            inside.pop(key, None)
        else:
            inside[key] = _strange_value(rng)
    return _post(path, _text(body))


def _strange_value(rng: random.Random) -> JsonValue:
    numbers = [0, -1, -(2**31), 2**31, 2**63, 2**64, 10**30, 1.5, -0.0, 1e308, float("nan"), float("inf")]
    texts = [
        "", " ", "\x00", "\ud800", "\U0010ffff", "\u202e\ufeff", "a" * 20_000, "1", "null", "../../etc/passwd", "%s%n",
        "\u0130" * 50, "(" * 500, "' OR 1=1 --", "comet\r\nX-Injected: 1", "0001-01-01", "9999-99-99", "-5-1-1", "NaN",
    ]  # fmt: skip
    lists = [[], [[]], [None], [1, "a"], ["\udfff"], [""] * 50, ["comet"] * 200]
    rest = [None, True, False, {}, {"a": {"b": []}}, {"$ref": "#"}]
    return rng.choice(rng.choice([numbers, texts, lists, rest]))


def _huge_number(rng: random.Random) -> bytes:
    """Numbers that JSON allows and machines do not hold."""
    zeros = rng.choice([40, 400, 4000, 5000])
    number = rng.choice(["1" + "0" * zeros, "-1" + "0" * 400, "1e999", "1e-999", "1.0", "1E5"])
    if rng.random() < 0.5:
        return _post("/retrieve", f'{{"queries": ["comet"], "topk": {number}}}'.encode())
    body = f'{{"jsonrpc": "2.0", "id": {number}, "method": "ping"}}'
    return _post(rng.choice(["/mcp", MESSAGES]), body.encode())


def _deep_nesting(rng: random.Random) -> bytes:
    depth = rng.choice([100, 1000, 10_000, 200_000])
    opening, closing = rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
    nest = opening * depth + b"1" + closing * (depth if rng.random() < 0.7 else 0)
    path = rng.choice(list(DIALECTS))
    wrap = rng.choice([b"%b", b'{"queries": %b}', b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": %b}'])
    return _post(path, wrap % nest)


def _broken_json(rng: random.Random) -> bytes:
    """An honest body cut, flipped, encoded otherwise, or followed by more."""
    path, honest = _honest(rng)
    body = bytearray(honest)
    damage = rng.randrange(6)
    if damage == 0:
        del body[rng.randrange(len(body)) :]
    elif damage == 1:
        for _ in range(rng.randint(1, 8)):
            body[rng.randrange(len(body))] = rng.randrange(256)
    elif damage == 2:
        body = bytearray(bytes(body).decode().encode(rng.choice(["utf-16", "utf-32", "utf-8-sig", "utf-7"])))
    elif damage == 3:
        body += rng.choice([b"\x00", b"}", b" {}", b"\xff", b"//"])
    elif damage == 4:
        body = bytearray(rng.randbytes(rng.randint(0, 300)))
    else:
        place = rng.randrange(len(body))
        body[place:place] = rng.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\\ud800", b"\\u", b"\n"])
    return _post(path, bytes(body))


def _giant_body(rng: random.Random) -> bytes:
    """Megabytes: in one text, in many, or of nothing."""
    size = rng.choice([1, 3, 9, 20]) * 2**20
    body = rng.choice([
        lambda: b'{"queries": ["' + b"comet " * (size // 6) + b'"]}',
        lambda: b'{"queries": [' + b'"a",' * (size // 4) + b'"a"]}',
        lambda: b'{"urls": [' + b'"u",' * (size // 4) + b'"u"]}',
        lambda: b" " * size,
    ])()  # fmt: skip
    return _post(rng.choice(list(DIALECTS)), body)


def _many_queries(rng: random.Random) -> bytes:
    """More queries than a batch or the queue holds, or many passages of each."""
    body = {"queries": [f"comet {n}" for n in range(rng.choice([100, 1000, 5000]))], "topk": rng.choice([1, 3, 10**6])}
    return _post("/retrieve", _text(body))


def _half_sent(rng: random.Random) -> bytes:
    """The client stops in the middle of line, headers or body, and leaves."""
    path, honest = _honest(rng)
    whole = _post(path, honest)
    if rng.random() < 0.2:
        length = str(10 ** rng.randint(3, 18))
        return head("POST", path, (*JSON_HEADERS, ("Content-Length", length))) + b'{"queries": ['
    return whole[: rng.randrange(len(whole))]


def _left_early(rng: random.Random) -> bytes:
    """A whole honest request, or an event stream, whose client does not wait for the answer."""
    path, honest = _honest(rng)
    streams = [head("GET", path, (("Accept", "text/event-stream"),)) for path in ("/sse", "/mcp")]
    return rng.choice([_post(path, honest), *streams])


def _wrong_method_or_path(rng: random.Random) -> bytes:
    method = rng.choice([*METHODS, "GET", "POST"])
    path = rng.choice([*PATHS, *STRANGE_PATHS, *DIALECTS])
    body = b'{"queries": []}' if method == "POST" else b""
    headers = (*JSON_HEADERS, ("Content-Length", str(len(body)))) if body or rng.random() < 0.5 else ()
    return head(method, path, headers) + body


def _strange_headers(rng: random.Random) -> bytes:
    path, body = _honest(rng)
    long = "x" * rng.choice([1_000, 70_000, 300_000])
    headers: Headers = rng.choice([
        (("X-Long", long),),
        tuple((f"X-{n}", "v") for n in range(rng.choice([50, 3000]))),
        (("Content-Type", rng.choice(["text/plain", "", "application/json; charset=utf-16", "multipart/x", "\x80"])),),
        (("Accept", rng.choice(["", "text/html", "*/*;q=x", "application/json", long[:1000]])),),
        (("Host", rng.choice(["elsewhere.example", "", "127.0.0.1:99999", "[::1", "a" * 5000])),),
        (("Origin", rng.choice(["http://elsewhere.example", "null", "", "http://127.0.0.1:1"])),),
        (("Authorization", rng.choice(["Bearer", "Bearer \xe9\xff", "Basic " + "A" * 9000, "\x00"])),),
        (("Mcp-Session-Id", rng.choice(["x", "../", "0" * 5000, "\xff"])),),
        (("MCP-Protocol-Version", rng.choice(["0", "x", "2025-06-18", "9" * 500])),),
        (("Expect", "100-continue"),),
        (("Upgrade", rng.choice(["websocket", "h2c"])), ("Connection", "Upgrade"), ("Sec-WebSocket-Version", "13")),
        (("Content-Encoding", rng.choice(["gzip", "br", "x"])),),
    ])  # fmt: skip
    if rng.random() < 0.7:  # beside what an honest client sends, else instead of it
        headers = (*JSON_HEADERS, *headers)
    if rng.random() < 0.2:
        return head("GET", rng.choice(["/sse", "/mcp", "/healthz", "/metrics"]), headers)
    return _post(path, body, headers)


def _framing(rng: random.Random) -> bytes:
    """Lengths that lie, contradict each other or are none, and chunks that are none."""
    body = b'{"queries": ["comet"], "topk": 1}'
    length = str(len(body))
    lengths = ["-1", "abc", "", "1e3", "0x10", "9" * 40, f"{length}, {length}", f" {length} ", "+5", "0"]
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
    return rng.choice([
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


def _pipelined(rng: random.Random) -> bytes:
    """Several requests at once, garbage after them."""
    request = _post(*_honest(rng)).replace(b"Connection: close\r\n", b"")
    rest = rng.choice([b"", rng.randbytes(50), request[:40]])
    return request * rng.choice([1, 2, 20]) + rest


def _rpc(rng: random.Random) -> bytes:
    """JSON-RPC that is well-formed JSON and makes no sense."""
    message: dict[str, JsonValue] = {
        "jsonrpc": rng.choice(["2.0", "2.0", "2.0", "1.0", 2, None]),
        "id": rng.choice([1, "a", None, 1.5, [], -1, "x" * 5000, True]),
        "method": rng.choice(RPC_METHODS),
        "params": rng.choice([{}, [], None, "x", {"uri": "file:///etc/passwd"}, {"requestId": _strange_value(rng)}]),
    }
    if rng.random() < 0.6:  # an unknown tool, or arguments that the tool does not take
        name: JsonValue = rng.choice(["retrieve", "retrieve", "search", "retrieve_filtered", "", None, 5])
        arguments: dict[str, JsonValue] = {"query": rng.choice(["comet", _strange_value(rng)])}
        for key in rng.sample(["with_meta", "source", "after", "before", "top_k"], rng.randint(0, 3)):
            arguments[key] = _strange_value(rng)
        call = {"name": name, "arguments": rng.choice([arguments, arguments, arguments, _strange_value(rng)])}
        message |= {"method": "tools/call", "params": call}
    for key in [key for key in message if rng.random() < 0.1]:
        del message[key]
    sent = rng.choice([message, message, message, [message] * 3, {"result": {}, "jsonrpc": "2.0", "id": 1}, []])
    return _post(rng.choice(["/mcp", MESSAGES, "/messages/"]), _text(sent))


_KINDS: dict[str, tuple[float, Callable[[random.Random], bytes], Patience]] = {
    "wrong type": (20, _wrong_type, Patience.WHOLE),
    "JSON-RPC": (15, _rpc, Patience.WHOLE),
    "broken JSON": (15, _broken_json, Patience.WHOLE),
    "method or path": (10, _wrong_method_or_path, Patience.WHOLE),
    "headers": (10, _strange_headers, Patience.WHOLE),
    "framing": (7, _framing, Patience.BRIEF),
    "half sent": (6, _half_sent, Patience.NONE),
    "no HTTP": (4, _no_http, Patience.BRIEF),
    "pipelined": (4, _pipelined, Patience.BRIEF),
    "left early": (3, _left_early, Patience.NONE),
    "huge number": (3, _huge_number, Patience.WHOLE),
    "deep nesting": (2.5, _deep_nesting, Patience.WHOLE),
    "many queries": (0.3, _many_queries, Patience.WHOLE),
    "giant body": (0.2, _giant_body, Patience.WHOLE),
}
"""How often each is drawn, relative to the others; what makes its bytes; how long its client stays."""
