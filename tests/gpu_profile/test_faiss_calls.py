"""Our calls of faiss-gpu, made with its wheel on a machine without a GPU (`make check-gpu-calls` installs it)."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_profile.check_environment import FAISS_ENVIRONMENT, FAISS_PYTHON

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not FAISS_PYTHON.exists(), reason=f"{FAISS_ENVIRONMENT} is not built: make check-gpu-calls"
    ),
]
CALLS = """
import json, sys
from pathlib import Path
import faiss, numpy
from deepsearch_rl.core.errors import UnavailableError
from deepsearch_rl.search.vectors.building import build_vector_index
from deepsearch_rl.search.vectors.config import IvfPqConfig
from deepsearch_rl.search.vectors.dense import open_vector_index
from deepsearch_rl.search.vectors.gpu import copy_to_gpu, require_device

folder = Path(sys.argv[1])
vectors = numpy.random.default_rng(0).normal(size=(2000, 96)).astype(numpy.float32)
numpy.save(folder / "encoded.npy", vectors)
values = {"kind": "ivf_pq", "nlist": 4, "nprobe": 4, "m": 96, "nbits": 8, "train_rows": 2000}
config = IvfPqConfig(**values, device="cpu", search_device="cpu")
build_vector_index(folder / "encoded.npy", folder / "index", config, 0)
found = open_vector_index(folder / "index", config).nearest(vectors[:20], 1)
errors = []
for call, argument in (
    (require_device, config.model_copy(update={"device": "cuda"})),
    (copy_to_gpu, faiss.read_index(str(folder / "index" / "index.faiss"))),
):
    try:
        call(argument)
    except UnavailableError as error:
        errors.append(str(error))
options = faiss.GpuClonerOptions()
print(json.dumps({
    "gpus": faiss.get_num_gpus(),
    "errors": errors,
    "found": sum(int(ranking.rows_K[0]) == row for row, ranking in enumerate(found)),
    "options": [options.useFloat16, options.reserveVecs, options.use_cuvs],
    "cp": [hasattr(kind, "cp") for kind in (faiss.GpuIndexIVFPQ, faiss.GpuIndexIVFFlat)],
    "back": type(faiss.index_gpu_to_cpu(faiss.read_index(str(folder / "index" / "index.faiss")))).__name__,
}))
"""


@pytest.fixture(scope="module")
def answers(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "CUDA_VISIBLE_DEVICES": ""}
    call = [FAISS_PYTHON, "-c", CALLS, tmp_path_factory.mktemp("faiss")]
    result = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_the_wheel_builds_and_searches_on_the_cpu_as_faiss_cpu_does(
    answers: dict[str, Any],
) -> None:
    assert (answers["gpus"], answers["found"], answers["back"]) == (0, 20, "IndexIVFPQ")


def test_the_options_that_we_set_are_fields_of_the_wheel_which_has_no_cuvs(
    answers: dict[str, Any],
) -> None:
    assert answers["options"] == [False, 0, False]
    assert answers["cp"] == [True, True]


def test_only_the_missing_gpu_stops_the_copy(answers: dict[str, Any]) -> None:
    missing, refused = answers["errors"]
    assert "finds no GPU" in missing
    assert "Invalid GPU device 0" in refused
