"""Which trajectories are trained on."""

import pytest

from deepsearch_rl.core.answers import INSUFFICIENT
from deepsearch_rl.core.errors import ArtifactError, UnknownNameError
from deepsearch_rl.core.records import (
    Message,
    Question,
    QuestionMetadata,
    Retrieval,
    StopReason,
    ToolCall,
    Trajectory,
)
from deepsearch_rl.train.filters import (
    PREDICATES,
    apply_predicates,
    best_per_question,
    find_predicates,
)

FACT = "The mayor of Northgate is Kaspar Granger."
EVIDENCE = {"question_type": "1_hop", "evidence_list": [{"fact": FACT}]}
QUESTION = Question(id="q", question="Who?", golden_answers=("Kaspar Granger",), metadata=EVIDENCE)
UNANSWERABLE = Question(id="q", question="Who?", golden_answers=(INSUFFICIENT,))


def trajectory(
    answer: str = "Kaspar Granger",
    passage: str = f"[1] Northgate\n{FACT}",
    queries: tuple[str, ...] = ("mayor of Northgate",),
    reason: StopReason = StopReason.ANSWERED,
) -> Trajectory:
    calls = [
        ToolCall(id=f"call_{n}", name="retrieve", arguments=f'{{"query": "{q}"}}')
        for n, q in enumerate(queries)
    ]
    turns = [Message(role="assistant", tool_calls=(call,)) for call in calls]
    results = [Message(role="tool", content=passage, tool_call_id=call.id) for call in calls]
    searches = [message for pair in zip(turns, results, strict=True) for message in pair]
    last = Message(role="assistant", content=f"<answer> {answer}</answer>")
    return Trajectory(
        id="q#0",
        question_id="q",
        sample=0,
        question="Who?",
        golden_answers=("Kaspar Granger",),
        model="m",
        prompt="tiny",
        temperature=0,
        messages=(Message(role="user", content="Who?"), *searches, last),
        retrievals=tuple(Retrieval(query=query, chunk_ids=("c",)) for query in queries),
        answer=answer,
        stop_reason=reason,
    )


@pytest.mark.parametrize(
    ("name", "dropped"),
    [
        ("answered", trajectory(answer="", reason=StopReason.TURN_BUDGET)),
        ("success", trajectory(answer="Kaspar")),
        ("searched", trajectory(queries=())),
        ("no_repeated_query", trajectory(queries=("mayor of Northgate", "Mayor of  northgate"))),
        ("evidence_found", trajectory(passage="[1] Northgate\nThe winters are cold.")),
    ],
)
def test_each_predicate_drops_its_own_kind_and_keeps_a_good_trajectory(
    name: str, dropped: Trajectory
):
    assert PREDICATES[name](trajectory(), QUESTION)
    assert not PREDICATES[name](dropped, QUESTION)


def test_evidence_may_be_wrapped_over_lines_and_is_not_asked_of_unanswerable_questions():
    found = PREDICATES["evidence_found"]
    assert found(trajectory(passage="The mayor of\nNorthgate is Kaspar Granger."), QUESTION)
    assert found(trajectory(passage="nothing"), UNANSWERABLE)


def test_evidence_that_is_known_by_title_is_asked_for_as_well():
    question = QUESTION.model_copy(
        update={"metadata": QuestionMetadata(supporting_titles=["Northgate"])}
    )
    assert PREDICATES["evidence_found"](trajectory(), question)
    assert not PREDICATES["evidence_found"](
        trajectory(passage="[1] Southgate\nNorthgate is far."), question
    )


def test_a_fact_is_found_within_one_result_and_not_across_two():
    halves = trajectory(queries=("a", "b"))
    texts = iter(["The mayor of Northgate", " is Kaspar Granger."])
    messages = tuple(
        message.model_copy(update={"content": next(texts)}) if message.role == "tool" else message
        for message in halves.messages
    )
    assert not PREDICATES["evidence_found"](
        halves.model_copy(update={"messages": messages}), QUESTION
    )


def test_a_drop_counts_for_the_first_predicate_that_fails():
    both = trajectory(answer="Nobody", queries=())
    predicates = find_predicates(["searched", "success"])
    assert apply_predicates([both, trajectory()], [QUESTION], predicates)[1] == {
        "searched": 1,
        "success": 0,
    }
    predicates = find_predicates(["success", "searched"])
    kept, dropped = apply_predicates([both, trajectory()], [QUESTION], predicates)
    assert dropped == {"success": 1, "searched": 0}
    assert kept == [trajectory()]


def test_an_unknown_predicate_is_refused_with_the_nearest_names():
    with pytest.raises(UnknownNameError, match="'evidence_found'"):
        find_predicates(["evidence_fund"])


def test_a_trajectory_of_another_question_set_is_refused():
    with pytest.raises(ArtifactError, match="q#0"):
        apply_predicates([trajectory()], [], {})


def test_reasoned_wants_one_thought_in_every_turn_wherever_the_server_put_it():
    turns = [
        Message(role="assistant", reasoning="a"),
        Message(role="assistant", content="<think>b</think>c"),
    ]
    reasoned = PREDICATES["reasoned"]
    assert reasoned(trajectory().model_copy(update={"messages": tuple(turns)}), QUESTION)
    for wrong in (
        Message(role="assistant", content="c"),
        Message(role="assistant", content="c", reasoning="a <think> tag"),
        Message(role="assistant", content="c <think>d</think>", reasoning="a"),
        Message(role="assistant", content="<think>never closed"),
    ):
        assert not reasoned(trajectory().model_copy(update={"messages": (*turns, wrong)}), QUESTION)


def test_the_best_samples_of_a_question_are_right_then_short_then_early():
    twice = ("mayor of Northgate", "Northgate")
    made = [
        trajectory(answer="Granger"),
        trajectory(queries=twice),
        trajectory(),
        trajectory(),  # the same conversation as before
        trajectory(queries=("Northgate mayor",)),
    ]
    samples = [each.model_copy(update={"id": f"q#{n}", "sample": n}) for n, each in enumerate(made)]
    other = trajectory(answer="Granger").model_copy(update={"id": "r#0", "question_id": "r"})
    chosen = {
        count: [each.id for each in best_per_question([*samples, other], count)]
        for count in (1, 2, 3, 9)
    }
    assert chosen == {
        1: ["q#2", "r#0"],
        2: ["q#2", "q#4", "r#0"],
        3: ["q#1", "q#2", "q#4", "r#0"],
        9: ["q#0", "q#1", "q#2", "q#4", "r#0"],
    }
