"""What containers/compose.yaml describes, as processes on loopback.

Commands, environment, secrets, order and health checks are those of the file; only host names,
ports and the folders /project and /run/secrets are others. Every process has the environment of its
service and nothing of ours. PostgreSQL is Debian's. moto's server stands for MinIO. What the
images' own scripts do is done here: database and buckets.
"""

import json
import os
import pwd
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deepsearch_rl.core.processes import LOOPBACK, ProcessGuard, last_lines
from flows.server import ROOT
from tests.flows.s3_store import S3Store, running_store
from tests.flows.test_worker import PARAMS
from tests.ports import free_port
from tests.repository import commit_all, git
from tools import environment

CONTAINERS = ROOT / "containers"
COMPOSE = (CONTAINERS / "compose.yaml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE)["services"]
ENTRYPOINT: list[str] = json.loads(
    re.findall(r"^ENTRYPOINT (.*)$", (CONTAINERS / "Dockerfile").read_text(), re.M)[0]
)
COPIED = ("Makefile", "prefect.toml", "pyproject.toml", "uv.lock", "flows", "tools", "stages")
"""What the worker needs of the project, besides a small graph."""
START_TIMEOUT_S = 240.0
LOGIN = ("team", "correct horse battery")
POSTGRES = max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)
LOG_A_RUN = """import mlflow
mlflow.set_experiment("topology")
with mlflow.start_run(run_name="evaluate"):
    mlflow.log_metric("f1", 0.5)
    mlflow.log_text("an answer", "answer.txt")
"""
STAGES = {
    "sft": {
        "cmd": "mkdir -p models/sft && cp params.yaml models/sft",
        "params": ["number"],
        "outs": ["models/sft"],
    },
    "evaluate": {
        "cmd": "python log_a_run.py && wc -l < models/sft/params.yaml > lines.txt",
        "deps": ["models/sft", "log_a_run.py"],
        "outs": ["lines.txt"],
    },
}


def test_services_name_only_what_the_file_declares_and_what_its_first_lines_make() -> None:
    compose = yaml.safe_load(COMPOSE)
    made = set(re.findall(r"secrets/([A-Z_]+)", COMPOSE.partition("name: deepsearch-rl")[0]))
    made |= set(re.findall(r"for name in ([A-Z_ ]+);", COMPOSE)[0].split())
    assert (
        made
        == set(compose["secrets"])
        == {name for service in SERVICES.values() for name in service["secrets"]}
    )
    [administrator] = re.findall(
        "^admin_username = (.*)$", (CONTAINERS / "mlflow_auth.ini").read_text(), re.MULTILINE
    )
    assert f"printf '{administrator}:" in COMPOSE, "one login for both servers"
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", {})) <= set(SERVICES), name
        named = set(re.findall(r"/run/secrets/(\w+)", str(service)))
        assert named <= set(service["secrets"]), name
        checked = re.findall(r"127\.0\.0\.1:(\d+)", str(service.get("healthcheck")))
        assert set(checked) <= {port.partition(":")[2] for port in service.get("ports", ())}, name
        volumes = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        assert {volume for volume in volumes if "/" not in volume} <= set(compose["volumes"]), name


def test_a_command_gets_every_secret_as_a_variable_and_no_command_runs_without_them(
    tmp_path: Path,
) -> None:
    def run(*command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*command], env={"PATH": os.defpath}, capture_output=True, text=True, check=False
        )

    script = (CONTAINERS / "with-secrets").read_text()
    assert script.count("/run/secrets") == 2, "once in a comment"
    (tmp_path / "with-secrets").write_text(script.replace("/run/secrets", f"{tmp_path}/secrets"))
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "KEY").write_text("a b$c\n")
    command = ["sh", str(tmp_path / "with-secrets"), "sh", "-c", 'echo "<$KEY>"']
    assert run(*command).stdout == "<a b$c>\n"
    (tmp_path / "cat").write_text("#!/bin/sh\nexit 1\n")  # no file can be read
    (tmp_path / "cat").chmod(0o755)
    broken = run("env", f"PATH={tmp_path}:{os.defpath}", *command)
    assert (broken.returncode, broken.stdout) == (1, "")


class Topology:
    """The services of compose.yaml, each started after those that it depends on."""

    def __init__(
        self, project: Path, folder: Path, guard: ProcessGuard, store: S3Store, port_of_store: int
    ) -> None:
        self.project, self.folder, self.guard, self.store = project, folder, guard, store
        self.ports = {name: free_port() for name in SERVICES} | {"s3": port_of_store}
        self.secrets = {
            name: secrets.token_hex()
            for service in SERVICES.values()
            for name in service["secrets"]
        }
        self.secrets |= {
            name: value for name, value in store.environment.items() if name in self.secrets
        }
        self.secrets |= {
            "DEEPSEARCH_LOGIN": ":".join(LOGIN),
            "MLFLOW_AUTH_ADMIN_PASSWORD": LOGIN[1],
        }
        self.started: dict[str, subprocess.Popen[str] | None] = {}

    def url(self, service: str, path: str = "") -> str:
        return f"http://{LOOPBACK}:{self.ports[service]}{path}"

    def start(self, name: str) -> None:
        """Start a service and what it depends on, and wait until its health check passes."""
        if name in self.started:
            return
        for before in SERVICES[name].get("depends_on", {}):
            self.start(before)
        for secret in SERVICES[name]["secrets"]:
            path = self.folder / name / secret
            path.parent.mkdir(exist_ok=True)
            path.write_text(self.secrets[secret])
        start: Callable[[str], subprocess.Popen[str] | None] = {
            "postgres": self._start_postgres,
            "s3": lambda _: None,
            "buckets": self._make_buckets,
        }.get(name, self._start_image)
        self.started[name] = start(name)
        if self.started[name]:
            self._wait_until_healthy(name)

    def adapt(self, service: str, text: str) -> str:
        """A text of the file with this machine's ports and folders."""
        text = text.replace("$$", "$").replace("0.0.0.0", LOOPBACK)
        text = re.sub(r"\b(127\.0\.0\.1):\d+", rf"\1:{self.ports[service]}", text)
        for name, port in self.ports.items():
            text = re.sub(rf"((?<=http://)|(?<=@)){name}(:\d+)?\b", f"{LOOPBACK}:{port}", text)
        return text.replace("/run/secrets", str(self.folder / service)).replace(
            "/project/", f"{self.project}/"
        )

    def variables(self, name: str) -> dict[str, str]:
        """The environment of a service, with its port where its command does not say one."""
        path = os.pathsep.join([str(self.project / ".venv" / "bin"), str(POSTGRES), os.defpath])
        ports = {
            "PREFECT_SERVER_API_PORT": self.ports["prefect"],
            "MLFLOW_PORT": self.ports["mlflow"],
        }
        ports["PGPORT"] = self.ports["postgres"]
        given = {
            key: self.adapt(name, value)
            for key, value in SERVICES[name].get("environment", {}).items()
        }
        return {
            "PATH": path,
            "HOME": str(self.folder),
            **{key: str(port) for key, port in ports.items()},
            **given,
        }

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _start_image(self, name: str) -> "subprocess.Popen[str]":
        """Start a service of the project's own image: its entrypoint with its command."""
        published = {port.partition(":")[2] for port in SERVICES[name].get("ports", ())}
        entrypoint = self.folder / f"{name}-entrypoint"
        shutil.copy(self.project / ENTRYPOINT[0], entrypoint)
        entrypoint.write_text(self.adapt(name, entrypoint.read_text()))
        words = [
            str(self.ports[name]) if word in published else word
            for word in SERVICES[name]["command"]
        ]
        command = [str(entrypoint), *(self.adapt(name, word) for word in words)]
        with self.log(name).open("w") as log:
            return self.guard.start(
                command, folder=self.project, environment=self.variables(name), output=log
            )

    def _wait_until_healthy(self, name: str) -> None:
        kind, *check = SERVICES[name]["healthcheck"]["test"]
        assert kind == "CMD"
        command, deadline = (
            [self.adapt(name, word) for word in check],
            time.monotonic() + START_TIMEOUT_S,
        )
        process, output = (
            self.started[name],
            {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL},
        )
        while subprocess.run(command, env=self.variables(name), check=False, **output).returncode:
            tail = last_lines(self.log(name))
            assert process
            assert process.poll() is None, f"{name} ended with {process.returncode}:\n{tail}"
            assert time.monotonic() < deadline, f"{name} is not healthy:\n{tail}"
            time.sleep(0.5)

    def _make_buckets(self, name: str) -> None:
        [command] = SERVICES[name]["command"]
        assert self.url("s3") in self.adapt(name, command)
        for bucket in re.findall(r"store/(\w+)", command):
            self.store.make_bucket(bucket)

    def _start_postgres(self, name: str) -> "subprocess.Popen[str]":
        """Do what the image's script does: a new cluster, the user's database, and databases.sql, all in a socket."""
        assert POSTGRES
        folder, user = self.folder / "database", SERVICES[name]["environment"]["POSTGRES_USER"]
        password = Path(self.adapt(name, SERVICES[name]["environment"]["POSTGRES_PASSWORD_FILE"]))
        [script] = [
            volume.partition(":")[0]
            for volume in SERVICES[name]["volumes"]
            if ":/docker-entrypoint-init" in volume
        ]
        as_user = own(folder, password)
        initialize = [
            "initdb",
            f"--username={user}",
            f"--pwfile={password}",
            f"--pgdata={folder / 'data'}",
        ]
        options = ["--auth-local=trust", "--auth-host=scram-sha-256", "--no-sync"]
        with self.log(name).open("w") as log:
            subprocess.run(
                [*as_user, POSTGRES / initialize[0], *initialize[1:], *options],
                check=True,
                stdout=log,
            )
            places = [
                "-D",
                str(folder / "data"),
                "-k",
                str(folder),
                "-h",
                LOOPBACK,
                "-p",
                str(self.ports[name]),
            ]
            process = self.guard.start([*as_user, str(POSTGRES / "postgres"), *places], output=log)
        self.started[name] = process
        self._wait_until_healthy(name)
        self.query("postgres", f"CREATE DATABASE {user}")
        self.query(user, (CONTAINERS / script).read_text())
        return process

    def query(self, database: str, statement: str) -> str:
        """What PostgreSQL answers over the network, with the password."""
        user = SERVICES["postgres"]["environment"]["POSTGRES_USER"]
        login = {
            "PGPASSWORD": self.secrets["POSTGRES_PASSWORD"],
            "PGHOST": LOOPBACK,
            "PGUSER": user,
        }
        command = [
            "psql",
            "--no-psqlrc",
            "--tuples-only",
            "--no-align",
            "--set=ON_ERROR_STOP=1",
            "--dbname",
            database,
        ]
        variables = self.variables("postgres") | login
        result = subprocess.run(
            command, input=statement, env=variables, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()


def own(folder: Path, *files: Path) -> list[str]:
    """Make a folder, and give it and files to a user that PostgreSQL can run as; return how to run a command as it."""
    folder.mkdir()
    if os.getuid():
        return []
    user = pwd.getpwnam("postgres")
    for path in (folder, *files, *(path.parent for path in files)):
        os.chown(path, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def make_project(folder: Path) -> Path:
    """A small project with the files of the image, and an environment that has the packages of ours."""
    folder.mkdir()
    for name in (*COPIED, "containers"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    shutil.rmtree(folder / "containers" / "secrets", ignore_errors=True)
    settings = folder / "containers" / "mlflow_auth.ini"
    settings.write_text(settings.read_text().replace("/project/", f"{folder}/"))
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": STAGES}))
    (folder / "log_a_run.py").write_text(LOG_A_RUN)
    (folder / "corpus.jsonl").write_text(
        "".join(
            f'{{"id": "{number}", "contents": "Title {number}\\nWord{number} here."}}\n'
            for number in range(9)
        )
    )
    (folder / ".gitignore").write_text(
        "/.venv/\n/work/\n/mlruns/\n/data/\n/models/\n/lines.txt\n/.prefect/\n"
    )
    (folder / "mlruns").mkdir()
    make_environment(folder)
    git(folder, "init", "--quiet")
    subprocess.run([folder / ".venv/bin/dvc", "init", "--quiet"], cwd=folder, check=True)
    commit_all(folder, "first")
    return folder


def make_environment(folder: Path) -> None:
    """``.venv`` as `make environment` leaves it, with our packages in place of a copy of them."""
    venv.create(folder / ".venv", symlinks=True)
    [packages] = (folder / ".venv").glob("lib/python3.*/site-packages")
    [ours] = Path(sys.prefix).glob("lib/python3.*/site-packages")
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({str(ours)!r})\n")
    python = folder / ".venv" / "bin" / "python"
    for program in ("dvc", "mlflow", "prefect"):
        write_program(python.with_name(program), f'exec {python} -m {program} "$@"')
    write_program(
        python.with_name("deepsearch"),
        f'exec {python} -c "from deepsearch_rl.cli.main import main; main()" "$@"',
    )
    # A container sees no other container's processes.
    has_our_home = 'grep --quiet --null-data --line-regexp "HOME=$HOME" "/proc/$pid/environ"'
    ours_alone = f'[ "$pid" != $$ ] && {has_our_home} && exit 0'
    write_program(
        python.with_name("pgrep"),
        f'for pid in $(/usr/bin/pgrep "$@"); do {ours_alone}; done; exit 1',
    )
    code = "from tools import environment as e; e._write_hook(); print(e._digest())"
    digest = subprocess.run(
        [python, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    (folder / ".venv" / environment.STAMP.name).write_text(f"{digest}{environment.ALL_PARTS}")


def write_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


@pytest.fixture(scope="module")
def topology() -> Iterator[Topology]:
    if POSTGRES is None:
        if os.environ.get("CI"):
            pytest.fail(
                "PostgreSQL is not installed: .ci/run should have installed Debian's package postgresql"
            )
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with ExitStack() as stack:
        # Not below pytest's own folder, which PostgreSQL's user cannot enter.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topology-")))
        folder.chmod(0o755)
        project = make_project(folder / "project")
        port = free_port()
        store = stack.enter_context(running_store(port))
        guard = stack.enter_context(ProcessGuard())
        yield Topology(project, folder, guard, store, port)


def ask(url: str, auth: tuple[str, str] | None = LOGIN, **body: Any) -> Any:
    """The answer to a POST with a body, or else to a GET, as JSON."""
    answer = httpx.request("POST" if body else "GET", url, json=body or None, auth=auth, timeout=30)
    return answer.raise_for_status().json()


def finished_run(topology: Topology, run: Mapping[str, Any]) -> Mapping[str, Any]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while run["state_type"] not in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
        assert time.monotonic() < deadline, topology.log("worker").read_text()[-3000:]
        time.sleep(1)
        run = ask(topology.url("prefect", f"/api/flow_runs/{run['id']}"))
    return run


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_run_goes_through_worker_servers_databases_and_buckets(topology: Topology) -> None:
    topology.start("worker")
    prefect, mlflow = topology.url("prefect", "/api"), topology.url("mlflow", "/api/2.0/mlflow")
    for url in (f"{prefect}/admin/version", f"{mlflow}/experiments/get?experiment_id=0"):
        for login in (None, ("team", "another password")):
            assert httpx.get(url, auth=login).status_code == httpx.codes.UNAUTHORIZED
    deployment = ask(f"{prefect}/deployments/name/reproduce/tiny")["id"]
    asked = ask(f"{prefect}/deployments/{deployment}/create_flow_run", state={"type": "SCHEDULED"})
    run = finished_run(topology, asked)
    assert run["state_type"] == "COMPLETED", topology.log("worker").read_text()[-5000:]
    stages = ask(f"{prefect}/task_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})
    assert {stage["name"]: stage["state_name"] for stage in stages} == {
        "sft": "Completed",
        "evaluate": "Completed",
    }
    assert {name.partition("/")[0] for name in topology.store.names("dvc")} == {"files", "runs"}
    assert [name for name in topology.store.names("mlflow") if name.endswith("/answer.txt")]
    experiment = ask(f"{mlflow}/experiments/get-by-name?experiment_name=topology")["experiment"]
    [logged] = ask(f"{mlflow}/runs/search", experiment_ids=[experiment["experiment_id"]])["runs"]
    assert logged["data"]["metrics"][0]["value"] == 0.5
    assert topology.query("prefect", "SELECT state_type FROM flow_run") == "COMPLETED"
    assert topology.query("mlflow", "SELECT key, value FROM latest_metrics") == "f1|0.5"
    logs = "".join(path.read_text(errors="replace") for path in topology.folder.glob("*.log"))
    assert not [name for name, value in topology.secrets.items() if value in logs]


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_the_retrieval_server_asks_for_its_token(topology: Topology) -> None:
    index = [
        "retrieve",
        "build",
        "--corpus",
        "corpus.jsonl",
        "--out",
        "data/tiny/index/world",
        "--dimension",
        "4",
    ]
    program = topology.project / ".venv" / "bin" / "deepsearch"
    subprocess.run([program, *index], cwd=topology.project, check=True, capture_output=True)
    topology.start("retrieval")
    request = {
        "url": topology.url("retrieval", "/retrieve"),
        "json": {"queries": ["word3"], "topk": 1},
        "timeout": 30,
    }
    assert httpx.post(**request).status_code == httpx.codes.UNAUTHORIZED
    token = {"Authorization": f"Bearer {topology.secrets['SEARCH_TOKEN']}"}
    assert "Word3" in httpx.post(**request, headers=token).raise_for_status().text
