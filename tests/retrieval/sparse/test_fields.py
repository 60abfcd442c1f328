import pytest

from deepsearch_rl.retrieval.sparse.fields import field_text, written_date
from tests.retrieval.sparse.chunks import make_chunk

CHUNK = make_chunk("Title\nBody text.", source="The Verge", published_at="2023-10-30T12:00:00+00:00")


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
def test_every_field_has_its_text(name, text):
    assert field_text(CHUNK, name) == text


@pytest.mark.parametrize("name", ["source", "date"])
def test_a_chunk_without_the_metadata_has_an_empty_field(name):
    assert field_text(make_chunk("Title\nBody"), name) == ""


@pytest.mark.parametrize(
    ("published_at", "text"),
    [("2023-12-05", "December 5 2023"), ("spring 2023", "spring 2023"), ("", "")],
)
def test_a_date_is_written_as_questions_write_it(published_at, text):
    assert written_date(published_at) == text
