"""The stage `track`, in a project with a finished report."""

from pathlib import Path

import pytest
import yaml
from mlflow.tracking import MlflowClient

from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.files import read_json, write_json
from deepsearch_rl.core.profile import Profile, load_profile
from stages import track
from tests.track.conftest import CONFIG, MODELS, make_results, new_store


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """A project whose tiny profile has been evaluated and reported, as its working directory."""
    made = make_results(tmp_path / "results")
    (tmp_path / "reports").mkdir()
    made.reports.rename(tmp_path / "reports" / "tiny")
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "results" / "sft_adapter").rename(tmp_path / "models" / "tiny" / "sft_adapter")
    (tmp_path / "data").mkdir()
    (tmp_path / "results").rename(tmp_path / "data" / "tiny")
    write_json(tmp_path / "models" / "api" / "endpoint.json", {})
    models = {"base": "models/api", "sft": "models/tiny/sft"}
    params = {"profile": "tiny", "seed": 0, "track": CONFIG.model_dump(), "models": models}
    params["evaluate"] = {"variants": {}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    monkeypatch.chdir(tmp_path)
    return load_profile(Path("params.yaml"))


def test_a_server_that_is_away_fails_the_stage_with_one_sentence(
    project: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:hidden@127.0.0.1:9")
    with pytest.raises(EndpointError, match=r"MLflow's server at http://127\.0\.0\.1:9 does not"):
        track.main(project)
    assert not (project.reports / "track.json").exists()


@pytest.mark.slow
def test_a_report_goes_to_mlflows_own_store_in_the_projects_folder(
    project: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    store = new_store(Path.cwd())
    track.main(project)
    tracked = read_json(project.reports / "track.json")
    assert tracked["models"] == list(MODELS)
    assert tracked["metrics"]["sft"] == tracked["metrics"]["base"] + 1 + 2, "IFEval and a curve"

    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name(CONFIG.experiment)
    assert experiment
    runs = client.search_runs([experiment.experiment_id], "tags.model LIKE '%'")
    weights = {run.data.tags["model"]: run.data.tags.get("weights") for run in runs}
    # Of a model behind an endpoint nobody knows the weights
    assert weights == {"base": None, "rl": None, "sft": "models/tiny/sft"}
    assert runs[0].data.params["track.experiment"] == CONFIG.experiment
