"""Measure how well one model follows instructions."""

from pathlib import Path

from deepsearch_rl.evaluation.ifeval import IfevalConfig, evaluate_ifeval
from deepsearch_rl.serving.launch import ServingConfig, serve_model
from stages.entry import Params, chosen, run


def main(params: Params) -> None:
    """Write ``data/<profile>/ifeval/<model>/``."""
    folders = params.values["models"]  # a model's folder is among the stage's deps, so it is no param
    folder = Path(chosen("model", params.item, folders))
    config = params.section("ifeval", IfevalConfig)
    seed = params.value("seed")
    out = params.data / "ifeval" / params.item
    work = Path("work", f"ifeval-{params.profile}-{params.item}")
    with serve_model(folder, params.section("serving", ServingConfig)) as endpoint:
        evaluate_ifeval(params.item, endpoint, config, seed, out, work)


if __name__ == "__main__":
    run(main)
