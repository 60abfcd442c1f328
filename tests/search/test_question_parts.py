from deepsearch_rl.search.dates import MAX_DATES
from deepsearch_rl.search.question_parts import (
    MAX_PARTS,
    MAX_SOURCES,
    SourceNames,
    split_question,
)

SOURCES = ("The Age", "The Independent", "The Independent - Sports", "Wired", "wired")


def test_the_longest_name_is_the_source_that_is_meant() -> None:
    asked = split_question(
        "What does The Independent - Sports say of rugby?", SourceNames.of(SOURCES)
    )
    assert asked.sources == (2,)


def test_sources_are_found_as_whole_words_in_any_case_and_spacing() -> None:
    names = SourceNames.of(SOURCES)
    assert split_question("What did THE  AGE report?", names).sources == (0,)
    assert split_question("Who was wired in The Ages?", names).sources == (3, 4)
    assert split_question("Who rewired the house at the aged inn?", names).sources == ()


def test_parts_leave_out_sources_and_dates() -> None:
    asked = split_question(
        "Did The Age praise the new phone, while Wired on October 4, 2023 found its battery weak?",
        SourceNames.of(SOURCES),
    )
    assert asked.parts == (" praise the new phone", " found its battery weak?")
    assert len(asked.days) == 1


def test_a_question_without_joints_is_one_part() -> None:
    assert split_question("The first lander on a comet?", SourceNames.of(())).parts == (
        "The first lander on a comet?",
    )


def test_a_question_that_is_only_a_source_is_kept() -> None:
    assert split_question("The Age?", SourceNames.of(SOURCES)).whole == "The Age?"


def test_names_with_signs_of_patterns_are_taken_literally() -> None:
    names = SourceNames.of(("Cnbc | World (US)", ""))
    assert split_question("reported by Cnbc | World (US) in May", names).sources == (0,)
    assert split_question("reported by Cnbc in May", names).sources == ()


def test_a_source_inside_a_date_takes_nothing_from_what_follows() -> None:
    asked = split_question("What did May say on May 4, 2023 about ships?", SourceNames.of(("May",)))
    assert (asked.sources, len(asked.days)) == ((0,), 1)
    assert asked.whole == "What did \n say on \n about ships?"


def test_a_page_pasted_as_a_question_has_a_bounded_number_of_everything() -> None:
    papers = [f"Paper {number}" for number in range(100)]
    asked = split_question(
        "one two, May 4, 2023 " * 1000 + " ".join(papers), SourceNames.of(papers)
    )
    assert (len(asked.parts), asked.sources, len(asked.days)) == (
        MAX_PARTS,
        tuple(range(MAX_SOURCES)),
        MAX_DATES,
    )
