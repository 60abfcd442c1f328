"""The table of `deepsearch rl compare`; `tests/pipeline/test_smoke.py` runs the command itself."""

from deepsearch_rl.commands.rl_compare import COLUMNS, TrainedRun, _lines, _means


def trained(sampled_f1: float, cpu_s: float, **steps: float) -> TrainedRun:
    return TrainedRun(
        scoring="digest",
        best_step=1,
        sampled_f1=sampled_f1,
        greedy_f1=0.5,
        tool_calls=2.0,
        cpu_s=cpu_s,
        steps=steps,
    )


def test_a_setting_is_a_line_of_means_and_deviations_over_its_seeds() -> None:
    runs = {
        "rl.kl=0": [trained(0.25, 8.0, kl=0.1), trained(0.75, 12.0, kl=0.3)],
        "rl.kl=1": [trained(0.5, 9.0)],
    }
    two, one = (
        dict(zip(("setting", "runs", *COLUMNS), line, strict=True)) for line in _lines(runs)
    )
    assert (two["setting"], two["runs"], one["runs"]) == ("rl.kl=0", "2", "1")
    assert two["sampled_f1"] == "0.500 ± 0.354", (
        "the deviation is that of a sample: sqrt(2 * 0.25 ** 2)"
    )
    assert two["kl"] == "0.200 ± 0.141"
    assert two["cpu_s"] == "10 ± 3", "figures from ten on need no decimals"
    assert (one["sampled_f1"], one["cpu_s"]) == ("0.500", "9.000")
    assert one["kl"] == "-", "an engine may log fewer metrics"


def test_ten_itself_has_no_decimals() -> None:
    [line] = _lines({"a": [trained(0.5, 10.0)]})
    assert line[2 + COLUMNS.index("cpu_s")] == "10"


def test_a_metric_is_averaged_over_the_steps_that_have_it() -> None:
    assert _means([{"kl": 0.1, "loss": 1.0}, {"kl": None, "loss": 3.0}, {"loss": 5.0}]) == {
        "kl": 0.1,
        "loss": 3.0,
    }
