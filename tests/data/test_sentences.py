"""Sentences and words: where they begin and end."""

import unicodedata

import pytest

from deepsearch_rl.data.sentences import MAX_SENTENCE_CHARS, sentence_spans, word_spans


def pieces(text: str) -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text)]


def test_sentences_end_at_full_stops_quotations_and_newlines() -> None:
    assert pieces('It rained. "Go home!" She left.\n\nThen what? 3 came back.\nA heading') == [
        "It rained.", '"Go home!"', "She left.", "Then what?", "3 came back.", "A heading",
    ]  # fmt: skip
    assert pieces("今天下雨。我们回家。") == ["今天下雨。", "我们回家。"]


def test_initials_abbreviations_and_numbers_end_no_sentence() -> None:
    text = "Dr. J. K. Vale paid $3.50 to Mr. Orr vs. St. Ives Inc. on Jan. 3 at 5 p.m. sharp."
    assert pieces(text) == [text]


def test_blank_text_has_no_sentence() -> None:
    assert pieces(" \n\t ") == []


def test_a_text_without_any_boundary_is_cut_at_white_space_without_losing_a_word() -> None:
    text = "word " * 20_000
    found = pieces(text)
    assert max(map(len, found)) <= MAX_SENTENCE_CHARS
    assert " ".join(found).split() == text.split()
    assert "".join(pieces("x" * 50_000)) == "x" * 50_000


def test_words_are_runs_of_word_characters_and_single_signs() -> None:
    text = "It's 3.5, naïve…"
    assert [text[start:end] for start, end in word_spans(text)] == [
        "It",
        "'",
        "s",
        "3",
        ".",
        "5",
        ",",
        "naïve",
        "…",
    ]


@pytest.mark.parametrize(
    "sentences",
    [
        ("Мост стоит.", "Он стар."),
        ("Es regnet.", "Österreich führt."),
        ("Pada.", "Żółw idzie.", "Łódź śpi."),
        ("«Кто там?»", "«Друг.»", "Он вошёл."),
        ("А. С. Пушкин родился в Москве.", "Он поэт."),  # noqa: RUF001
        ("¿Qué pasa?", "¡Nada!", "Él duerme."),
        ("Τι είναι;", "Δεν ξέρω."),  # noqa: RUF001
        ("წვიმს.", "საქართველო წინ არის."),
        ("هذا بيت.", "وهذا كتاب؟", "نعم."),
        ("שלום.", "עולם."),
        ("राम घर गया।", "वह सो गया॥", "ठीक।"),
        ("ሰላም።", "ደህና።"),
        ("他说：“好。”", "我走了！？", "真的。"),  # noqa: RUF001
        ("ते राहतात.", "ते आहेत.", "ठीक."),
        ("הוּא בָּא לְשָׁלוֹם.", "הִיא בָּאָה."),
        (unicodedata.normalize("NFD", "Новый сайт."), "Он открыт."),
        ("３．５です．", "次の文。"),  # noqa: RUF001
    ],
)
def test_sentences_of_every_script_end_at_its_terminators(sentences: tuple[str, ...]) -> None:
    assert pieces(" ".join(sentences)) == list(sentences)


@pytest.mark.parametrize(
    "text", ["Yahoo! is big. iPhone sells.", "Он жил на ул. ленина.", "a; B and c; D", "x.\u0301 Y"]
)
def test_a_stop_before_a_small_letter_or_inside_a_sentence_ends_none(text: str) -> None:
    assert pieces(text) == [text]


def test_no_piece_or_word_begins_with_a_combining_mark() -> None:
    text = "दिल्ली की राजधानी e\u0301te\u0302"
    assert [text[start:end] for start, end in word_spans(text)] == text.split()
    found = pieces("e\u0301" * MAX_SENTENCE_CHARS)
    assert len(found) > 1
    assert {piece[0] for piece in found} == {"e"}
