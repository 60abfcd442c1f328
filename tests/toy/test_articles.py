import random

from deepsearch_rl.toy.articles import Articles, draw_similar_name
from deepsearch_rl.toy.curriculum import CurriculumStage
from deepsearch_rl.toy.grammar import IN_DOMAIN, read_object


def articles(stage: CurriculumStage, seed: int, *visited: str) -> Articles:
    return Articles(IN_DOMAIN, stage, 0.0, random.Random(seed), set(visited))


def test_a_chain_never_comes_back_to_a_name_though_its_kind_has_few(stage: CurriculumStage) -> None:
    names = {"Harwick"}
    for seed in range(10):
        _, (country,) = articles(stage, seed, *names).find_facts(
            "Harwick", [IN_DOMAIN.relations["country"]]
        )
        assert country not in names
        names.add(country)


def test_a_hidden_fact_is_stated_nowhere(stage: CurriculumStage) -> None:
    birthplace = IN_DOMAIN.relations["birthplace"]
    for seed in range(50):
        result, names = articles(stage, seed, "Ada Abbott").find_facts(
            "Ada Abbott", [birthplace], hidden=True
        )
        assert names == []
        for word in (birthplace.noun, birthplace.second):
            assert read_object(word, "Ada Abbott", str(result["content"])) is None


def test_what_a_search_found_no_later_one_contradicts(stage: CurriculumStage) -> None:
    mentor = IN_DOMAIN.relations["mentor"]
    for seed in range(50):
        searches = articles(stage, seed, "Ada Abbott")
        objects: set[str | None] = set()
        for chain in [[mentor], [IN_DOMAIN.relations["employer"]], [mentor]] * 3:
            result, _ = searches.find_facts("Ada Abbott", chain)
            objects.add(read_object("mentor", "Ada Abbott", str(result["content"])))
        assert len(objects - {None}) == 1


def test_some_passages_state_a_fact_that_leads_to_the_name_that_was_searched_for(
    stage: CurriculumStage,
) -> None:
    mentor = IN_DOMAIN.relations["mentor"]
    leading = 0
    for seed in range(100):
        result, (name,) = articles(stage, seed, "Ada Abbott").find_facts("Ada Abbott", [mentor])
        text = str(result["content"])
        assert read_object("mentor", "Ada Abbott", text) == name
        leading += " Ada Abbott." in text
    # Two further passages, each of them in a fifth of the cases
    assert 20 <= leading <= 50


def test_a_similar_name_differs_in_one_word() -> None:
    rng = random.Random(0)
    similar = [
        draw_similar_name(IN_DOMAIN, "Silent Harbor", "film", rng).split() for _ in range(50)
    ]
    assert all((first == "Silent") or (last == "Harbor") for first, last in similar)
    assert len({tuple(name) for name in similar}) > 20
