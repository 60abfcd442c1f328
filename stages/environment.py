"""The environment that the project's commands share; every Python of ``.venv`` runs this file when it starts.

`make environment` installs that hook. So `dvc`, `prefect` and `mlflow` of ``.venv/bin`` agree with
`make`, with workers and with stages on where the servers are, and find each other, whatever shell
they were started from. The variables come from, in this order: the process's own environment,
``.env`` of the project (each user's, not in git), and ``project.env`` beside this file; Prefect's
database is in ``.prefect`` and MLflow's in ``mlruns`` of the project, also for a copy of the
project inside it. Where the shell names a proxy, this machine's own addresses are kept from it
(``src/deepsearch_rl/core/loopback.py``). Outside of the project's folder no variable is set.

The Python that runs `dvc repro --force`, or `dvc exp run --force`, tells the stages that they begin
from nothing: DVC itself does not (``DEEPSEARCH_RESUME``, read by ``core/stage_entry.py``; set to 1 by
hand, a forced stage resumes).

Modules come from the project first, then from its environment, and from folders of a foreign
``PYTHONPATH`` last: ROS and others set one for all programs of a shell, and their packages are
neither ours nor the locked ones.

A `dvc repro` and a stage of a project's folder also take the lock of their profile's runs here, so
that they and the runs of `make` and of Prefect take turns (``flows/dvc_calls.py``).
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib takes 10 ms to load
# Names that ``.env`` sets, for core/redaction.py: what looks like a key among their values
# reaches no log.
ENV_FILE_NAMES = "DEEPSEARCH_ENV_FILE_NAMES"
# Set where a process has named the unreadable lines of ``.env``, so that those that it starts do
# not
WARNED = "DEEPSEARCH_ENV_WARNED"


def variables(path: str) -> dict[str, str]:
    """Return the variables of a file of ``NAME=value`` lines; empty without the file."""
    return read_variables(path)[0]


def read_variables(path: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables of a file, and a sentence for each line that cannot be read; nothing without the file.

    A line is ``NAME=value``, also after ``export``. The value may be quoted. A comment begins with
    ``#``, at the beginning of a line or after a space.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:  # noqa: PTH123
            lines = file.read().split("\n")
    except FileNotFoundError:
        return {}, []
    except UnicodeDecodeError:
        return {}, [
            f"{path} is not read: it is no UTF-8 text (PowerShell writes UTF-16); save it as UTF-8."
        ]
    except OSError as error:
        return {}, [f"{path} is not read: {error.strerror}."]

    values: dict[str, str] = {}
    problems: list[str] = []

    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if text[:7].split() == ["export"]:
            text = text[7:]
        name, equals, rest = text.partition("=")
        value = _value(rest.strip())

        if equals and name.strip().isidentifier() and value is not None:
            values[name.strip()] = value
        else:
            # Without the line itself, which may hold a key
            problems.append(
                f"{path}, line {number} is not read: it is not NAME=value, or its quote does not end."
            )

    return values, problems


def _value(text: str) -> str | None:
    """Return a value without its quotes and its comment; None where text follows a quote, or the quote does not end."""
    if text[:1] in ('"', "'"):
        value, end, rest = text[1:].partition(text[0])
        comment = rest.strip()
        return value if end and (not comment or comment.startswith("#")) else None

    if text.startswith("#"):
        return ""
    for space in (" #", "\t#"):
        text = text.partition(space)[0]
    return text.rstrip()


def own_modules_first() -> None:
    """Search the sources of this project before, and folders of a foreign ``PYTHONPATH`` after all else."""
    sources = os.path.join(ROOT, "src")  # noqa: PTH118
    foreign = foreign_folders()
    paths = [path for path in sys.path if path not in foreign and path != sources]
    last = [path for path in sys.path if path in foreign]
    # The sources of a copy of the project, which tools/python puts first, stay before the
    # project's.
    position = 0
    while position < len(paths) and _is_own(paths[position]):
        position += 1
    sys.path[:] = [*paths[:position], sources, *paths[position:], *last]


def foreign_folders() -> list[str]:
    """Return the folders of ``PYTHONPATH`` that are neither in this project nor the sources of the working directory.

    An empty name in it is the working directory.
    """
    value = os.environ.get("PYTHONPATH")
    names = value.split(os.pathsep) if value else []
    return [path for path in map(os.path.abspath, names) if not _is_own(path)]


def _is_own(path: str) -> bool:
    return _is_inside(path) or path == os.path.join(_working_folder(), "src")  # noqa: PTH118


def _is_inside(path: str) -> bool:
    return os.path.join(path, "").startswith(os.path.join(ROOT, ""))  # noqa: PTH118


def _working_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        # It was removed
        return os.sep


def is_forced(command: list[str]) -> bool:
    """Return whether a Python's command line, from its program on, is DVC's with the option ``--force`` or ``-f``."""
    words = [os.path.basename(word) for word in command[1:4]]  # noqa: PTH119
    is_dvc = "dvc" in words and ("repro" in command or "run" in command)
    return is_dvc and any(map(_is_force, command))


def _is_force(word: str) -> bool:
    """Return whether a word is ``--force``, or letters of DVC that share a dash and have an f, as in ``-fP``."""
    # DVC's single-letter options without a value; others, as of -Sf=1, are followed by theirs
    letters = set("fsmpPRnicqvk")
    are_letters = len(word) > 1 and word[0] == "-" and set(word[1:]) <= letters
    return word == "--force" or (are_letters and "f" in word)


def apply() -> None:
    """Set what is missing, and put this Python's folder on the PATH."""
    if is_forced(sys.orig_argv):
        os.environ.setdefault("DEEPSEARCH_RESUME", "0")
    own = os.path.join(ROOT, ".env")  # noqa: PTH118

    for path in (own, os.path.join(ROOT, "stages", "project.env")):  # noqa: PTH118
        values, problems = read_variables(path)
        if path == own and values:
            os.environ[ENV_FILE_NAMES] = ",".join(values)
        for name, value in values.items():
            os.environ.setdefault(name, value)
        if problems and WARNED not in os.environ:
            os.environ[WARNED] = "1"
            sys.stderr.write("".join(f"warning: {problem}\n" for problem in problems))

    os.environ.setdefault("PREFECT_HOME", os.path.join(ROOT, ".prefect"))  # noqa: PTH118
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{ROOT}/mlflow.db")
    login = os.environ.get("DEEPSEARCH_LOGIN", "")

    # One login for both servers of `make ui HOST=...`
    if ":" in login:
        name, _, password = login.partition(":")
        os.environ.setdefault("PREFECT_API_AUTH_STRING", login)
        os.environ.setdefault("MLFLOW_TRACKING_USERNAME", name)
        os.environ.setdefault("MLFLOW_TRACKING_PASSWORD", password)

    spare_loopback()
    programs = os.path.dirname(sys.executable)  # noqa: PTH120
    path = os.environ.get("PATH", os.defpath)
    if programs not in path.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([programs, path])


def spare_loopback() -> None:
    """Keep this machine's own addresses from any proxy; the package's function, from its file of this revision."""
    path = os.path.join(ROOT, "src", "deepsearch_rl", "project", "loopback.py")  # noqa: PTH118
    if not os.path.exists(path):  # noqa: PTH110
        return
    names: dict[str, object] = {"__name__": "loopback"}
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        exec(compile(file.read(), path, "exec"), names)
    names["spare_loopback"]()  # pyright: ignore[reportCallIssue]  a function of that file


def take_turn() -> None:
    """Let `dvc repro` and a stage hold the lock of their profile's runs; any other program costs nothing."""
    words = sys.orig_argv[:6]
    if not os.path.exists(os.path.join(ROOT, "flows", "dvc_calls.py")):  # noqa: PTH110, PTH118 - stages alone
        return
    if not any(word.startswith("stages.") or os.path.basename(word) == "dvc" for word in words):  # noqa: PTH119
        return
    before = set(sys.modules)
    sys.path.insert(0, ROOT)

    try:
        from flows.dvc_calls import take_turn_or_exit  # noqa: PLC0415 - for these programs alone

        take_turn_or_exit()
    finally:
        sys.path.remove(ROOT)
        # The program may be one of a copy of the project, which has its own package of this name.
        for name in sys.modules.keys() - before:
            if name.partition(".")[0] == "flows":
                del sys.modules[name]


own_modules_first()
if _is_inside(_working_folder()):
    apply()
    take_turn()
