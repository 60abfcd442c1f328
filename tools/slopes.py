"""Slopes of `deepsearch plan` that the last run of a profile shows, into ``slopes.yaml``.

    python -m tools.slopes [PROFILE]

Every kind of stage has one slope of its own: what remains of its measured seconds when the parts
with other slopes are subtracted. Run it on a machine that does nothing else, after a whole run: the
matrix product that machines are compared by is measured too.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence

from deepsearch_rl.cli.planning.plan import Plan, make_plan
from deepsearch_rl.cli.planning.slopes import SLOPES, Slope, calibrate
from deepsearch_rl.cli.summary import StageRun, last_whole_run, latest_runs, wall_s
from deepsearch_rl.core.errors import ArtifactError, DeepsearchError
from deepsearch_rl.core.files import atomic_file
from deepsearch_rl.core.profile import find_profile
from tools import ROOT

# Stages and their own slopes; those that others are made of come first
OWN = (
    ("chunk", "chunk_passage_s"),
    ("index", "index_passage_s"),
    ("prepare_model", "pretrain_token_s"),
    ("synthesize", "scripted_rollout_s"),
    ("filter", "filter_row_s"),
    ("sft", "sft_token_s"),
    ("merge", "merge_s"),
    ("evaluate", "rollout_s"),
    ("evaluate", "rollout_eager_s"),
    ("rl", "rl_token_s"),
    ("unsloth_merge", "adapter_merge_s"),
    ("ifeval", "ifeval_prompt_s"),
    ("report", "report_rollout_s"),
)


def measure(plan: Plan, runs: Sequence[StageRun]) -> tuple[dict[str, float], float]:
    """Return the slopes that a whole run shows, and by how much the plan was off: -0.1 is a tenth too short.

    Raise ArtifactError where a stage has no measured seconds, or the slopes are those of another
    machine.
    """
    like = plan.file.machines[plan.machine].like
    if like:
        raise ArtifactError(
            f"the slopes of {plan.machine} are those of {like}; preflight measures its own."
        )

    seconds = {run.stage: run.seconds for run in runs}
    missing = [work.stage for work in plan.stages if work.stage not in seconds]
    if missing:
        raise ArtifactError(
            f"work/timings.jsonl has no run of profile {plan.profile}'s {', '.join(missing)}."
        )

    if len(last_whole_run(runs)) < len(runs):
        raise ArtifactError(
            f"the stages of profile {plan.profile} ran at different times; run all of them again."
        )

    measured = wall_s(runs)
    slopes = dict(plan.slopes)

    for stage, own in OWN:
        # All items of a stage together, as rl@base and rl@sft
        amount = 0.0
        rest_s = 0.0
        for work in plan.stages:
            own_amount = work.amounts.get(own)
            if work.stage.partition("@")[0] == stage and own_amount:
                amount += own_amount
                other_s = work.seconds(slopes) - own_amount * slopes[own].value
                rest_s += seconds[work.stage] - other_s

        # A stage that took less than its other parts shows nothing of its own slope, which stays what it was
        if amount and rest_s > 0:
            value = rest_s / amount
            slopes[own] = Slope(value=value, source=f"the last run of {plan.profile}")

    values = {name: slope.value for name, slope in slopes.items() if not slope.fixed}
    total_s = sum(seconds[work.stage] for work in plan.stages)
    values["side_by_side"] = measured / total_s
    return values, plan.hours * 3600 / measured - 1


def write(text: str, machine: str, values: Mapping[str, float], calibration_s: float | None) -> str:
    """Return the text of ``slopes.yaml`` with other values for a machine's slopes."""
    head, block, tail = re.split(
        rf"(^  {machine}:\n(?:^    .*\n)+)", text, maxsplit=1, flags=re.MULTILINE
    )
    # By patterns, because writing YAML again would lose the comments
    for name, value in values.items():
        block = re.sub(
            rf"(^      {name}: {{value: )[^,]+", rf"\g<1>{value:.4g}", block, flags=re.MULTILINE
        )

    if calibration_s is not None:
        block = re.sub(r"(calibration_s: )[\d.]+", rf"\g<1>{calibration_s:.4g}", block)
    return head + block + tail


def main() -> None:
    """Command line; an error ends it with status 1 and one paragraph."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profile", nargs="?", default="tiny", help="profile whose last run is read")

    try:
        plan = make_plan(find_profile(ROOT, parser.parse_args().profile), {})
        values, error = measure(plan, latest_runs(ROOT, plan.profile))
        calibration_s = calibrate() if plan.file.machines[plan.machine].calibration_s else None
    except DeepsearchError as problem:
        sys.exit(f"error: {problem}")

    text = write(SLOPES.read_text(encoding="utf-8"), plan.machine, values, calibration_s)
    with atomic_file(SLOPES) as partial:
        partial.write_text(text, encoding="utf-8")
    sys.stderr.write(
        f"{SLOPES.relative_to(ROOT)}: written. The plan's total was off by {error:+.0%}.\n"
    )


if __name__ == "__main__":
    main()
