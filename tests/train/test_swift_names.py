"""Names of ms-swift in params: checked in a moment, against those that the package itself has."""

import pytest
from pydantic import TypeAdapter, ValidationError

from deepsearch_rl.train import swift_names
from deepsearch_rl.train.swift_names import (
    SwiftAgentTemplate,
    SwiftLossScale,
    SwiftModelType,
    SwiftTemplate,
)

KINDS: dict[str, TypeAdapter[str]] = {
    "model type": TypeAdapter(SwiftModelType),
    "template": TypeAdapter(SwiftTemplate),
    "agent template": TypeAdapter(SwiftAgentTemplate),
    "loss scale": TypeAdapter(SwiftLossScale),
}


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("model type", "qwen_3", "ms-swift has no model type 'qwen_3'; the nearest are .*qwen3"),
        ("model type", "smollm2", "ms-swift has no model type 'smollm2'"),
        ("template", "qwen3_no_thinking", "the nearest are qwen3_nothinking"),
        ("agent template", "hermez", "the nearest are hermes"),
        ("loss scale", "last_turn", "the nearest are last_round"),
        ("loss scale", "last_round+ignore_thinks", "no loss scale 'ignore_thinks'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_ones(
    kind: str, name: str, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        KINDS[kind].validate_python(name)


@pytest.mark.slow
def test_the_names_are_those_that_ms_swift_registers() -> None:
    from swift.agent_template import agent_template_map  # noqa: PLC0415 - 20 s
    from swift.loss_scale import loss_scale_map  # noqa: PLC0415
    from swift.model import MODEL_MAPPING  # noqa: PLC0415
    from swift.template import TEMPLATE_MAPPING  # noqa: PLC0415

    registered = {
        "model type": MODEL_MAPPING,
        "template": TEMPLATE_MAPPING,
        "agent template": agent_template_map,
        "loss scale": loss_scale_map,
    }
    for kind, names in registered.items():
        for name in names:
            KINDS[kind].validate_python(name)


def test_any_name_passes_where_ms_swift_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    swift_names._names.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", {}.get)
    try:
        assert KINDS["model type"].validate_python("mine") == "mine"
        assert KINDS["loss scale"].validate_python("mine") == "mine"
    finally:
        swift_names._names.cache_clear()
