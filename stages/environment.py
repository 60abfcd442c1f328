"""The environment that the project's commands share; every Python of ``.venv`` runs this file when it starts.

`make environment` installs that hook. So `dvc`, `prefect` and `mlflow` of ``.venv/bin`` agree with `make`, with workers
and with stages on where the servers are, and find each other, whatever shell they were started from. The variables come
from, in this order: the process's own environment, ``.env`` of the project (each user's, not in git), and
``project.env`` beside this file; Prefect's database is in ``.prefect`` and MLflow's in ``mlruns`` of the project, also
for a copy of the project inside it. Outside of the project's folder nothing is set.

The Python that runs `dvc repro --force`, or `dvc exp run --force`, tells the stages that they begin from nothing: DVC
itself does not (``DEEPSEARCH_RESUME``, read by ``stages/entry.py``; set to 1 by hand, a forced stage resumes).
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib takes 10 ms to load


def variables(path: str) -> dict[str, str]:
    """Return the variables of a file of ``NAME=value`` lines; empty without the file."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            lines = [line.strip() for line in file]
    except FileNotFoundError:
        return {}
    pairs = (line.removeprefix("export ").partition("=") for line in lines if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}


def is_forced(command: list[str]) -> bool:
    """Return whether a Python's command line, from its program on, is DVC's with the option ``--force`` or ``-f``."""
    words = [os.path.basename(word) for word in command[1:4]]  # noqa: PTH119
    is_dvc = "dvc" in words and ("repro" in command or "run" in command)
    letters = "fsmpPRnicqvk"
    return is_dvc and any(
        word == "--force" or (len(word) > 1 and word[0] == "-" and set(word[1:]) <= set(letters) and "f" in word)
        for word in command
    )


def apply() -> None:
    """Set what is missing, and put this Python's folder on the PATH."""
    if is_forced(sys.orig_argv):
        os.environ.setdefault("DEEPSEARCH_RESUME", "0")
    for path in (os.path.join(ROOT, ".env"), os.path.join(ROOT, "stages", "project.env")):  # noqa: PTH118
        for name, value in variables(path).items():
            os.environ.setdefault(name, value)
    os.environ.setdefault("PREFECT_HOME", os.path.join(ROOT, ".prefect"))  # noqa: PTH118
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{ROOT}/mlruns/mlflow.db")
    login = os.environ.get("DEEPSEARCH_LOGIN", "")
    if ":" in login:  # one login for both servers of `make ui HOST=...`
        name, _, password = login.partition(":")
        os.environ.setdefault("PREFECT_API_AUTH_STRING", login)
        os.environ.setdefault("MLFLOW_TRACKING_USERNAME", name)
        os.environ.setdefault("MLFLOW_TRACKING_PASSWORD", password)
    programs, path = os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)  # noqa: PTH120
    if programs not in path.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([programs, path])


if os.path.join(os.getcwd(), "").startswith(os.path.join(ROOT, "")):  # noqa: PTH109, PTH118
    apply()
