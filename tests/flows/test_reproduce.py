"""The flow against a real DVC project and a real Prefect server."""

import json
import logging
import os
import subprocess
import sys
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from prefect import get_client
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.sorting import ArtifactSort
from prefect.settings import PREFECT_API_URL
from prefect.states import Running

from deepsearch_rl.core.processes import LOOPBACK
from flows import reproduce as flow_module
from flows.locks import held, run_lock
from flows.reproduce import reproduce
from flows.stage_run import StageFailedError
from tests.flows.conftest import CHAIN, PROFILE, MakeProject, changed_stages
from tests.repository import commit_all
from tests.search_servers import in_thread

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]


def set_number(root: Path, number: int) -> None:
    (root / "params.yaml").write_text(f"{PROFILE}number: {number}\n")


def test_the_result_is_dvc_repros_and_unchanged_stages_are_cached(
    make_project: MakeProject,
) -> None:
    root = make_project(CHAIN, f"{PROFILE}number: 12\n")
    assert reproduce() == dict.fromkeys(CHAIN, "Completed")
    assert changed_stages(root) == set()
    assert reproduce() == dict.fromkeys(CHAIN, "Cached")
    set_number(root, 13)
    # The digit is the same
    assert reproduce() == {"write": "Completed", "round": "Completed", "report": "Cached"}
    set_number(root, 12)
    assert reproduce() == {"write": "Restored", "round": "Restored", "report": "Cached"}
    assert reproduce(targets=("write",), force=True) == {"write": "Completed"}
    assert (root / "runs.log").read_text() == "ran\n" * 3
    assert changed_stages(root) == set()


def test_stages_know_the_experiment_that_they_are_run_for(make_project: MakeProject) -> None:
    root = make_project({"name": {"cmd": "echo $DVC_EXP_NAME > name.txt", "outs": ["name.txt"]}})
    (root / "uv.lock").touch()
    commit_all(root, "first")
    reproduce(experiment="quick")
    [name] = Path("work", "checkouts").glob("*/name.txt")
    assert name.read_text() == "quick\n"


def test_a_lock_file_that_a_killed_dvc_left_half_written_is_repaired(
    make_project: MakeProject,
) -> None:
    root = make_project(CHAIN, f"{PROFILE}number: 5\n")
    (root / ".dvc" / "tmp").mkdir(exist_ok=True)
    (root / ".dvc" / "tmp" / "rwlock").write_text('{"write": {')
    assert reproduce(targets=("write",)) == {"write": "Completed"}


def test_a_run_whose_process_was_killed_is_marked_as_crashed_by_the_next_one(
    make_project: MakeProject,
) -> None:
    root = make_project(CHAIN, f"{PROFILE}number: 6\n")
    with get_client(sync_client=True) as client:
        dead = client.create_flow_run(reproduce, state=Running())  # type: ignore[arg-type]
        (root / "work" / "tiny").mkdir(parents=True)
        (root / "work" / "tiny" / "flow.run").write_text(str(dead.id))
        assert reproduce(targets=("write",)) == {"write": "Completed"}
        state = client.read_flow_run(dead.id).state
        assert state
        assert (state.name, "process ended" in str(state.message)) == ("Crashed", True)
    assert reproduce(targets=("write",)) == {"write": "Cached"}, "a finished run is left as it is"


def artifacts(*keys: str) -> list[tuple[str | None, str]]:
    """Key and content of the newest artifacts, oldest first."""
    wanted = ArtifactFilter(key=ArtifactFilterKey(any_=list(keys)))
    with get_client(sync_client=True) as client:
        newest = client.read_artifacts(artifact_filter=wanted, sort=ArtifactSort.CREATED_DESC)[
            : len(keys)
        ]
    return [(artifact.key, str(artifact.data)) for artifact in reversed(newest)]


def page() -> str:
    """The newest page of a run."""
    return artifacts("run-tiny")[0][1]


def test_a_run_has_the_f1_table_a_link_to_the_report_and_a_page_of_its_stages(
    make_project: MakeProject,
) -> None:
    root = make_project(CHAIN, f"{PROFILE}number: 71\n")
    report = root / "reports" / "tiny" / "index.html"
    report.parent.mkdir(parents=True)
    report.touch()
    reproduce()
    (first, table), (second, link), (third, _) = artifacts("f1-tiny", "report-tiny", "run-tiny")
    assert (first, second, third) == ("f1-tiny", "report-tiny", "run-tiny")
    assert "| digit |\n7" in table
    assert report.as_uri() in link
    assert "| write | Completed |  |\n| round | Completed |  |\n| report | Completed |  |" in page()


def test_the_page_of_a_failed_run_says_where_it_stopped(make_project: MakeProject) -> None:
    stages = {
        "first": {"cmd": "exit 3", "outs": ["a"]},
        "next": {"cmd": "cp a b", "deps": ["a"], "outs": ["b"]},
    }
    make_project(stages)
    with pytest.raises(StageFailedError):
        reproduce()
    assert "| first | Failed |  |\n| next | not started |  |" in page()


@pytest.mark.nightly
def test_a_flow_starts_the_stage_with_the_longest_way_to_the_end_first(
    make_project: MakeProject,
) -> None:
    def append(name: str, **needs: object) -> dict[str, object]:
        return {
            "cmd": f"echo {name} >> started; touch {name}.txt; sleep 1",
            "outs": [f"{name}.txt"],
            **needs,
        }

    stages = {
        "a": append("a"),
        "b": append("b"),
        "c": append("c"),
        "d": append("d", deps=["c.txt"]),
    }
    root = make_project(stages)
    (root / "work").mkdir()
    runs = [
        {"profile": "tiny", "stage": name, "seconds": s, "peak_mb": 1}
        for name, s in zip("abcd", (1, 2, 3, 9), strict=True)
    ]
    (root / "work" / "timings.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))
    reproduce()
    assert set((root / "started").read_text().split()[:2]) == {"c", "b"}


def test_a_stage_whose_server_did_not_answer_is_tried_again(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_module, "RETRY_DELAYS_S", [0.1])
    once = "[ -e tried ] || { touch tried; exit 75; }; echo > data.txt"
    make_project(
        {"download": {"cmd": once, "outs": ["data.txt"]}},
        PROFILE.replace("outside_stages: []", "outside_stages: [download]"),
    )
    assert reproduce() == {"download": "Completed"}


def test_a_stage_that_fails_for_another_reason_is_not_tried_again(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_module, "RETRY_DELAYS_S", [0.1])
    root = make_project(
        {"download": {"cmd": "echo tried >> runs; exit 1", "outs": ["data.txt"]}},
        PROFILE.replace("outside_stages: []", "outside_stages: [download]"),
    )
    with pytest.raises(StageFailedError):
        reproduce()
    assert (root / "runs").read_text() == "tried\n"


class Webhook(BaseHTTPRequestHandler):
    """Keeps what it is sent."""

    received: ClassVar[list[dict[str, str]]] = []

    def do_POST(self) -> None:
        self.received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()


def test_a_block_that_the_environment_names_is_told_how_a_run_ended(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_project({"broken": {"cmd": "exit 9", "outs": ["a.txt"]}})
    server = HTTPServer((LOOPBACK, 0), Webhook)
    with in_thread(server):
        url = f"http://{LOOPBACK}:{server.server_port}/hook"
        text = {"subject": "{{subject}}", "body": "{{body}}"}
        CustomWebhookNotificationBlock(name="hook", url=url, json_data=text).save(
            "team", overwrite=True
        )
        monkeypatch.setenv("DEEPSEARCH_NOTIFY", "custom-webhook/team")
        with pytest.raises(StageFailedError):
            reproduce()
    [message] = Webhook.received
    assert message["subject"] == "tiny: Failed"
    assert "`dvc --wait-for-lock repro --single-item broken` ended with status" in message["body"]


class EndOfTurn(logging.Handler):
    """Ends the turn of another run as soon as a message says that it is waited for, and keeps that message."""

    def __init__(self, turn: ExitStack) -> None:
        super().__init__()
        self.turn = turn
        self.notices: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "waiting for" in record.getMessage():
            self.notices.append(record.getMessage())
            self.turn.close()


def test_a_flow_waits_for_make_repro_and_says_so(make_project: MakeProject) -> None:
    project = make_project({"stage": {"cmd": "echo > a.txt", "outs": ["a.txt"]}})
    turn = ExitStack()
    turn.enter_context(
        held(run_lock(project, "tiny"), "make repro PROFILE=tiny", "works", pytest.fail)
    )
    handler = EndOfTurn(turn)
    logger = logging.getLogger("prefect.flow_runs")
    logger.addHandler(handler)
    try:
        assert reproduce() == {"stage": "Completed"}
    finally:
        logger.removeHandler(handler)
    [notice] = handler.notices
    assert f"waiting for make repro PROFILE=tiny (process {os.getpid()}, since " in notice


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ("flows.repro", "flows.reproduce", "make repro PROFILE=tiny"),
        ("flows.reproduce", "flows.repro", "the flow run tiny · forced"),
    ],
)
def test_a_flow_and_make_repro_wait_for_each_other_and_say_for_whom(
    make_project: MakeProject, root: Path, first: str, second: str, name: str
) -> None:
    until_told = "touch begun; until [ -e go ]; do sleep 0.1; done; echo > a.txt"
    project = make_project({"slow": {"cmd": until_told, "outs": ["a.txt"]}})
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "PREFECT_API_URL": str(PREFECT_API_URL.value()),
    }

    def start(module: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", module, "--force"]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=project, env=environment, **output)

    running = start(first)
    while not (project / "begun").exists():
        assert running.poll() is None
    waiting = start(second)
    assert waiting.stdout is not None
    notice = next(line for line in waiting.stdout if "waiting for" in line)
    assert f"waiting for {name} (process {running.pid}, since " in notice
    (project / "go").touch()
    for run in (running, waiting):
        run.communicate(timeout=240)
    assert [running.returncode, waiting.returncode] == [0, 0]
