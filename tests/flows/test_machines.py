"""Two machines, one Prefect server and one S3 store: what one of them has made, the other one fetches."""

import logging
import os
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.errors import CommandError
from deepsearch_rl.core.processes import LOOPBACK
from flows.reproduce import reproduce
from flows.worker import deploy
from tests.flows.conftest import MakeProject
from tests.flows.s3_store import S3Store, running_store
from tests.flows.test_worker import PARAMS, finished_run, running_worker
from tests.ports import free_port
from tests.repository import commit_all, git
from tests.search_servers import in_thread
from tools import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

GRAPH = {
    "sft": {
        "cmd": "echo sft >> executed.log; mkdir models; cp params.yaml models/sft.txt; echo $AWS_SECRET_ACCESS_KEY",
        "params": ["number"],
        "outs": ["models"],
    },
    "evaluate": {
        "cmd": "echo evaluate >> executed.log; wc -l < models/sft.txt > lines.txt",
        "deps": ["models"],
        "outs": ["lines.txt"],
    },
}
GPU = "#!/bin/sh\necho 81920\n"
"""Stands for nvidia-smi, of a machine with 80 GiB."""


@pytest.fixture
def project(make_project: MakeProject, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a GPU profile, tiny, whose stages are sft and evaluate, and a profile of the pool cpu."""
    gpu = {**PARAMS, "requires": {**PARAMS["requires"], "gpu_memory_gib": 40}}  # type: ignore[dict-item]
    folder = make_project(GRAPH, yaml.safe_dump(gpu))
    (folder / "profiles" / "small").mkdir(parents=True)
    (folder / "profiles" / "small" / "params.yaml").write_text(
        yaml.safe_dump({**PARAMS, "profile": "small"})
    )
    (folder / "profiles" / "small" / "dvc.yaml").write_text("stages: {}\n")
    (folder / ".gitignore").write_text(
        "/work/\n/models\n/lines.txt\n/executed.log\n/worker.log\n/other/\n"
    )
    (folder / "uv.lock").write_bytes((ROOT / "uv.lock").read_bytes())
    commit_all(folder, "first")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return folder


def set_remote(*arguments: str) -> BaseException | str:
    """What `deepsearch remote set` prints, or its error."""
    result = CliRunner().invoke(app, ["remote", "set", *arguments])
    return result.exception or result.output


def use(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)


def run(
    client: SyncPrefectClient, deployment: str, parameters: dict[str, Any], project: Path
) -> FlowRun:
    """Ask for a run of a deployment and wait for its end."""
    asked = client.create_flow_run_from_deployment(
        client.read_deployment_by_name(f"reproduce/{deployment}").id, parameters=parameters
    )
    return finished_run(client, lambda run: run.id == asked.id, project)


def states(client: SyncPrefectClient, flow_run: FlowRun) -> dict[str, str]:
    """The final states of a run's stages."""
    only_this = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.id]))
    return {
        run.name: run.state_name or "" for run in client.read_task_runs(flow_run_filter=only_this)
    }


def executed(clone: Path) -> list[str]:
    path = clone / "executed.log"
    return path.read_text().split() if path.exists() else []


@pytest.mark.nightly
@pytest.mark.usefixtures("prefect_server")
def test_what_the_gpu_machine_trained_is_evaluated_on_the_other_one(
    project: Path,
    tmp_path_factory: pytest.TempPathFactory,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laptop, programs = project, tmp_path_factory.mktemp("programs")
    (programs / "nvidia-smi").write_text(GPU)
    (programs / "nvidia-smi").chmod(0o755)
    with running_store() as store, ExitStack() as workers:
        store.make_bucket("team")
        use(store, monkeypatch)
        assert "DVC's remote is s3://team/deepsearch." in str(
            set_remote("s3://team/deepsearch", "--endpoint", store.url)
        )
        commit_all(project, "A remote")
        box = tmp_path_factory.mktemp("other") / "box"
        git(project, "clone", "--quiet", str(project), str(box))
        path = os.pathsep.join([str(programs), os.environ["PATH"]])
        workers.enter_context(running_worker(box, root, "gpu", PATH=path))
        workers.enter_context(running_worker(laptop, root))
        with get_client(sync_client=True) as client:
            deploy(project)
            trained = run(client, "tiny", {"targets": ["sft"]}, box)
            assert states(client, trained) == {"sft": "Completed"}
            evaluated = run(client, "small", {"profile": "tiny", "targets": ["evaluate"]}, laptop)
            assert states(client, evaluated) == {"sft": "Restored", "evaluate": "Completed"}
            looked_at = run(client, "tiny", {}, box)
            assert states(client, looked_at) == {"sft": "Cached", "evaluate": "Restored"}
            logs = "\n".join(log.message for log in client.read_logs(limit=200))
    assert (executed(box), executed(laptop)) == (["sft"], ["evaluate"])
    assert (box / "lines.txt").read_text() == (laptop / "lines.txt").read_text()
    assert "echo $AWS_SECRET_ACCESS_KEY" in logs, "the log has the stage's output"
    assert store.secret not in logs
    for folder in (box, laptop, Path(os.environ["PREFECT_HOME"])):
        assert not any(
            store.secret.encode() in path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        )


class StoreStarter(logging.Handler):
    """Starts a store on a port when a message says that a push has failed, and keeps all messages."""

    def __init__(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.port, self.monkeypatch, self.messages = port, monkeypatch, list[str]()
        self.running, self.store = ExitStack(), S3Store("", "", "")

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        if "push of sft failed (attempt 1)" in self.messages[-1]:
            self.store = self.running.enter_context(running_store(self.port))
            self.store.make_bucket("team")
            use(self.store, self.monkeypatch)


@pytest.mark.nightly
@pytest.mark.usefixtures("prefect_server")
def test_a_store_that_is_down_delays_a_stage_and_gets_what_it_made_when_it_is_back(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    use(S3Store("", "nobody", "correct-horse-battery"), monkeypatch)
    error = set_remote("s3://team/deepsearch", "--endpoint", f"http://{LOOPBACK}:{port}")
    assert isinstance(error, CommandError)
    assert "Could not connect to the endpoint URL" in str(error)
    handler = StoreStarter(port, monkeypatch)
    logger = logging.getLogger("prefect.task_runs")
    logger.addHandler(handler)
    try:
        assert reproduce(targets=("sft",)) == {"sft": "Completed"}
        names = handler.store.names("team")
    finally:
        logger.removeHandler(handler)
        handler.running.close()
    log = "\n".join(handler.messages)
    assert "DVC's remote cannot be asked for sft, so it runs here" in log
    assert "the push of sft failed (attempt 1); trying again" in log
    assert "NOT PUSHED" not in log
    assert "correct-horse" not in log
    assert executed(project) == ["sft"]
    assert any(name.startswith("deepsearch/files/md5/") for name in names)
    assert any(name.startswith("deepsearch/runs/") for name in names)


@pytest.mark.nightly
@pytest.mark.usefixtures("prefect_server")
def test_a_run_in_a_clone_pushes_to_a_remote_that_is_not_committed_yet(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_store() as store:
        store.make_bucket("team")
        use(store, monkeypatch)
        set_remote("s3://team/deepsearch", "--endpoint", store.url)
        assert reproduce(targets=("sft",), params={"number": 8}) == {"sft": "Completed"}
        assert any(name.startswith("deepsearch/runs/") for name in store.names("team"))
    assert executed(project) == [], "it ran in its clone"


class S3Errors(BaseHTTPRequestHandler):
    """A store that answers every request with one error, as S3 writes it."""

    protocol_version = "HTTP/1.1"
    status: ClassVar[int] = 404
    code: ClassVar[str] = "NoSuchBucket"
    message: ClassVar[str] = "The specified bucket does not exist"

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        error = f"<Error><Code>{self.code}</Code><Message>{self.message}</Message></Error>"
        body = b"" if self.command == "HEAD" else error.encode()
        self.send_response(self.status)
        self.send_header("content-type", "application/xml")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *_: object) -> None:
        """The tests' output stays readable."""


class S3Refusals(S3Errors):
    """One that refuses these keys."""

    status = 403
    code = "SignatureDoesNotMatch"
    message = "The request signature we calculated does not match the signature you provided."


@pytest.mark.parametrize(
    ("store", "problems"),
    [
        (S3Errors, ["The specified bucket does not exist"]),
        (S3Refusals, ["Forbidden", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in .env"]),
    ],
)
def test_what_a_store_refuses_is_said_without_its_keys(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    store: type[BaseHTTPRequestHandler],
    problems: list[str],
) -> None:
    server = ThreadingHTTPServer((LOOPBACK, 0), store)
    with in_thread(server):
        url = f"http://{LOOPBACK}:{server.server_port}"
        use(S3Store(url, "nobody", "correct-horse-battery"), monkeypatch)
        error = set_remote("s3://team/deepsearch", "--endpoint", url)
    assert isinstance(error, CommandError)
    assert not [problem for problem in problems if problem not in str(error)], str(error)
    assert "correct-horse" not in str(error)
    settings = (project / ".dvc" / "config").read_text()
    assert f"endpointurl = {url}" in settings
    assert "correct-horse" not in settings


@pytest.mark.nightly
def test_what_is_wrong_with_a_store_is_said_without_its_keys(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_store() as store:
        use(store, monkeypatch)
        address = ["s3://team/deepsearch", "--endpoint", store.url]
        error = set_remote(*address)
        assert isinstance(error, CommandError)
        assert "The specified bucket does not exist" in str(error)
        store.make_bucket("team")
        assert "DVC's remote is s3://team/deepsearch." in str(set_remote(*address))
        assert [name.split("/")[1] for name in store.names("team")] == ["files"]
        for name, value in (
            ("AWS_ACCESS_KEY_ID", "nobody"),
            ("AWS_SECRET_ACCESS_KEY", "correct-horse-battery"),
        ):
            with monkeypatch.context() as patch:
                patch.setenv(name, value)
                error = set_remote(*address)
            assert isinstance(error, CommandError)
            assert "Forbidden" in str(error)
            assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in .env" in str(error)
            assert not {store.secret, "correct-horse-battery"} & set(str(error).split())
    settings = (project / ".dvc" / "config").read_text()
    assert f"endpointurl = {store.url}" in settings
    assert store.secret not in settings
