import random

from deepsearch_rl.answers import INSUFFICIENT
from deepsearch_rl.corpora.world.grammar import IN_DOMAIN, read_object
from deepsearch_rl.training.pretrain.passage_set import PassageSet, draw_similar_name


def passage_set(seed: int) -> PassageSet:
    return PassageSet(0.0, (0, 2), (1, 2), random.Random(seed))


def test_a_chain_never_comes_back_to_a_subject_though_its_kind_has_few_names() -> None:
    country, capital = IN_DOMAIN.relations["country"], IN_DOMAIN.relations["capital"]
    for seed in range(20):
        passages, subject, subjects = passage_set(seed), "Harwick", {"Harwick"}
        for relation in (country, capital, country, capital, country, capital):
            subject = passages.state(relation, subject)
            assert subject not in subjects
            subjects.add(subject)


def test_a_hidden_fact_is_stated_nowhere() -> None:
    birthplace = IN_DOMAIN.relations["birthplace"]
    for seed in range(50):
        passages = passage_set(seed)
        assert passages.state(birthplace, "Ada Abbott", hidden=True) == INSUFFICIENT
        for _ in range(4):
            passages.add()
        text = "\n".join(passage.contents for passage in passages.passages)
        assert read_object(IN_DOMAIN, "birthplace", "Ada Abbott", text) is None


def test_a_similar_name_differs_in_one_word() -> None:
    rng = random.Random(0)
    similar = [draw_similar_name("Silent Harbor", IN_DOMAIN.kinds["film"], 0.0, rng).split() for _ in range(50)]
    assert all((first == "Silent") or (last == "Harbor") for first, last in similar)
    assert len({tuple(name) for name in similar}) > 20
