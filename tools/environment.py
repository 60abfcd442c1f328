"""Make the project's environment, ``.venv/``, from the committed ``uv.lock``; do nothing where it is up to date.

    python3 tools/environment.py                 # what the graph needs
    python3 tools/environment.py --extra s3      # and a further part of pyproject.toml
    python3 tools/environment.py --all-extras    # and all of them, for the tests
    python3 tools/environment.py --adopt .venvs/sft   # nothing but the ties of another environment to this folder

The environment belongs to the folder that it is in, whatever that is called: nothing in it names
the folder. So a clone that was moved or copied (`cp -r`, `mv`) has an environment of its own, which
runs its own sources.

uv, which reads the lock, is installed by pip into ``.venvs/uv``, so that neither the user's site
nor a uv of another version takes part. The one package that is not simply the lock's is torch:
PyPI's Linux build is a CUDA build of several gigabytes, which a CPU has no use for. Where pip's
find-links (``PIP_FIND_LINKS`` or pip's configuration) offers the CPU build of the pinned version
for this Python, that one is installed and the CUDA packages are left out.

Standard library only: this runs before anything is installed.
"""

import argparse
import hashlib
import os
import shlex
import subprocess
import sys
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV_VERSION = "0.13.8"
BOOTSTRAP = ROOT / ".venvs" / "uv"
ENVIRONMENT = ROOT / ".venv"
INTERPRETER = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / ".installed"
# As requires-python of pyproject.toml
PYTHONS = ">=3.11,<3.13"
ALL_PARTS = "--all-extras"
# A user's choices of another place, such as a virtual environment that happens to be active, and of fewer parts
ELSEWHERE = {
    *("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "UV_SYSTEM_PYTHON", "UV_PYTHON", "UV_NO_EDITABLE"),
    *("UV_PROJECT", "UV_WORKING_DIR"),
    *("UV_NO_INSTALL_PROJECT", "UV_NO_INSTALL_LOCAL", "UV_NO_DEV", "UV_NO_DEFAULT_GROUPS"),
    *("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_DRY_RUN"),
}
CUDA_PREFIXES = ("nvidia-", "cuda-", "triton")


def main() -> None:
    """Bring ``.venv/`` up to date, or exit with one paragraph that says what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--all-extras", action="store_true", help="install every optional part as well"
    )
    parser.add_argument(
        "--extra", action="append", default=[], metavar="NAME", help="install this part as well"
    )
    parser.add_argument(
        "--adopt", type=Path, metavar="FOLDER", help="tie this environment to the project, and end"
    )
    arguments = parser.parse_args()
    if arguments.adopt:
        _use_own_sources(arguments.adopt)
        return

    for name in ELSEWHERE:
        os.environ.pop(name, None)

    # A full disk leaves it empty
    stamp = STAMP.read_text(encoding="utf-8").split() if STAMP.is_file() else []
    digest, *parts = stamp or [""]
    # Parts are only ever added, and brought up to date together: one with all of them is good for
    # everything.
    all_parts = {*parts, *arguments.extra}
    if arguments.all_extras:
        all_parts.add(ALL_PARTS)
    # Its interpreter is a link: a clone that was moved to another machine may have none.
    is_current = digest == _digest() and INTERPRETER.exists()
    if is_current and (all_parts == {*parts} or ALL_PARTS in parts):
        return

    extras = [ALL_PARTS]
    if ALL_PARTS not in all_parts:
        extras = [f"--extra={name}" for name in ("all", *sorted(all_parts))]

    try:
        _install(_uv(), extras)
    except subprocess.CalledProcessError as error:
        command = shlex.join(map(str, error.cmd))
        sys.exit(
            f"error: the environment is not complete: `{command}` ended with status {error.returncode}."
        )

    _use_own_sources(ENVIRONMENT)
    # Last: an installation that a kill ended is not current
    STAMP.write_text("\n".join([_digest(), *sorted(all_parts)]), encoding="utf-8")


def _use_own_sources(environment: Path) -> None:
    """Let the package deepsearch_rl of an environment be that of the folder around it, by a relative path.

    An editable install names its folder in full: in a copied clone that is the folder of another
    clone.
    """
    packages = _packages(environment)
    for editable in packages.glob("_editable_impl_deepsearch_rl.pth"):
        # Not written in place: it shares its content with uv's cache
        editable.unlink()
        editable.write_text(f"{os.path.relpath(ROOT / 'src', packages)}\n", encoding="utf-8")


def _packages(environment: Path) -> Path:
    """Return the folder of an environment's packages."""
    [packages] = environment.resolve().glob("lib/python3.*/site-packages")
    return packages


def _digest() -> str:
    """Digest of everything that decides what is installed, and of what is: another tool may have changed it."""
    parts: list[bytes] = []
    for path in (ROOT / "uv.lock", ROOT / "pyproject.toml", Path(__file__)):
        parts.append(path.read_bytes())

    distributions = ENVIRONMENT.glob("lib/python3.*/site-packages/*.dist-info")
    parts += sorted(path.name.encode() for path in distributions)
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _uv() -> list[str]:
    """The command line of the pinned uv, installed first where it is missing."""
    uv = BOOTSTRAP / "bin" / "uv"
    version = ""
    if uv.exists():
        version = subprocess.run([uv, "--version"], capture_output=True, text=True).stdout

    if UV_VERSION not in version:
        _say(f"installing uv {UV_VERSION} into {BOOTSTRAP.relative_to(ROOT)}")
        try:
            venv.create(BOOTSTRAP, with_pip=True, clear=True)
        except subprocess.CalledProcessError:
            sys.exit(
                "error: this Python cannot make virtual environments; on Debian: `apt-get install python3-venv`."
            )

        # Where the user's settings put packages is no place for this one
        install = ["-m", "pip", "install", "--no-user", "--target=", "--quiet"]
        install.append(f"uv=={UV_VERSION}")
        _run([BOOTSTRAP / "bin" / "python", *install])

    return [str(uv)]


def _install(uv: list[str], extras: list[str]) -> None:
    """Install the lock, with a CPU torch where one is offered."""
    torch, cuda_packages = _read_lock()
    _make_venv(uv)
    python = str(INTERPRETER)
    offline = ["--python", python, "--no-index", "--no-deps", *_find_links()]
    cpu_torch = [*uv, "pip", "install", *offline, f"torch=={torch}+cpu"]
    sync = [*uv, "sync", "--frozen", "--inexact", "--python", python, *extras]

    if subprocess.run([*cpu_torch, "--dry-run"], capture_output=True, cwd=ROOT).returncode == 0:
        _say(
            f"installing the locked packages with the CPU build of torch {torch} that find-links offers"
        )
        _run([*sync, *(f"--no-install-package={name}" for name in ("torch", *cuda_packages))])
        _run(cpu_torch)
        return

    if sys.platform == "linux":
        _say(
            f"no CPU build of torch {torch} in pip's find-links: installing PyPI's CUDA build, several GB. For a CPU "
            "build: `pip download --no-deps --dest wheels --index-url https://download.pytorch.org/whl/cpu "
            f"torch=={torch}+cpu`, then run again with PIP_FIND_LINKS=$PWD/wheels."
        )

    _run(sync)


def _make_venv(uv: list[str]) -> None:
    """Create ``.venv/`` with this Python where it fits, else with one that uv finds or fetches.

    One whose programs name the folder that it was made in, or whose Python is gone, is made anew.
    """
    if INTERPRETER.exists() and _is_relocatable():
        return
    fits = (3, 11) <= sys.version_info[:2] < (3, 13)
    python = sys.executable if fits else PYTHONS
    _run([*uv, "venv", "--quiet", "--clear", "--relocatable", "--python", python, str(ENVIRONMENT)])


def _is_relocatable() -> bool:
    configuration = ENVIRONMENT / "pyvenv.cfg"
    if not configuration.is_file():
        return False
    return "relocatable = true" in configuration.read_text(encoding="utf-8").splitlines()


def _read_lock() -> tuple[str, list[str]]:
    """The locked version of torch, and the names of the packages that only its CUDA build needs."""
    packages = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    torch = ""
    cuda_packages: set[str] = set()
    for package in packages:
        if package["name"] == "torch":
            torch = package["version"]
        if package["name"].startswith(CUDA_PREFIXES):
            cuda_packages.add(package["name"])

    return torch, sorted(cuda_packages)


def _find_links() -> list[str]:
    """The find-links of pip, from its environment variable and its configuration files, as uv options."""
    pip = [BOOTSTRAP / "bin" / "python", "-m", "pip", "config", "list"]
    settings = subprocess.run(pip, capture_output=True, text=True, check=True).stdout.splitlines()
    # A dictionary as a set that keeps its order: the first place that has a package wins
    places: dict[str, None] = {}
    for line in settings:
        # pip prints name='value', with lines of the value as \n
        name, _, value = line.partition("=")
        if name.endswith(".find-links"):
            texts = value.strip("'\"").replace("\\n", " ").split()
            places |= dict.fromkeys(texts)

    return [f"--find-links={place}" for place in places]


def _run(command: Sequence[str | Path]) -> None:
    subprocess.run(command, check=True, cwd=ROOT)


def _say(message: str) -> None:
    sys.stderr.write(f"environment: {message}\n")


if __name__ == "__main__":
    main()
