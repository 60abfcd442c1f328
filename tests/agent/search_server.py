"""An MCP server with the tool ``retrieve`` on a loopback port."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, TextContent

from tests.search_servers import serve_app


@contextmanager
def serve_search(
    searching: Callable[[str], None], port: int = 0, tool: str = "retrieve"
) -> Iterator[int]:
    """An MCP server whose tool finds one passage for everything; yields its port."""
    mcp = MCPServer("retrieval_server", log_level="ERROR", subscriptions=False)

    @mcp.tool(tool, structured_output=False)
    async def retrieve(query: str) -> CallToolResult:
        searching(query)
        await asyncio.sleep(0)
        found = {"result": [{"chunk": f"T\n{query}", "chunk_id": "c", "score": 1.0}]}
        return CallToolResult(content=[TextContent(text=query)], structured_content=found)

    app = mcp.streamable_http_app(stateless_http=True, json_response=True, host="127.0.0.1")
    with serve_app(app, port) as url:
        yield int(url.rpartition(":")[2])


@contextmanager
def breaking_proxy(port: int, breaks: int) -> Iterator[int]:
    """Passes connections on to ``port`` and resets those of the first ``breaks`` searches; yields its own port."""
    left = [breaks]

    def serve(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            threading.Thread(target=_copy, args=(server, client), daemon=True).start()
            while data := client.recv(65536):
                if b"tools/call" in data and left[0]:
                    left[0] -= 1
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                server.sendall(data)

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed at the end of the block
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
