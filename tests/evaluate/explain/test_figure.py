from deepsearch_rl.evaluate.explain.causes import Cause
from deepsearch_rl.evaluate.explain.figure import (
    LABELLED,
    lost_points_figure,
)
from deepsearch_rl.evaluate.explain.records import CauseReport, RunReport
from deepsearch_rl.evaluate.score import Interval


def cost(share: float) -> CauseReport:
    lost = Interval(mean=share, low=share, high=share)
    return CauseReport(lost=lost, answers=1, details={}, examples=())


def test_every_part_that_is_wide_enough_has_its_figure() -> None:
    run = RunReport.model_construct(
        model="m",
        f1=Interval(mean=0.5, low=0.5, high=0.5),
        right_without_evidence=cost(0.1),
        causes={Cause.BAD_QUERY: cost(LABELLED), Cause.REFUSED: cost(LABELLED - 0.01)},
    )
    [panel] = lost_points_figure([run]).axes
    assert [text.get_text() for text in panel.texts] == [".40", ".10", ".06"]
