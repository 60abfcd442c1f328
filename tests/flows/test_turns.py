"""Runs of one profile take turns, whoever starts them: real DVC, real processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from dvc.cli.parser import get_main_parser

from flows.dvc_calls import dvc_words, find_foreign_run, profiles_of, read_dvc_run, read_stage_call
from flows.locks import held, run_lock
from tests.flows.conftest import MakeProject, changed_stages, take_sigint

STAGE = {"cmd": "echo ran >> runs.log; echo > started; cat go > text.txt", "outs": ["text.txt"]}
HOOK = """
path = {path!r}
exec(compile(open(path).read(), path, "exec"), {{"__name__": "environment", "__file__": path}})
"""
UNRECOGNISED = [
    sys.executable,
    "-c",
    "import sys; from dvc.cli import main; sys.exit(main(['repro']))",
]
FOREIGN = [sys.executable, "-m", "dvc", "repro"]
REPRO = [sys.executable, "-m", "flows.repro"]
Start = Callable[[list[str]], "subprocess.Popen[str]"]


@pytest.fixture
def project(make_project: MakeProject, root: Path) -> Path:
    """A project whose one stage begins when ``started`` is read and ends when ``go`` is written."""
    folder = make_project({"write": STAGE})
    for name in ("started", "go"):
        os.mkfifo(folder / name)
    (folder / "flows").symlink_to(root / "flows")
    (folder / "stages").mkdir()
    for name in ("__init__.py", "environment.py", "project.env"):
        (folder / "stages" / name).write_bytes((root / "stages" / name).read_bytes())
    (folder / "stages" / "write.py").write_text("")
    (folder / "hook").mkdir()
    hook = HOOK.format(path=str(folder / "stages" / "environment.py"))
    (folder / "hook" / "sitecustomize.py").write_text(hook)
    return folder


@pytest.fixture
def start(project: Path, root: Path) -> Iterator[Start]:
    """Start a command in the project; the word "hooked" before it lets its Pythons start as those of .venv do."""
    with ExitStack() as opened:

        def begin(command: list[str]) -> "subprocess.Popen[str]":
            paths = [str(root)]
            if command[0] == "hooked":
                command = command[1:]
                paths.append(str(project / "hook"))
            process = subprocess.Popen(
                command,
                cwd=project,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                preexec_fn=take_sigint,
            )
            opened.callback(process.wait)
            opened.callback(process.kill)
            return process

        yield begin


def line_with(process: "subprocess.Popen[str]", words: str) -> str:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return line
    pytest.fail(f"no line with {words!r}:\n{''.join(lines)}")


def go(project: Path) -> None:
    (project / "go").write_text("text\n")


@pytest.mark.parametrize("command", [["hooked", *FOREIGN], REPRO])
def test_a_run_whose_lock_cannot_be_written_ends_before_it_begins(
    project: Path, start: Start, command: list[str]
) -> None:
    (project / "work").write_text("a file where the locks' folder should be")
    process = start(command)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert output.startswith("error: ")
    assert "/work" in output
    assert "Traceback" not in output
    assert not (project / "runs.log").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    # By day every first and every second one is in a pair
    [
        pytest.param(REPRO, REPRO, marks=pytest.mark.nightly),
        (REPRO, ["hooked", *FOREIGN]),
        pytest.param(["hooked", *FOREIGN], REPRO, marks=pytest.mark.nightly),
        (FOREIGN, REPRO),
        pytest.param(FOREIGN, ["hooked", *FOREIGN], marks=pytest.mark.nightly),
        pytest.param(UNRECOGNISED, REPRO, marks=pytest.mark.nightly),
        (UNRECOGNISED, [sys.executable, "ROOT/flows/dvc", "repro", "--single-item", "write"]),
        (REPRO, [sys.executable, "-m", "flows.in_turn", "tiny", "make rft", *REPRO]),
    ],
    ids=[
        "make repro and make repro",
        "make repro and dvc",
        "dvc and make repro",
        "another environment's dvc and make repro",
        "another environment's dvc and dvc",
        "a program that calls dvc and make repro",
        "a program that calls dvc and our dvc",
        "make repro and a target of several commands",
    ],
)
def test_the_second_run_names_the_first_and_finds_its_result(
    project: Path, start: Start, root: Path, first: list[str], second: list[str]
) -> None:
    one = start(first)
    (project / "started").read_text()
    two = start([word.replace("ROOT", str(root)) for word in second])
    assert f"(process {one.pid}, since " in line_with(two, "waiting for ")
    go(project)
    assert one.wait(60) == 0
    assert two.wait(60) == 0
    assert (project / "runs.log").read_text() == "ran\n"
    assert changed_stages(project) == set()


@pytest.mark.slow
def test_a_run_of_another_profile_is_in_nobodys_way(project: Path, start: Start) -> None:
    foreign = start(FOREIGN)
    (project / "started").read_text()
    holder = find_foreign_run(project, "tiny")
    assert holder is not None
    assert (holder.what, holder.pid) == ("dvc repro", foreign.pid)
    assert find_foreign_run(project, "smoke") is None
    assert find_foreign_run(project.parent, "tiny") is None
    go(project)
    assert foreign.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", [REPRO, ["hooked", *FOREIGN]], ids=["make repro", "dvc"])
def test_ctrl_c_ends_the_waiting_alone_and_without_a_traceback(
    project: Path, start: Start, command: list[str]
) -> None:
    with held(run_lock(project, "tiny"), "the first run", "works", pytest.fail):
        waiting = start(command)
        line_with(waiting, "waiting for the first run")
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(60) != 0
        assert waiting.stdout is not None
        assert waiting.stdout.read() == "cancelled\n"
    assert not (project / "runs.log").exists()


@pytest.mark.slow
def test_when_a_run_is_killed_the_next_one_waits_for_its_stage_to_end(
    project: Path, start: Start
) -> None:
    one = start(REPRO)
    (project / "started").read_text()
    stages = psutil.Process(one.pid).children(recursive=True)
    two = start(REPRO)
    line_with(two, "waiting for make repro")
    one.kill()
    (project / "started").read_text()  # the second run has come to the stage
    assert not any(
        process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in stages
    )
    go(project)
    assert two.wait(60) == 0


@pytest.mark.slow
def test_a_stage_of_another_environments_dvc_does_not_start_while_a_run_works(
    project: Path, start: Start
) -> None:
    command = f"{sys.executable} -m stages.write params.yaml && touch text.txt"
    (project / "dvc.yaml").write_text(json.dumps({"stages": {"write": {"cmd": command}}}))
    with held(run_lock(project, "tiny"), "the first run", "works", pytest.fail):
        foreign = start(FOREIGN)
        assert f"(process {os.getpid()}, since " in line_with(foreign, "error: the first run")
        assert foreign.wait(60) != 0
        by_hand = start(command.partition(" &&")[0].split())
        # Nothing can wait for a stage that DVC does not run
        line_with(by_hand, "waiting for the first run")
    assert by_hand.wait(60) == 0
    assert start(FOREIGN).wait(60) == 0


@pytest.mark.slow
def test_what_a_run_starts_belongs_to_it(project: Path, start: Start) -> None:
    inner = f"{sys.executable} -m dvc repro && {sys.executable} -m flows.repro"
    outer = start(
        ["hooked", sys.executable, "-m", "flows.in_turn", "tiny", "make rft", "sh", "-c", inner]
    )
    (project / "started").read_text()
    holder = find_foreign_run(project, "tiny")
    go(project)
    line_with(outer, "0 of 1 stages ran")
    assert holder is None
    assert outer.wait(60) == 0


@pytest.mark.parametrize(
    ("words", "profiles"),
    [
        ("repro", {"tiny"}),
        ("repro rl@sft evaluate", {"tiny"}),
        ("repro dvc.yaml", {"tiny"}),
        ("-q --wait-for-lock repro -f --single-item profiles/smoke/dvc.yaml:rl@sft", {"smoke"}),
        ("repro profiles/smoke/dvc.yaml dvc.yaml:chunk", {"smoke", "tiny"}),
        ("--cd profiles/smoke repro chunk", {"smoke"}),
        ("repro -P", {"gpu", "smoke", "tiny"}),
        ("repro -fR profiles", {"gpu", "smoke", "tiny"}),
        ("exp run -n better -S rl.group_size=4 profiles/gpu/dvc.yaml -j 2 -m words", {"gpu"}),
        ("experiments run --name=better", {"tiny"}),
        ("repro --dry", None),
        ("exp run --queue", None),
        ("exp run --temp -S seed=2", None),
        ("status profiles/smoke/dvc.yaml", None),
        ("push repro", None),
    ],
)
def test_the_profiles_of_a_dvc_command(
    tmp_path: Path, words: str, profiles: set[str] | None
) -> None:
    for name in ("smoke", "gpu"):
        (tmp_path / "profiles" / name).mkdir(parents=True)
        (tmp_path / "profiles" / name / "dvc.yaml").touch()
    run = read_dvc_run(["/usr/bin/python3", "-P", "-m", "dvc", *words.split()], tmp_path)
    if profiles is None:
        assert run is None
        return
    assert run is not None
    assert set(profiles_of(run, tmp_path)) == profiles
    # DVC's own reading of the line
    parsed = get_main_parser().parse_args(words.split())
    assert tuple(parsed.targets) == run.targets
    assert parsed.all_pipelines or parsed.recursive == run.takes_all


def test_a_dvc_in_a_folder_of_a_profile_is_of_that_profile(tmp_path: Path) -> None:
    run = read_dvc_run([".venv/bin/dvc", "repro", "rl@sft"], tmp_path / "profiles" / "smoke")
    assert run is not None
    assert profiles_of(run, tmp_path) == ["smoke"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dvc repro", "repro"),
        (".venv/bin/python .venv/bin/dvc repro", "repro"),
        ("/usr/bin/python3.11 -P -X utf8 -W ignore -m dvc repro -q", "repro -q"),
        ("python -Pm dvc repro", "repro"),
        ("Python /opt/dvc/bin/dvc repro", "repro"),
        ("/usr/bin/time -f %e .venv/bin/dvc repro", None),
        ("timeout 60 dvc repro", None),
        ("sudo -u worker dvc repro", None),
        ("uv run dvc repro", None),
        ("/bin/sh /usr/bin/xvfb-run dvc repro", None),
        ("python /opt/conda/bin/conda run dvc repro", None),
        ("python -m kernprof -l dvc repro", None),
        ("python", None),
    ],
)
def test_what_starts_dvc_is_not_dvc(line: str, words: str | None) -> None:
    assert dvc_words(line.split()) == (words and tuple(words.split()))


@pytest.mark.slow
def test_a_run_does_not_wait_for_the_program_that_started_it(project: Path, start: Start) -> None:
    run = start(["hooked", "timeout", "120", *FOREIGN])
    (project / "started").read_text()
    go(project)
    assert run.wait(60) == 0


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("python -m stages.rl params.yaml sft", ("stages.rl", "params.yaml")),
        (
            "python -P -m stages.chunk profiles/smoke/params.yaml --debug",
            ("stages.chunk", "profiles/smoke/params.yaml"),
        ),
        ("python -m stages.chunk --help", None),
        ("python -m dvc repro", None),
        ("python script.py -m", None),
    ],
)
def test_the_params_of_a_stage_by_hand(
    tmp_path: Path, words: str, call: tuple[str, str] | None
) -> None:
    assert read_stage_call(words.split(), tmp_path) == (call and (call[0], tmp_path / call[1]))
