from deepsearch_rl.summary import align_tables


def test_tables_are_padded_to_their_columns_and_all_else_stays() -> None:
    markdown = "# A | B\n\n| a | long name |\n| --- | --- |\n| .5 |  |\n\nText."
    padded = "# A | B\n\n| a   | long name |\n| --- | --------- |\n| .5  |           |\n\nText."
    assert align_tables(markdown) == padded
