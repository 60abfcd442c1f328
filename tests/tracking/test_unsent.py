import shutil
from pathlib import Path

import pytest

from deepsearch_rl.errors import EndpointDownError
from deepsearch_rl.files import write_json
from deepsearch_rl.tracking.packing import pack
from deepsearch_rl.tracking.parcel import PARCEL, read_parcel
from deepsearch_rl.tracking.store import local_store
from deepsearch_rl.tracking.unsent import Delivered, Failed, deliver, keep
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
        (failed,) = deliver(parcel, waiting, NOBODY, TIMEOUT_S)  # the others are not tried at a server that is away
        assert isinstance(failed, Failed)
        assert (failed.folder, type(failed.error)) == (parcel, EndpointDownError)
        kept.append(keep(parcel, waiting))
        shutil.rmtree(tmp_path / f"results{right}")
    assert kept[0] != kept[1] == kept[2]
    assert sorted(waiting.iterdir()) == sorted(set(kept))
    assert sorted(path.name for path in kept[0].iterdir()) == sorted(path.name for path in parcel.iterdir())


@pytest.mark.slow
def test_what_waits_is_sent_with_the_next_report_and_waits_no_longer(tmp_path: Path) -> None:
    waiting = tmp_path / "unsent"
    older = tmp_path / "older"
    shutil.copytree(keep(parcel_of(tmp_path, 3), waiting), older)
    newer = parcel_of(tmp_path, 4)
    keep(newer, waiting)
    store = local_store(tmp_path / "mlruns")
    sent = deliver(newer, waiting, store, TIMEOUT_S)
    names = [read_parcel(parcel).name for parcel in (newer, older)]
    assert sent == [Delivered(name, True) for name in names]
    assert list(waiting.iterdir()) == []
    assert deliver(newer, waiting, store, TIMEOUT_S) == [Delivered(names[0], False)]


@pytest.mark.slow
def test_a_waiting_parcel_that_cannot_be_read_holds_up_no_other(tmp_path: Path) -> None:
    waiting = tmp_path / "unsent"
    good = keep(parcel_of(tmp_path, 3), waiting)
    old = waiting / "0"  # tried first
    shutil.copytree(good, old)
    write_json(old / PARCEL, {"schema_version": 0})
    newer = parcel_of(tmp_path, 4)
    first, failed, last = deliver(newer, waiting, local_store(tmp_path / "mlruns"), TIMEOUT_S)
    assert isinstance(failed, Failed)
    assert failed.folder == old
    assert str(old) in str(failed.error)
    assert isinstance(first, Delivered)
    assert isinstance(last, Delivered)
    assert list(waiting.iterdir()) == [old]  # what was sent waits no longer
