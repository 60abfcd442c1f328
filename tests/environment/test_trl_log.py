"""What TRL's adapter needs and logs, without TRL."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from deepsearch_rl.core.errors import UnavailableError
from deepsearch_rl.core.records import StopReason
from deepsearch_rl.environment.adapters import trl
from deepsearch_rl.environment.adapters.trl import TrlSearch

ENVIRONMENT: Any = SimpleNamespace(environment=SimpleNamespace(prompts=lambda _: []))


@pytest.mark.parametrize("installed", ["0.29.1", "1.15.2", "1.16.0rc1"])
def test_an_older_trl_is_refused_with_the_version_that_is_needed(
    installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trl, "version", lambda _: installed)
    with pytest.raises(UnavailableError, match=rf"TRL {installed} is .* install trl==1\.16\.0"):
        TrlSearch(ENVIRONMENT, [])


def test_mean_shares_of_stop_reasons_over_several_steps_add_up_to_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trl, "version", lambda _: "1.16.0")
    search = TrlSearch(ENVIRONMENT, [])
    logged: defaultdict[str, list[float]] = defaultdict(list)
    steps = (["answered", "answered"], ["token_budget", "tool_error"], ["answered", "deadline"])

    for reasons in steps:
        search.reward(
            search_reward=[1.0, 0.0],
            search_parts=[{"f1": 1.0}, {"f1": 0.0}],
            search_trajectory=[SimpleNamespace(stop_reason=StopReason(text)) for text in reasons],
            log_metric=lambda name, value: logged[name].append(value),
        )

    means = {name: sum(values) / len(values) for name, values in logged.items()}
    assert means["search/f1"] == 0.5
    assert means["search/answered"] == 0.5
    assert sum(means[f"search/{reason}"] for reason in StopReason) == pytest.approx(1)
