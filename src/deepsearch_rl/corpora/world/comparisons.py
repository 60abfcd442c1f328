"""Questions that compare one relation of two entities, each with exactly one answer."""

import random
from collections.abc import Mapping, Sequence

from deepsearch_rl.corpora.world.articles import Library
from deepsearch_rl.corpora.world.chains import Draft
from deepsearch_rl.corpora.world.facts import World
from deepsearch_rl.errors import ConfigError

COMPARED_YEAR = "opening_year"
MAX_DRAWS = 50_000


def same_object_questions(
    world: World, library: Library, heads: Mapping[str, Sequence[str]], count: int, rng: random.Random
) -> list[Draft]:
    """Ask whether two heads of a kind share an object ("yes" and "no" in turn).

    Raises:
        ConfigError: the heads are too few for ``count`` different questions.
    """
    relations = [relation for relation in world.grammar.relations.values() if not relation.reverse]
    templates = world.grammar.comparisons["multihoprag"]
    drafts: dict[tuple[str, str, str], Draft] = {}
    for _ in range(MAX_DRAWS):
        if len(drafts) == count:
            break
        relation = rng.choice(relations)
        names = heads.get(relation.subject_kind, ())
        if len(names) < 2:
            continue
        first, second = rng.sample(names, 2)
        objects = [world.objects.get((name, relation.name)) for name in (first, second)]
        answer = "yes" if len(drafts) % 2 == 0 else "no"
        if None in objects or (objects[0] == objects[1]) != (answer == "yes"):
            continue
        text = rng.choice(templates).format(first=first, second=second, noun=relation.noun)
        drafts.setdefault(
            _key(relation.name, first, second), _compare(text, answer, relation.name, first, second, library)
        )
    return _all_found(drafts, count)


def earlier_questions(world: World, library: Library, dataset: str, count: int, rng: random.Random) -> list[Draft]:
    """Ask which of two crossings opened first; the answer is its name.

    Raises:
        ConfigError: the crossings are too few for ``count`` different questions.
    """
    years = {subject: year for (subject, relation), year in world.objects.items() if relation == COMPARED_YEAR}
    names = sorted(years)
    templates = world.grammar.comparisons[dataset]
    drafts: dict[tuple[str, str, str], Draft] = {}
    for _ in range(MAX_DRAWS if len(names) > 1 else 0):
        if len(drafts) == count:
            break
        first, second = rng.sample(names, 2)
        if years[first] != years[second]:
            answer = min(first, second, key=years.__getitem__)
            text = rng.choice(templates).format(first=first, second=second)
            drafts.setdefault(_key("", first, second), _compare(text, answer, COMPARED_YEAR, first, second, library))
    return _all_found(drafts, count)


def _key(relation: str, first: str, second: str) -> tuple[str, str, str]:
    return (relation, min(first, second), max(first, second))


def _compare(text: str, answer: str, relation: str, first: str, second: str, library: Library) -> Draft:
    evidence = (library.evidence[first, relation], library.evidence[second, relation])
    return Draft(text, answer, "comparison", ((relation,), (relation,)), 2, evidence)


def _all_found(drafts: Mapping[tuple[str, str, str], Draft], count: int) -> list[Draft]:
    if len(drafts) < count:
        raise ConfigError(
            f"the generated world has entities for {len(drafts)} comparison questions, not {count}; "
            "raise the numbers of entities or lower the share of comparisons (download.world)."
        )
    return list(drafts.values())
