"""What every stage shares: reading its params sections and turning errors into one paragraph.

A stage file reads

    def main(params: Params) -> None:
        config = params.section("chunk", ChunkConfig)
        ...

    if __name__ == "__main__":
        run(main)

and is called as ``python -m stages.chunk PARAMS_FILE [ITEM] [--debug]``.
"""

import argparse
import errno
import json
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from deepsearch_rl.errors import ConfigError, DeepsearchError, UnknownNameError

ConfigT = TypeVar("ConfigT", bound=BaseModel)
ValueT = TypeVar("ValueT")
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_FULL_DISK = re.compile(
    r"No space left on device|PytorchStreamWriter failed|unexpected pos \d+ vs \d+|\d+ requested and \d+ written"
)
"""How safetensors and faiss, torch, and numpy say it, in errors without the system's number."""
_SECRET = re.compile(r"api_key|secret|password|credential|auth_token|access_token")
"""Fields whose values are shown in no error."""
TIMINGS = Path("work", "timings.jsonl")
"""One line per finished stage run, for `deepsearch summary`; a measurement, so no artifact and not tracked."""


@dataclass(frozen=True, slots=True)
class Params:
    """One profile's params.yaml.

    ``item`` is the matrix value of the stage (``rl@sft`` -> ``sft``), empty where there is none. ``loaded`` collects
    the names of the sections that were read, which a test compares with the ``params`` of dvc.yaml.
    """

    path: Path
    values: dict[str, Any]
    item: str = ""
    loaded: set[str] = field(default_factory=set)

    @property
    def profile(self) -> str:
        """The profile's name: the folder under data/, models/ and reports/."""
        return str(self.values["profile"])

    @property
    def data(self) -> Path:
        """``data/<profile>``."""
        return Path("data", self.profile)

    @property
    def models(self) -> Path:
        """``models/<profile>``."""
        return Path("models", self.profile)

    @property
    def reports(self) -> Path:
        """``reports/<profile>``."""
        return Path("reports", self.profile)

    @property
    def work(self) -> Path:
        """``work/<profile>``: untracked, for what lets a killed stage go on."""
        return Path("work", self.profile)

    def value(self, name: str) -> Any:
        """A plain top-level value, e.g. ``seed``."""
        if name not in self.values:
            raise ConfigError(f"{self.path} has no {name!r}; copy it from params.yaml of the tiny profile.")
        self.loaded.add(name)
        return self.values[name]

    def section(self, name: str, config: type[ConfigT]) -> ConfigT:
        """A section as its frozen config.

        Raises:
            ConfigError: the section is missing, or a field is missing, unknown or out of range.
        """
        return self._validated(name, TypeAdapter(config))

    def mapping(self, name: str, config: type[ConfigT]) -> dict[str, ConfigT]:
        """A section that maps names to configs, e.g. ``datasets``."""
        return self._validated(name, TypeAdapter(dict[str, config]))  # pyright: ignore[reportInvalidTypeForm]

    def _validated(self, name: str, adapter: TypeAdapter[Any]) -> Any:
        try:
            return adapter.validate_python(self.value(name))
        except ValidationError as error:
            refused = _config_error(self.path, name, error)
        raise refused  # the library's own error shows the value, which may be a key


def chosen(kind: str, name: str, valid: Mapping[str, ValueT]) -> ValueT:
    """What a name stands for.

    Raises:
        UnknownNameError: the name is not among the valid ones.
    """
    if name not in valid:
        raise UnknownNameError(kind, name, valid)
    return valid[name]


def _config_error(path: Path, section: str, error: ValidationError) -> ConfigError:
    """What is wrong with the first field that does not fit; a misspelt name gets the nearest valid ones."""
    first = error.errors()[0]
    where = ".".join([section, *(str(part) for part in first["loc"])])
    context, given = first.get("ctx", {}), first["input"]
    valid = re.findall(r"'([^']*)'", str(context.get("expected_tags") or context.get("expected") or ""))
    name = context.get("tag", given)
    if valid and isinstance(name, str) and first["type"] in ("literal_error", "union_tag_invalid"):
        return UnknownNameError(f"value of {where} in {path},", name, valid)
    shown = "" if _SECRET.search(where) or isinstance(given, dict) else f" (given: {given!r})"
    return ConfigError(f"{path}, {where}: {first['msg']}{shown}.")


def load_params(path: Path, item: str = "") -> Params:
    """Read a profile's params.yaml.

    Raises:
        UnknownNameError: the file would be that of a profile that does not exist.
        ConfigError: the file is missing or is not a YAML mapping with a ``profile``.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if path.parent.parent.name == "profiles":
            profiles = [found.parent.name for found in path.parent.parent.glob("*/params.yaml")]
            raise UnknownNameError("profile", path.parent.name, profiles) from error
        raise ConfigError(f"{path} does not exist; give a profile's params.yaml, e.g. `params.yaml`.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}.") from error
    if not isinstance(values, dict) or "profile" not in values:
        raise ConfigError(f"{path} is not a profile: it has no `profile:` name.")
    return Params(path, values, item)


def run(main: Callable[[Params], None]) -> None:
    """Run a stage from its command line; errors end it with status 1 and one paragraph on stderr."""
    parser = argparse.ArgumentParser(description=sys.modules[main.__module__].__doc__)
    parser.add_argument("params", type=Path, help="the profile's params.yaml")
    parser.add_argument("item", nargs="?", default="", help="matrix value of the stage, e.g. the model to evaluate")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    arguments = parser.parse_args()
    started = time.monotonic()
    try:
        params = load_params(arguments.params, arguments.item)
        main(params)
        _record_run(params, Path(sys.argv[0]).stem, time.monotonic() - started)
    except Exception as error:
        if not isinstance(error, (DeepsearchError, OSError)) and not _is_full_disk(error):
            raise
        if arguments.debug:
            traceback.print_exc()
        sys.exit(f"error: {explain(error)}")


def _record_run(params: Params, stage: str, seconds: float) -> None:
    peaks_kib = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    run_of_stage = {
        "profile": params.profile,
        "stage": f"{stage}@{params.item}" if params.item else stage,
        "seconds": round(seconds, 1),
        "peak_mb": round(sum(peaks_kib) / 1024),  # of the stage's own process and of its largest child together
    }
    TIMINGS.parent.mkdir(exist_ok=True)
    with TIMINGS.open("a", encoding="utf-8") as timings:
        timings.write(json.dumps(run_of_stage) + "\n")


def _is_full_disk(error: Exception) -> bool:
    if isinstance(error, DeepsearchError):
        return False  # says what it has to say
    return (isinstance(error, OSError) and error.errno in NO_SPACE) or bool(_FULL_DISK.search(str(error)))


def explain(error: Exception) -> str:
    """The paragraph that a user reads."""
    if _is_full_disk(error):
        where = getattr(error, "filename", None) or "while writing"
        return f"the disk is full ({where}). Free some space and run the command again; finished stages are kept."
    return str(error)
