"""Documents of your own to a corpus with audited questions: `python -m stages.make_questions params.yaml own`."""

from pathlib import Path

from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Scratch, Stage, run
from deepsearch_rl.data.chunking import ChunkConfig
from deepsearch_rl.data.question_writing.make import WritingConfig, make_questions
from deepsearch_rl.search.build import IndexSection

STAGE = Stage(
    sections=("seed", "make_questions", "chunk", "index"),
    packages=("core", "data", "chat", "search"),
    inputs=("{make_questions.documents.{item}}", "{make_questions.writer.endpoint}"),
)


def main(profile: Profile, item: str, scratch: Scratch) -> None:
    """Write ``data/<profile>/made/<name>/``.

    Documents are cut as section ``chunk`` says. The audit searches them by BM25 alone.
    """
    config = profile.section("make_questions", WritingConfig)
    folder = Path(look_up("folder in make_questions.documents", item, config.documents))
    index = profile.section("index", IndexSection).of(item)
    make_questions(
        folder,
        config,
        profile.section("chunk", ChunkConfig),
        index.model_copy(update={"encoder": None}),
        profile.value("seed"),
        scratch.path,
        profile.work / "replies" / f"{item}.jsonl",
        profile.data / "made" / item,
    )


if __name__ == "__main__":
    run(STAGE, main)
