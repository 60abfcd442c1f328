import pytest

from deepsearch_rl.search.analysis import analyse, field_text, stem
from tests.chunks import make_chunk

CHUNK = make_chunk(
    "Title\nBody text.", source="The Verge", published_at="2023-10-30T12:00:00+00:00"
)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The LANDERS landed, and landed!", ["lander", "land", "land"]),
        ("Straße in Zürich", ["straße", "zürich"]),
        ("東京タワー 2023-10-30", ["東京", "京タ", "タワ", "ワー", "2023", "10", "30"]),
        ("don't", ["don", "t"]),
        ("the of and", []),
        ("?! \n\t", []),
    ],
)
def test_text_becomes_lower_case_stems_without_stop_words(text: str, terms: object) -> None:
    assert analyse(text) == terms


@pytest.mark.parametrize(
    "written",
    [
        "infor\u00admation",
        "infor\u200bmation",
        "infor\u2060mation",
        "\u200einformation\u200f",
        "\ufeffinformation",
        "info\u034frmation",
        "in\u200cformation",
        "infor&shy;mation",
        "infor&#173;m&#x61;tion",
        "infor&amp;shy;mation",
        "infor\u00ad\nmation",
        "infor&shy; \r\n mation",
    ],
)
def test_invisible_characters_and_entities_inside_a_word_leave_it_as_it_reads(written: str) -> None:
    assert analyse(f"The {written} desk") == analyse("The information desk")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("of\ufb01ce \ufb02ow", "office flow"),
        ("\u0132sselmeer \ufb05op", "IJsselmeer stop"),
        ("\ufefb", "\u0644\u0627"),  # Arabic's lam with alef
        ("caf&eacute; &Eacute;clair", "café éclair"),
        ("CO\u2082 H&#8322;O", "CO2 H2O"),
    ],
)
def test_ligatures_and_entities_are_the_letters_that_they_stand_for(
    written: str, read: str
) -> None:
    assert analyse(written) == analyse(read)


def test_a_joiner_between_arabic_letters_parts_words_like_a_blank() -> None:
    assert analyse("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645") == [
        "\u0645\u06cc",
        "\u062e\u0648\u0627\u0647\u0645",
    ]


def test_the_cache_of_stems_is_bounded() -> None:
    assert stem.cache_info().maxsize is not None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("contents", "Title\nBody text."),
        ("title", "Title"),
        ("body", "Body text."),
        ("source", "The Verge"),
        ("date", "October 30 2023"),
    ],
)
def test_every_field_has_its_text(name: str, text: str) -> None:
    assert field_text(CHUNK, name) == text


@pytest.mark.parametrize("name", ["source", "date"])
def test_a_chunk_without_the_metadata_has_an_empty_field(name: str) -> None:
    assert field_text(make_chunk("Title\nBody"), name) == ""
