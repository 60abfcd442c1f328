"""Stands in for ``vllm serve``, which needs a GPU: records how it was called, and answers what RL asks of it.

The file ``behaviour`` beside ``calls.jsonl`` says what the next adapter meets: ``refuse``, ``die``
or ``hang``.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(os.environ["FAKE_VLLM"])


def record(**call: object) -> None:
    """Append a call to the record."""
    with (FOLDER / "calls.jsonl").open("a", encoding="utf-8") as out:
        out.write(json.dumps(call) + "\n")


class Handler(BaseHTTPRequestHandler):
    """Answers 200, or as ``behaviour`` says."""

    def do_GET(self) -> None:
        self._answer(200, "")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        record(path=self.path, body=json.loads(body) if body else None)
        behaviour = (FOLDER / "behaviour").read_text() if (FOLDER / "behaviour").is_file() else ""
        if self.path != "/v1/load_lora_adapter" or not behaviour:
            self._answer(200, "Success")
        elif behaviour == "refuse":
            self._answer(400, '{"message": "LoRA rank 32 is greater than max_lora_rank 8."}')
        elif behaviour == "die":
            sys.stderr.write("CUDA error: device-side assert triggered\n")
            sys.stderr.flush()
            os._exit(1)
        else:
            time.sleep(60)

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


if __name__ == "__main__":
    switches = {
        name: os.environ.get(name)
        for name in ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_SERVER_DEV_MODE")
    }
    record(arguments=sys.argv[1:], **switches)
    ThreadingHTTPServer(
        ("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler
    ).serve_forever()
