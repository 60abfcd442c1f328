import shutil
from pathlib import Path

import pytest

from deepsearch_rl.errors import EndpointError
from deepsearch_rl.tracking.packing import pack
from deepsearch_rl.tracking.store import local_store
from deepsearch_rl.tracking.unsent import deliver, keep
from tests.tracking.conftest import CONFIG, PROVENANCE, SEED, make_results

NOBODY = "http://127.0.0.1:9"
TIMEOUT_S = 5.0


def parcel_of(folder: Path, right: int) -> Path:
    pack(make_results(folder / f"results{right}", right), PROVENANCE, CONFIG, SEED, folder / "parcel")
    return folder / "parcel"


def test_every_report_that_could_not_be_sent_waits_on_its_own(tmp_path: Path) -> None:
    waiting = tmp_path / "unsent"
    kept = []
    for right in (3, 4, 4):
        parcel = parcel_of(tmp_path, right)
        with pytest.raises(EndpointError):
            deliver(parcel, waiting, NOBODY, TIMEOUT_S)
        kept.append(keep(parcel, waiting))
        shutil.rmtree(tmp_path / f"results{right}")
    assert kept[0] != kept[1] == kept[2]
    assert sorted(waiting.iterdir()) == sorted(set(kept))
    assert sorted(path.name for path in kept[0].iterdir()) == sorted(path.name for path in parcel.iterdir())


@pytest.mark.slow
def test_what_waits_is_sent_with_the_next_report_and_waits_no_longer(tmp_path: Path) -> None:
    waiting = tmp_path / "unsent"
    keep(parcel_of(tmp_path, 3), waiting)
    newer = parcel_of(tmp_path, 4)
    keep(newer, waiting)
    store = local_store(tmp_path / "mlruns")
    sent = deliver(newer, waiting, store, TIMEOUT_S)
    assert [report.now for report in sent] == [True, True]
    assert list(waiting.iterdir()) == []
    assert [(report.name, report.now) for report in deliver(newer, waiting, store, TIMEOUT_S)] == [
        (sent[0].name, False)
    ]
