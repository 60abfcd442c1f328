"""The results table of README.md, and the parts of documents that scripts write."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.evaluate.comparisons import Change, Comparison
from deepsearch_rl.evaluate.f1_row import ConstantScore, F1TableRow
from deepsearch_rl.evaluate.tables import F1Table
from deepsearch_rl.toy.grammar import IN_DOMAIN
from tools import readme
from tools.markers import with_part

BEGIN, END = "<!-- results -->", "<!-- /results -->"


def row(model: str, dataset: str, f1: float, temperature: float = 0.7) -> F1TableRow:
    return F1TableRow(
        model=model,
        checkpoint=f"models/tiny/{model}",
        dataset=dataset,
        corpus="world",
        prompt="tiny",
        top_k=3,
        chunk_size=28,
        temperature=temperature,
        samples=3 if temperature else 1,
        seed=0,
        n=400,
        em=f1,
        f1=f1,
        f1_low=f1,
        f1_high=f1,
        acc=f1,
        precision=f1,
        recall=f1,
        mean_rounds=2.0,
        mean_tool_calls=1.0,
        failures={},
        pass_at={1: f1},
        generated=True,
        constant=ConstantScore(answer="Insufficient information.", f1=0.12, em=0.12),
        types={},
    )


def comparison(model: str, other: str, difference: float, searches: float = 0.0) -> Comparison:
    """A difference whose interval reaches .05 to both sides, or is zero where nothing differs at all."""
    width = 0.05 if difference or searches else 0.0
    return Comparison(
        dataset="musique",
        temperature=0.7,
        model=model,
        other=other,
        n=400,
        difference=difference,
        low=difference - width,
        high=difference + width,
        p_value=0.5,
        tool_calls=Change(difference=searches, low=searches, high=searches, p_value=0.5),
    )


def table(rows: Sequence[F1TableRow], comparisons: Sequence[Comparison] = ()) -> F1Table:
    return F1Table(profile="tiny", generated=True, rows=tuple(rows), comparisons=tuple(comparisons))


@pytest.fixture
def trained() -> F1Table:
    """A base model, one that fine-tuning improved, and one that RL left as it was."""
    rows = [row("base", "musique", 0.25), row("rl", "musique", 0.25), row("sft", "musique", 0.5)]
    greedy = [row("base", "musique", 0.125, temperature=0.0)]
    return table([*rows, *greedy], [comparison("sft", "base", 0.25), comparison("rl", "base", 0.0)])


def lines(text: str) -> list[list[str]]:
    """The cells of every line of a table."""
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]


def test_a_set_has_a_line_of_sampled_and_one_of_greedy_answers(trained: F1Table) -> None:
    head, _, sampled, greedy = lines(readme.part(trained))
    assert head == ["F1", "questions", "constant answer", "base", "sft", "sft - base"]
    assert sampled == ["musique", "400 x 3", ".120", ".250", ".500", "+.250 [+.200, +.300]"]
    assert greedy == ["musique, greedy", "400 x 1", ".120", ".125"]


def test_a_model_that_kept_its_start_is_a_sentence_and_no_column(trained: F1Table) -> None:
    text = readme.part(trained)
    assert "rl" not in lines(text)[0]
    assert re.search("^`rl` kept its start.*`base`", text, re.MULTILINE)


@pytest.mark.parametrize(
    "differing", [comparison("rl", "base", 0.001), comparison("rl", "base", 0.0, searches=0.1)]
)
def test_a_model_that_differs_at_all_from_its_start_is_shown(
    trained: F1Table, differing: Comparison
) -> None:
    text = readme.part(table(trained.rows, [differing]))
    assert lines(text)[0][-1] == "rl - base"
    assert "kept" not in text


def test_only_what_stands_between_the_markers_is_replaced(trained: F1Table) -> None:
    text = f"before\n\n{BEGIN}\nstale\n{END}\n\nafter\n"
    filled = with_part(text, readme.NAME, readme.part(trained))
    assert filled.startswith(f"before\n\n{BEGIN}\n\n| F1 |")
    assert filled.endswith(f"\n{END}\n\nafter\n")
    assert "stale" not in filled


@pytest.mark.parametrize("text", ["", BEGIN, f"{END} {BEGIN}", f"{BEGIN} {END} {BEGIN} {END}"])
def test_a_document_without_one_place_for_a_part_is_refused(text: str) -> None:
    with pytest.raises(ArtifactError, match="results"):
        with_part(text, readme.NAME, "part")


def test_the_command_rewrites_the_readme_of_its_folder(
    trained: F1Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    readme.README.write_text(f"{BEGIN}\n{END}\n")
    with pytest.raises(SystemExit, match=r"error: .*f1_table\.json does not exist"):
        readme.main()

    readme.TABLE.parent.mkdir(parents=True)
    readme.TABLE.write_text("{}")
    with pytest.raises(SystemExit, match=r"f1_table\.json, field 'profile': "):
        readme.main()

    readme.TABLE.write_text(trained.model_dump_json())
    readme.main()
    assert readme.README.read_text() == f"{BEGIN}\n{readme.part(trained)}{END}\n"


@pytest.mark.parametrize("name", ["README.md", "docs/evaluation.md", "docs/own_data.md"])
def test_the_question_to_ask_is_one_of_the_world(name: str) -> None:
    """A chain of relations that a tiny model has learnt, from a kind of thing that has them."""
    asked = re.findall(r'deepsearch ask "Name (.+?)\."', Path(name).read_text(encoding="utf-8"))
    assert asked

    for question in asked:
        _, *nouns = question.split("'s ")
        relations = [IN_DOMAIN.relations[noun] for noun in nouns]
        for relation, following in itertools.pairwise(relations):
            assert relation.object_kind == following.subject_kind
