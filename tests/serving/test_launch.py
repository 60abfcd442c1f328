import os
import select
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from deepsearch_rl.errors import ArtifactError, ConfigError, EndpointError
from deepsearch_rl.serving.launch import ServingConfig, serve_model
from deepsearch_rl.serving.processes import watched_process
from tests.policies import CONTEXT_TOKENS

CPU = {"slots": 8, "context_tokens": CONTEXT_TOKENS, "start_timeout_s": 60}


def config(backend: str = "cpu", **sections: object) -> ServingConfig:
    return ServingConfig.model_validate({"backend": backend, "cpu": CPU, **sections})


@pytest.mark.slow
def test_a_served_folder_answers_and_is_gone_after_the_block(policy_folder: Path) -> None:
    with serve_model(policy_folder, config()) as endpoint:
        models = httpx.get(f"{endpoint.base_url}/models").json()
        assert models["data"][0]["id"] == endpoint.model
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{endpoint.base_url}/models")


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=str(tmp_path)), serve_model(tmp_path, config()):
        pass


@pytest.mark.slow
def test_a_server_that_dies_at_start_leaves_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{broken")
    with pytest.raises(EndpointError, match=r"exit code 1[\s\S]*config.json"), serve_model(tmp_path, config()):
        pass


def test_a_backend_without_its_section_is_a_config_error(policy_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"serving\.vllm"), serve_model(policy_folder, config("vllm")):
        pass


def test_a_remote_server_needs_the_key_that_params_name(policy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key_variable": "NO_SUCH_KEY"}
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"), serve_model(policy_folder, config("remote", remote=remote)):
        pass
    monkeypatch.setenv("NO_SUCH_KEY", "secret-key")
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        remote["base_url"] = f"http://127.0.0.1:{server.server_port}/v1"
        with serve_model(policy_folder, config("remote", remote=remote)) as endpoint:
            assert endpoint.api_key == "secret-key"
            assert "secret-key" not in repr(endpoint)
        server.shutdown()
    with pytest.raises(EndpointError, match=remote["base_url"]), serve_model(Path(), config("remote", remote=remote)):
        pass


def test_a_key_in_place_of_its_variable_is_refused() -> None:
    remote = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key_variable": "sk-secret"}
    with pytest.raises(ValidationError, match="api_key_variable"):
        config("remote", remote=remote)


def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from deepsearch_rl.serving.processes import watched_process\n"
        "with watched_process([sys.executable, '-c', 'import time; time.sleep(60)']) as child:\n"
        "    print(child.process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=tmp_path)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    pidfd = os.pidfd_open(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait(10)
    ended, _, _ = select.select([pidfd], [], [], 10)  # a pidfd is readable when its process has ended
    assert ended


def test_a_watched_process_is_stopped_with_the_block() -> None:
    with watched_process([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        assert child.process.poll() is None
    assert child.process.returncode == -signal.SIGTERM
