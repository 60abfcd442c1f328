import random

from deepsearch_rl.corpora.world.grammar import IN_DOMAIN, OUT_OF_DOMAIN, read_object
from deepsearch_rl.training.pretrain.prepare import strange_words
from deepsearch_rl.training.pretrain.scenes import Names, Scene

NAMES = Names(strange_words(OUT_OF_DOMAIN), strange_share=0.0)


def scene(seed):
    return Scene(IN_DOMAIN, NAMES, (0, 2), (1, 2), random.Random(seed))


def test_a_chain_never_comes_back_to_a_subject_though_its_kind_has_few_names():
    country, capital = IN_DOMAIN.relations["country"], IN_DOMAIN.relations["capital"]
    for seed in range(20):
        made, subject, seen = scene(seed), "Harwick", {"Harwick"}
        for relation in (country, capital, country, capital, country, capital):
            subject = made.state(relation, subject).object
            assert subject not in seen
            seen.add(subject)


def test_a_hidden_fact_is_stated_nowhere():
    birthplace = IN_DOMAIN.relations["birthplace"]
    for seed in range(50):
        made = scene(seed)
        made.hide(birthplace, "Ada Abbott")
        made.add_about("Ada Abbott", IN_DOMAIN.kinds["person"])
        for _ in range(4):
            made.add()
        text = "\n".join(passage.text for passage in made.passages)
        assert read_object(IN_DOMAIN, "birthplace", "Ada Abbott", text) is None


def test_a_similar_name_differs_in_one_word():
    rng = random.Random(0)
    similar = [NAMES.draw_similar("Silent Harbor", IN_DOMAIN.kinds["film"], rng).split() for _ in range(50)]
    assert all((first == "Silent") or (last == "Harbor") for first, last in similar)
    assert len({tuple(name) for name in similar}) > 20
