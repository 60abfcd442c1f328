import shutil
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from deepsearch_rl.core.errors import EndpointDownError
from deepsearch_rl.core.files import write_json
from deepsearch_rl.track.build_bundle import build_bundle
from deepsearch_rl.track.bundle import BUNDLE, read_bundle
from deepsearch_rl.track.upload import FailedUpload, Uploaded, put_into_outbox, upload_all
from tests.track.conftest import CONFIG, PROVENANCE, SEED, make_results, new_store

NOBODY = "http://127.0.0.1:9"
TIMEOUT_S = 5.0


def bundle_of(folder: Path, right: int) -> Path:
    build_bundle(
        make_results(folder / f"results{right}", right), PROVENANCE, CONFIG, SEED, folder / "bundle"
    )
    return folder / "bundle"


@pytest.mark.slow
def test_every_report_that_could_not_be_sent_waits_on_its_own(tmp_path: Path) -> None:
    waiting = tmp_path / "outbox"
    kept = []
    for right in (3, 4, 4):
        bundle = bundle_of(tmp_path, right)
        # The others are not tried at a server that is away
        (failed,) = upload_all(bundle, waiting, NOBODY, TIMEOUT_S)
        assert isinstance(failed, FailedUpload)
        assert (failed.folder, type(failed.error)) == (bundle, EndpointDownError)
        kept.append(put_into_outbox(bundle, waiting))
        shutil.rmtree(tmp_path / f"results{right}")
    assert kept[0] != kept[1] == kept[2]
    assert sorted(waiting.iterdir()) == sorted(set(kept))
    assert sorted(path.name for path in kept[0].iterdir()) == sorted(
        path.name for path in bundle.iterdir()
    )


@pytest.mark.slow
def test_what_waits_is_sent_with_the_next_report_and_waits_no_longer(tmp_path: Path) -> None:
    waiting = tmp_path / "outbox"
    older = tmp_path / "older"
    shutil.copytree(put_into_outbox(bundle_of(tmp_path, 3), waiting), older)
    newer = bundle_of(tmp_path, 4)
    put_into_outbox(newer, waiting)
    store = new_store(tmp_path / "mlruns")
    sent = upload_all(newer, waiting, store, TIMEOUT_S)
    names = [read_bundle(bundle).name for bundle in (newer, older)]
    assert sent == [Uploaded(name, True) for name in names]
    assert list(waiting.iterdir()) == []


@pytest.mark.slow
def test_a_waiting_bundle_that_cannot_be_read_holds_up_no_other(tmp_path: Path) -> None:
    waiting = tmp_path / "outbox"
    good = put_into_outbox(bundle_of(tmp_path, 3), waiting)
    old = waiting / "0"  # tried first
    shutil.copytree(good, old)
    write_json(old / BUNDLE, {"schema_version": 0})
    newer = bundle_of(tmp_path, 4)
    first, failed, last = upload_all(newer, waiting, new_store(tmp_path / "mlruns"), TIMEOUT_S)
    assert isinstance(failed, FailedUpload)
    assert failed.folder == old
    assert str(old) in str(failed.error)
    assert isinstance(first, Uploaded)
    assert isinstance(last, Uploaded)
    assert list(waiting.iterdir()) == [old]  # what was sent waits no longer


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", "-traces"])
def test_a_report_waits_while_its_experiment_is_deleted_and_the_way_to_bring_it_back_is_named(
    tmp_path: Path, suffix: str
) -> None:
    waiting, store = tmp_path / "outbox", new_store(tmp_path / "mlruns")
    upload_all(bundle_of(tmp_path, 3), waiting, store, TIMEOUT_S)
    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name(CONFIG.experiment + suffix)
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    newer = bundle_of(tmp_path, 4)
    (failed,) = upload_all(newer, waiting, store, TIMEOUT_S)
    assert isinstance(failed, FailedUpload)
    assert f"mlflow experiments restore --experiment-id {experiment.experiment_id}`" in str(
        failed.error
    )
    put_into_outbox(newer, waiting)
    client.restore_experiment(experiment.experiment_id)
    assert upload_all(newer, waiting, store, TIMEOUT_S) == [Uploaded(read_bundle(newer).name, True)]
    assert list(waiting.iterdir()) == []
