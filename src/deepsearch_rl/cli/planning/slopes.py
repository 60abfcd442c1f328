"""The slopes of ``slopes.yaml`` for the machine that a profile needs, what preflight measured, and what a user says.

A slope is what one unit of work takes. Those of a machine without a GPU are scaled to this machine
by a matrix product of the tiny model's shape, whose time stands beside them.
"""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from timeit import Timer

import numpy as np
import yaml
from pydantic import Field, RootModel
from threadpoolctl import threadpool_limits

from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.files import read_record
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import NonEmpty, Record

SLOPES = Path(__file__).with_name("slopes.yaml")


class Slope(Record):
    """What one unit takes, and where the figure is from."""

    value: float = Field(ge=0)
    fixed: bool = Field(
        default=False, description="the same on a slower machine: a network, an API, a count"
    )
    source: NonEmpty


class MachineKind(Record):
    """The slopes of one kind of machine; ``like`` and ``slower`` take them from another."""

    gpu_memory_gib: float = Field(ge=0)
    calibration_s: float | None = Field(
        description="time of the matrix product there; null: no scaling"
    )
    like: str | None = None
    slower: float = Field(default=1, gt=0)
    slopes: dict[str, Slope]


class MeasuredSlopes(RootModel[dict[str, float]]):
    """What preflight writes."""


class FileSizes(Record):
    """Sizes of public files by format, where a profile reads them whole."""

    questions: dict[str, int]
    passages: dict[str, int]
    download_gb: dict[str, float]
    ifeval: int


class Price(Record):
    """An API's list price in USD per million tokens."""

    prompt: float
    completion: float
    source: NonEmpty


class SlopeFile(Record):
    """``slopes.yaml``."""

    machines: dict[str, MachineKind]
    sizes: FileSizes
    prices: dict[str, Price]

    def kind_for(self, gpu_memory_gib: float) -> str:
        """Return the smallest kind of machine with that much GPU memory, or else the largest."""
        kinds = sorted(self.machines, key=lambda name: self.machines[name].gpu_memory_gib)
        for name in kinds:
            if self.machines[name].gpu_memory_gib >= gpu_memory_gib:
                return name
        return kinds[-1]


def read_slopes() -> SlopeFile:
    """Read ``slopes.yaml``."""
    return SlopeFile.model_validate(yaml.load(SLOPES.read_text(encoding="utf-8"), yaml.CSafeLoader))


def slopes_for(
    profile: Profile, file: SlopeFile, given: Mapping[str, float]
) -> tuple[str, dict[str, Slope]]:
    """Return the kind of machine and its slopes: what is ``given`` first, then preflight's, then those of the file.

    Preflight writes ``work/<profile>/preflight/slopes.json``, ``{name: value}``. Raise
    UnknownNameError for a slope that there is not, ConfigError for one below 0, ArtifactError where
    preflight's file holds anything else.
    """
    name = file.kind_for(profile.value("requires")["gpu_memory_gib"])
    kind = file.machines[name]
    slopes = file.machines[kind.like or name].slopes | kind.slopes
    factor = kind.slower if kind.calibration_s is None else calibrate() / kind.calibration_s

    for slope_name, slope in slopes.items():
        # A network is no faster beside a faster processor
        if factor != 1 and not slope.fixed:
            scaled = slope.model_copy(update={"value": slope.value * factor})
            slopes[slope_name] = scaled

    path = profile.work / "preflight" / "slopes.json"
    measured = read_record(path, MeasuredSlopes).root if path.is_file() else {}

    # The user's last: they win over what was measured
    for source, values in ((path.as_posix(), measured), ("--slope", given)):
        for slope_name, value in values.items():
            look_up("slope", slope_name, slopes)
            if not 0 <= value < math.inf:
                raise ConfigError(
                    f"{source} {slope_name}={value:g}: a slope is a number of 0 or more."
                )
            slopes[slope_name] = Slope(value=value, source=source)

    return name, slopes


def calibrate() -> float:
    """Return the seconds of a matrix product of the tiny model's shape on one thread: the best of five runs."""
    rows = np.ones((512, 128), np.float32)
    weights = np.ones((128, 256), np.float32)
    with threadpool_limits(1):
        products = Timer(lambda: np.maximum(rows @ weights, 0) @ weights.T, timer=time.process_time)
        return min(products.repeat(repeat=5, number=100))
