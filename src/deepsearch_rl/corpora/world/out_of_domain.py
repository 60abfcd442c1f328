"""The language of the world that models never see in training: novels, songs, artists, presses, academies, bridges."""

from deepsearch_rl.corpora.world import words
from deepsearch_rl.corpora.world.language import Grammar, Kind, Relation, by_name


def _clause(name: str, subject_kind: str, object_kind: str, phrase: str, *statements: str, query: str) -> Relation:
    """A relation that is asked for by a clause of its own."""
    noun = name.replace("_", " ")
    return Relation(name, subject_kind, object_kind, statements, noun, phrase, (query + " {subject}",))


OUT_OF_DOMAIN = Grammar(
    kinds=by_name(
        Kind(
            "artist",
            (words.ARTIST_FIRST, words.ARTIST_LAST),
            (
                "Several notebooks survive from these decades.",
                "Critics praised an unusual sense of rhythm.",
                "An illness interrupted all plans during one autumn.",
                "Colleagues recall a sharp sense of humour.",
                "Most drafts were destroyed before publication.",
                "Travel occupied nearly half of each decade.",
            ),
        ),
        Kind(
            "novel",
            (words.NOVEL_FIRST, words.NOVEL_LAST),
            (
                "Reviewers argued about its final chapter.",
                "Copies of the original printing are rare today.",
                "Its plot unfolds during a single stormy voyage.",
                "Teachers assign it to older pupils.",
                "A stage version toured northern theatres.",
                "Early drafts lacked its famous epilogue.",
            ),
        ),
        Kind(
            "song",
            (words.SONG_FIRST, words.SONG_LAST),
            (
                "Radio stations refused to play it until autumn.",
                "Its melody borrows from an older dance.",
                "Audiences usually sing along during the chorus.",
                "Choirs arranged it for eight voices.",
                "A shorter recording appeared abroad.",
                "Its second verse is often omitted.",
            ),
        ),
        Kind(
            "press",
            (words.PRESS_FIRST, words.PRESS_LAST),
            (
                "Its catalogue lists mostly poetry and travel writing.",
                "Old printing plates are displayed downstairs.",
                "Collectors trade its earliest pamphlets.",
                "Apprentices learned typesetting upstairs.",
                "Machines once stood idle for months.",
                "Its logo shows a sleeping owl.",
            ),
        ),
        Kind(
            "academy",
            (words.ACADEMY_FIRST, words.ACADEMY_LAST),
            (
                "Students perform concerts during spring.",
                "Its archive preserves thousands of manuscripts.",
                "Tuition is waived for gifted applicants.",
                "Rehearsal rooms stay open past midnight.",
                "Graduates gather each autumn for dinner.",
                "A bronze statue guards its entrance.",
            ),
        ),
        Kind(
            "town",
            (words.TOWN_FIRST, words.TOWN_LAST),
            (
                "Visitors admire several medieval towers.",
                "Fishermen sell their catch beside the quay.",
                "Festivals fill its lanes with music each autumn.",
                "Bakers there invented a spiced bread.",
                "Trains stop there only on weekends.",
                "Its harvest fair attracts nearby villages.",
            ),
        ),
        Kind(
            "waterway",
            (words.WATERWAY,),
            (
                "Herons and otters inhabit its banks.",
                "Floods damaged nearby orchards twice.",
                "Kayakers race along it each spring.",
                "Mills once lined both banks.",
                "Fog often hides its lower reaches.",
                "Salmon return to it each autumn.",
            ),
        ),
        Kind(
            "crossing",
            (words.CROSSING_FIRST, words.CROSSING_LAST),
            (
                "Repairs closed one lane during spring.",
                "Cyclists use a separate path along its edge.",
                "Tolls were abolished decades ago.",
                "Painters like to sketch its towers.",
                "Lamps illuminate it after dusk.",
                "Heavy trucks must use another route.",
            ),
        ),
        Kind("year", (tuple(str(year) for year in range(1801, 1991)),)),
    ),
    relations=by_name(
        _clause(
            "author",
            "novel",
            "artist",
            "whoever wrote {subject}",
            "Readers owe the novel {subject} to its author {object}.",
            query="novel written",
        ),
        _clause(
            "publisher",
            "novel",
            "press",
            "whichever press published {subject}",
            "Bookshops received {subject} from its publisher {object}.",
            query="published novel",
        ),
        _clause(
            "composer",
            "song",
            "artist",
            "whoever composed {subject}",
            "Musicians credit the tune {subject} to its composer {object}.",
            query="tune composed",
        ),
        _clause(
            "teacher",
            "artist",
            "artist",
            "whoever taught {subject}",
            "Lessons in youth were given to {subject} by {object}.",
            query="lessons teacher",
        ),
        _clause(
            "academy",
            "artist",
            "academy",
            "whichever academy trained {subject}",
            "After school, {subject} enrolled at {object}.",
            query="enrolled academy",
        ),
        _clause(
            "residence",
            "artist",
            "town",
            "wherever {subject} resides",
            "These days {subject} resides in {object}.",
            query="resides town",
        ),
        _clause(
            "editor",
            "press",
            "artist",
            "whoever edits for {subject}",
            "Every manuscript sent to {subject} is read by its editor {object}.",
            query="manuscript editor",
        ),
        _clause(
            "seat",
            "press",
            "town",
            "wherever {subject} prints",
            "All volumes of {subject} are printed in {object}.",
            query="volumes printed",
        ),
        _clause(
            "principal",
            "academy",
            "artist",
            "whoever heads {subject}",
            "Lectures at {subject} are supervised by its principal {object}.",
            query="principal supervises",
        ),
        _clause(
            "campus",
            "academy",
            "town",
            "wherever {subject} stands",
            "Buildings of {subject} stand in {object}.",
            query="buildings stand",
        ),
        _clause(
            "waterway",
            "town",
            "waterway",
            "whichever waterway passes through {subject}",
            "Boats reach {subject} along the waterway {object}.",
            query="boats waterway",
        ),
        _clause(
            "engineer",
            "crossing",
            "artist",
            "whoever designed {subject}",
            "Drawings for the bridge {subject} came from {object}.",
            query="bridge drawings",
        ),
        _clause(
            "opening_year",
            "crossing",
            "year",
            "whenever {subject} opened",
            "Traffic first used the bridge {subject} during {object}.",
            query="bridge traffic during",
        ),
    ),
    questions={
        "musique": ("Could you find {path}?", "Which one would be {path}?"),
        "2wikimultihopqa": ("Identify {path} for us.", "Give only one name: {path}."),
        "hotpotqa": ("Readers wonder about {path}; which name fits?", "An article mentions {path}. Which one?"),
    },
    comparisons={
        "2wikimultihopqa": ("Which bridge opened earlier, {first} or {second}?",),
        "hotpotqa": ("Did {first} or did {second} open sooner?",),
    },
)
