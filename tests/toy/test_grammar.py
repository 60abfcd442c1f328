"""The languages of the two worlds: what they share, and that what is written can be read back."""

import itertools
import re

import pytest

from deepsearch_rl.toy.grammar import (
    GRAMMARS,
    IN_DOMAIN,
    OUT_OF_DOMAIN,
    STATEMENTS,
    STYLES,
    Grammar,
    ask,
    find_entities,
    name_words,
    read_object,
)

WORD_LISTS = [
    word_list
    for grammar in GRAMMARS.values()
    for kind in grammar.kinds.values()
    for word_list in kind.word_lists
]


def nouns(grammar: Grammar) -> list[str]:
    """Every word that the grammar has for its relations."""
    words = [
        word for relation in grammar.relations.values() for word in (relation.noun, relation.second)
    ]
    return [*words, *grammar.inferences]


def test_no_name_word_stands_in_two_lists_or_in_a_sentence() -> None:
    every_word = [word for word_list in WORD_LISTS for word in word_list]
    assert len(every_word) == len(set(every_word))
    texts = [
        *STATEMENTS,
        *(text for style in STYLES.values() for text in (style.step, *style.questions)),
    ]
    texts += [filler for grammar in GRAMMARS.values() for filler in grammar.fillers]
    assert {word for text in texts for word in re.findall(r"\w+", text)} & set(every_word) == set()


def test_a_search_takes_no_word_of_a_relation_for_another_word() -> None:
    words = [word for grammar in GRAMMARS.values() for word in nouns(grammar)]
    assert len(words) == len(set(words))
    names = {word.lower() for word_list in WORD_LISTS for word in word_list}
    fillers = {
        word.lower()
        for grammar in GRAMMARS.values()
        for text in grammar.fillers
        for word in text.split()
    }
    assert set(words) & (names | fillers) == set()


def test_the_two_languages_share_sentences_and_neither_relation_nor_name_word() -> None:
    assert len(IN_DOMAIN.relations) == 10
    assert len(OUT_OF_DOMAIN.relations) > 50
    assert set(nouns(IN_DOMAIN)).isdisjoint(nouns(OUT_OF_DOMAIN))
    assert set(name_words(IN_DOMAIN)).isdisjoint(name_words(OUT_OF_DOMAIN))


def test_no_two_question_sets_share_a_template_or_a_step() -> None:
    texts = [text for style in STYLES.values() for text in (style.step, *style.questions)]
    assert len(texts) == len(set(texts))


def test_no_sentence_or_question_begins_with_a_name() -> None:
    templates = [*STATEMENTS, *(text for style in STYLES.values() for text in style.questions)]
    assert not [text for text in templates if text.startswith("{")]


@pytest.mark.slow
@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=GRAMMARS)
def test_a_stated_object_is_read_back_and_only_for_its_own_subject_and_word(
    grammar: Grammar,
) -> None:
    for (word, other), statement in itertools.product(
        itertools.permutations(nouns(grammar), 2), STATEMENTS
    ):
        fact = statement.format(noun=word, subject="Silent Harbor", object="Ada Abbott")
        passage = f"It rained. {fact} It was late."
        assert read_object(word, "Silent Harbor", passage) == "Ada Abbott"
        assert read_object(other, "Silent Harbor", passage) is None
        assert read_object(word, "Silent River", passage) is None


@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=GRAMMARS)
def test_a_chain_can_always_go_on(grammar: Grammar) -> None:
    assert all(grammar.relations_of(kind) for kind in grammar.kinds)
    for first, second in grammar.inferences.values():
        assert grammar.relations[first].object_kind == grammar.relations[second].subject_kind


@pytest.mark.parametrize(
    ("style", "question"),
    [
        ("multihoprag", "Name Silent Harbor's director's birthplace."),
        ("musique", "Please travel from Silent Harbor, on to the director, on to the birthplace."),
        ("2wikimultihopqa", "Tell me only the birthplace of the director of Silent Harbor."),
        (
            "hotpotqa",
            "Readers wonder over Silent Harbor and then its director and then its birthplace.",
        ),
    ],
)
def test_each_set_words_a_chain_in_its_own_way(style: str, question: str) -> None:
    template = STYLES[style].questions[1]
    assert ask(STYLES[style], template, ["director", "birthplace"], "Silent Harbor") == question


def test_two_relations_are_called_by_one_noun_where_there_is_one() -> None:
    assert OUT_OF_DOMAIN.nouns(("teacher", "teacher"), infer=True) == ["grandteacher"]
    assert OUT_OF_DOMAIN.nouns(("teacher", "teacher"), infer=False) == ["teacher", "teacher"]
    assert OUT_OF_DOMAIN.nouns(("teacher", "rival"), infer=True) == ["teacher", "rival"]


def test_entities_are_found_in_order_even_side_by_side_with_punctuation() -> None:
    assert find_entities("Do Ada Abbott and Leo Barlow have the same birthplace?") == [
        "Ada Abbott",
        "Leo Barlow",
    ]
    assert find_entities("Which bridge opened earlier, Dragon Span or Wharf Arches?") == [
        "Dragon Span",
        "Wharf Arches",
    ]
    assert find_entities("Who is it?") == []
