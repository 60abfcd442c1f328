"""Importing the project and starting its programs asks no address outside this machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {"agentlightning", "skyrl_gym", "unsloth", "unsloth_zoo", "verifiers", "verl", "vllm"}
"""Trainers that have an environment of their own, and what only a GPU machine has."""
REFUSING = """
import json, socket, sys

asked = []


def refuse(host, *arguments, **named):
    name = host.decode() if isinstance(host, bytes) else str(host)
    if name in ("localhost", "127.0.0.1", "::1", "None", socket.gethostname()):
        return resolve(host, *arguments, **named)
    asked.append(name)
    raise socket.gaierror(socket.EAI_NONAME, "refused by this test")


resolve = socket.getaddrinfo
socket.getaddrinfo = socket.gethostbyname = refuse
"""
IMPORT_ALL = """
import importlib, pkgutil

import deepsearch_rl

missing = []
for module in pkgutil.walk_packages(deepsearch_rl.__path__, "deepsearch_rl."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:  # of tools that are elsewhere
        missing.append(str(error.name))
print(json.dumps({"asked": asked, "missing": sorted(set(missing)), "modules": len(sys.modules)}))
"""
START = """
import contextlib, io

from deepsearch_rl.cli.main import main

printed = {}
for line in sys.argv[1:]:
    sys.argv = ["deepsearch", *line.split()]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as output:
        main()
    printed[line] = output.getvalue()
print(json.dumps({"asked": asked, "printed": printed}))
"""
COMMANDS = {"--help": "Usage", "doctor": "packages: complete", "plan tiny": "tiny"}
"""Commands that look at the project, and a word of what each prints."""


def asked_by(code: str, *arguments: str) -> dict[str, object]:
    """Run code in the project's folder with a resolver that refuses every address; return the object that it prints."""
    command = [sys.executable, "-c", REFUSING + code, *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_resolver_sees_what_is_asked() -> None:
    code = "import httpx\ntry:\n    httpx.get('http://example.invalid')\nexcept httpx.HTTPError:\n    pass\n"
    assert asked_by(f"{code}print(json.dumps({{'asked': asked}}))")["asked"] == ["example.invalid"]


@pytest.mark.nightly
def test_importing_every_module_asks_nobody() -> None:
    """ART's LiteLLM would fetch a list of prices, and Unsloth send statistics."""
    found = asked_by(IMPORT_ALL)
    assert found["asked"] == []
    assert isinstance(found["missing"], list)
    assert set(found["missing"]) <= ELSEWHERE, "everything else was really imported"


@pytest.mark.slow
def test_commands_that_look_at_the_project_ask_nobody() -> None:
    found = asked_by(START, *COMMANDS)
    assert found["asked"] == []
    printed = found["printed"]
    assert isinstance(printed, dict)
    assert [line for line, word in COMMANDS.items() if word not in printed[line]] == [], printed
