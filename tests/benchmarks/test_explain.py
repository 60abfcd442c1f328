"""The benchmark of explain measures a run that loses its points to several causes."""

from pathlib import Path

import pytest

from benchmarks.explain import measure, write_run
from deepsearch_rl.evaluate.explain.causes import Cause
from deepsearch_rl.evaluate.explain.explain import Options, explain_paths


@pytest.mark.slow
def test_the_generated_run_is_explained_with_the_causes_that_cost_time(tmp_path: Path) -> None:
    write_run(tmp_path, passages=200, questions=40, samples=2)
    options = Options(questions=tmp_path / "questions.jsonl", index=tmp_path / "index", draws=50)
    [run] = explain_paths([tmp_path / "run.jsonl"], options)
    assert run.report.answers == 80
    assert run.report.evidence == {"facts": 40}
    assert run.report.causes[Cause.NOT_IN_CORPUS].answers > 0
    assert {Cause.NEVER_SEARCHED, Cause.PARTLY_FOUND} <= run.report.causes.keys()
    seconds, memory_mb = measure(tmp_path, Options(corpus=tmp_path / "corpus.jsonl", draws=50))
    assert seconds > 0
    assert memory_mb >= 0
