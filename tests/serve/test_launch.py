from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from deepsearch_rl.chat.endpoint import shown_address
from deepsearch_rl.core.environment import prepare_environment
from deepsearch_rl.core.errors import ArtifactError, ConfigError, EndpointError
from deepsearch_rl.core.files import write_json
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.evaluate.evaluate_model import checkpoint_name
from deepsearch_rl.serve import launch
from deepsearch_rl.serve.launch import (
    ServingConfig,
    VllmConfig,
    serve_model,
    serve_models,
    vllm_serve_command,
)
from tests.conftest import ROOT
from tests.policies import CONTEXT_TOKENS
from tests.search_servers import in_thread

ENDPOINT = {
    "base_url": "$URL_OF_THE_TEST",
    "model": "$MODEL_OF_THE_TEST",
    "api_key_variable": "KEY_OF_THE_TEST",
}
CPU = {
    "slots": 8,
    "context_tokens": CONTEXT_TOKENS,
    "servers": 1,
    "dtype": "float32",
    "threads": 1,
    "start_timeout_s": 60,
}


def config(backend: str = "cpu", **sections: object) -> ServingConfig:
    return ServingConfig.model_validate({"backend": backend, "cpu": CPU, **sections})


@pytest.mark.nightly
def test_a_served_folder_answers_and_is_gone_after_the_block(policy_folder: Path) -> None:
    with serve_model(policy_folder, config()) as endpoint:
        models = httpx.get(f"{endpoint.base_url}/models").json()
        assert models["data"][0]["id"] == endpoint.model
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{endpoint.base_url}/models")


@pytest.mark.nightly
def test_as_many_servers_answer_as_asked_for_and_all_are_gone_after_the_block(
    policy_folder: Path,
) -> None:
    with serve_models(policy_folder, config(cpu=CPU | {"servers": 2})) as endpoints:
        first, second = (f"{endpoint.base_url}/models" for endpoint in endpoints)
        assert first != second
        for address in (first, second):
            assert httpx.get(address).json()["data"][0]["id"] == endpoints[0].model
    for address in (first, second):
        with pytest.raises(httpx.ConnectError):
            httpx.get(address)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=str(tmp_path)), serve_model(tmp_path, config()):
        pass


def test_a_server_that_dies_at_start_leaves_its_last_words(
    policy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho 'no memory' >&2\nexit 3\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(launch, "sys", SimpleNamespace(executable=str(interpreter)))
    with (
        pytest.raises(EndpointError, match=r"exit code 3[\s\S]*no memory"),
        serve_model(policy_folder, config()),
    ):
        pass


def test_vllm_starts_without_the_sampler_that_it_would_have_to_compile(
    policy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\necho flashinfer=$VLLM_USE_FLASHINFER_SAMPLER >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(launch, "sys", SimpleNamespace(executable=str(tmp_path / "python")))
    monkeypatch.setattr(launch, "require_gpu", lambda *_, **__: None)
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)
    gpu = load_profile(ROOT / "profiles/gpu/params.yaml").section("serving", ServingConfig)
    # As every stage and command does first
    prepare_environment()

    with (
        pytest.raises(EndpointError, match="flashinfer=0"),
        serve_model(policy_folder, gpu),
    ):
        pass


def test_a_model_with_a_broken_config_is_named_before_a_server_starts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{broken")
    with pytest.raises(ArtifactError, match=r"config\.json"), serve_model(tmp_path, config()):
        pass


def test_other_settings_are_other_answers_and_more_time_or_servers_are_not() -> None:
    digest = config().digest_of_answers()
    assert config(cpu=CPU | {"servers": 2}).digest_of_answers() == digest
    assert config(cpu=CPU | {"start_timeout_s": 90}).digest_of_answers() == digest
    assert config(cpu=CPU | {"slots": 9}).digest_of_answers() != digest
    assert config("vllm").digest_of_answers() != digest


def test_a_backend_without_its_section_is_a_config_error(policy_folder: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"serving\.vllm"),
        serve_model(policy_folder, config("vllm")),
    ):
        pass


def test_a_folder_with_an_endpoint_reaches_the_server_that_its_variables_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(tmp_path / "endpoint.json", ENDPOINT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    with in_thread(server):
        address = f"http://127.0.0.1:{server.server_port}/v1"
        for name, value in (
            ("URL_OF_THE_TEST", address),
            ("MODEL_OF_THE_TEST", "m"),
            ("KEY_OF_THE_TEST", "secret-key"),
        ):
            with pytest.raises(ConfigError, match=name), serve_model(tmp_path, config()):
                pass
            monkeypatch.setenv(name, value)
        with serve_model(tmp_path, config()) as endpoint:
            assert (endpoint.base_url, endpoint.model, endpoint.api_key) == (
                address,
                "m",
                "secret-key",
            )
            assert "secret-key" not in repr(endpoint)
        with serve_models(tmp_path, config(cpu=CPU | {"servers": 2})) as endpoints:
            assert [one.base_url for one in endpoints] == [address]
    with pytest.raises(EndpointError, match=address), serve_model(tmp_path, config()):
        pass


def test_an_address_is_shown_without_what_is_secret_in_it() -> None:
    assert (
        shown_address("https://user:secret@api.example/v1?key=secret") == "https://api.example/v1"
    )


UNREADABLE = {
    "a slash in a password": "https://user:hid/den@api.example/v1",
    "a slash after what looks like a port": "https://user:12/hidden@api.example/v1",
    "a hash in a password": "https://user:hid#den@api.example/v1",
    "a question mark in a password": "https://user:12?hidden@api.example/v1",
    "a backslash": "https://user:hid\\den@api.example/v1",
    "no scheme": "hidden.example/v1",
    "a port in the scheme's place": "hidden:8000/v1",
    "another scheme": "ftp://hidden/v1",
    "an open bracket": "http://[hidden/v1",
    "a port that is none": "http://api.example:hidden/v1",
    "an empty label": "http://hidden..example/v1",
    "no host": "http:///hidden",
    "a line's end": "https://user:hidden@api.example/v1\n",
}


@pytest.mark.parametrize("address", UNREADABLE.values(), ids=UNREADABLE)
def test_an_address_that_cannot_be_read_is_not_shown(address: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        shown_address(address)
    require_hidden(caught.value)


def require_hidden(error: Exception) -> None:
    """Check that an error shows nothing of a password, nor does a library's error behind it."""
    assert error.__cause__ is error.__context__ is None
    assert "hid" not in str(error)
    assert "den" not in str(error)


@pytest.mark.parametrize("literal", [False, True])
def test_an_address_that_cannot_be_read_is_refused_by_the_place_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, literal: bool
) -> None:
    address = UNREADABLE["a slash in a password"]
    for name, value in (
        ("URL_OF_THE_TEST", address),
        ("MODEL_OF_THE_TEST", "m"),
        ("KEY_OF_THE_TEST", "sk-hidden"),
    ):
        monkeypatch.setenv(name, value)
    write_json(tmp_path / "endpoint.json", ENDPOINT | ({"base_url": address} if literal else {}))
    place = r"base_url \(endpoint\.json\)" if literal else "environment variable URL_OF_THE_TEST"
    with pytest.raises(ConfigError, match=place) as caught, serve_model(tmp_path, config()):
        pass
    require_hidden(caught.value)
    with pytest.raises(ConfigError, match=place) as named:
        checkpoint_name(tmp_path)
    require_hidden(named.value)


def test_a_server_that_is_not_there_is_named_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_THE_TEST", "sk-hidden")
    address = "http://user:hid%2Fden@127.0.0.1:9/v1"
    write_json(tmp_path / "endpoint.json", ENDPOINT | {"base_url": address, "model": "m"})
    assert checkpoint_name(tmp_path) == "m at http://127.0.0.1:9/v1"
    with (
        pytest.raises(EndpointError, match=r"http://127\.0\.0\.1:9/v1 .*base_url") as caught,
        serve_model(tmp_path, config()),
    ):
        pass
    assert "hid" not in str(caught.value)


@pytest.mark.parametrize("key", ["sk-hidden\n", "sk-hid den", "sk-hiddené"])
def test_a_key_that_no_header_can_hold_is_refused_by_its_variable_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("KEY_OF_THE_TEST", key)
    write_json(
        tmp_path / "endpoint.json", ENDPOINT | {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    )
    with (
        pytest.raises(ConfigError, match="KEY_OF_THE_TEST") as caught,
        serve_model(tmp_path, config()),
    ):
        pass
    assert "hid" not in str(caught.value)


def test_a_key_in_place_of_its_variable_is_refused_and_not_repeated(tmp_path: Path) -> None:
    write_json(tmp_path / "endpoint.json", ENDPOINT | {"api_key_variable": "sk-secret"})
    with (
        pytest.raises(ArtifactError, match="api_key_variable") as caught,
        serve_model(tmp_path, config()),
    ):
        pass
    assert "sk-secret" not in str(caught.value)


def test_a_reasoning_parser_is_named_for_models_that_think_alone() -> None:
    gpu = load_profile(ROOT / "profiles" / "gpu" / "params.yaml").section("serving", ServingConfig)
    assert isinstance(gpu.vllm, VllmConfig)
    plain = vllm_serve_command(Path("model"), gpu.vllm, 8000)
    thinking = vllm_serve_command(
        Path("model"), gpu.vllm.model_copy(update={"reasoning_parser": "qwen3"}), 8000
    )
    assert "--reasoning-parser" not in plain
    assert thinking[thinking.index("--reasoning-parser") + 1] == "qwen3"
