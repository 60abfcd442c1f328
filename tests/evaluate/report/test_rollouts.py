"""The trajectory browser: what is packed into the page, and what a reader finds in a real browser."""

import base64
import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from deepsearch_rl.core.files import read_record
from deepsearch_rl.core.records import Message, Question, QuestionMetadata
from deepsearch_rl.evaluate.f1_row import ModelEvaluation
from deepsearch_rl.evaluate.report.rollouts import (
    OF_EACH_OUTCOME,
    ShownMessage,
    ShownRollout,
    pack,
    positions_to_show,
    read_questions,
    read_runs,
    shown_rollouts,
)
from deepsearch_rl.evaluate.report.write_report import ReportConfig, write_report
from tests.browsing import chromium
from tests.evaluate.conftest import CORPORA, sources_in

__all__ = ["chromium"]
PER_RUN = 100


def shown_of(
    finished: Path, model: str, per_run: int, turned: dict[tuple[str, str], set[str]] | None = None
) -> list[ShownRollout]:
    sources = sources_in(finished)
    questions = read_questions(sources.questions)
    rows = read_record(sources.evaluate[model] / "rows.json", ModelEvaluation).rows
    return list(
        shown_rollouts(
            read_runs(sources.evaluate, rows, questions, per_run, turned or {}), questions
        )
    )


def test_rollouts_are_spread_over_every_run_and_their_outcome_named(finished: Path) -> None:
    rollouts = shown_of(finished, "sft", 7)
    runs = Counter((rollout.model, rollout.dataset) for rollout in rollouts)
    assert set(runs) == {("sft", name) for name in (*CORPORA, "multihoprag, greedy")}
    assert all(7 <= count <= 7 + 2 * OF_EACH_OUTCOME for count in runs.values())
    greedy = [rollout.id for rollout in rollouts if rollout.dataset == "multihoprag, greedy"]
    assert len(set(greedy)) == len(greedy)
    assert greedy != [f"q{number}#0" for number in range(len(greedy))]
    assert {rollout.outcome for rollout in rollouts} == {"correct", "wrong", "no_answer_tag"}
    assert all((rollout.f1 >= 0.8) == (rollout.outcome == "correct") for rollout in rollouts)
    assert shown_of(finished, "sft", 0) == []


def test_the_first_rollouts_of_turned_questions_are_shown_as_well(finished: Path) -> None:
    without = {
        rollout.id for rollout in shown_of(finished, "sft", 1) if rollout.dataset == "multihoprag"
    }
    every = {
        rollout.id
        for rollout in shown_of(finished, "sft", 10**6)
        if rollout.dataset == "multihoprag"
    }
    missing = sorted(id_.removesuffix("#0") for id_ in every - without if id_.endswith("#0"))[:3]
    turned = {("sft", "multihoprag"): set(missing)}
    shown = {
        rollout.id
        for rollout in shown_of(finished, "sft", 1, turned)
        if rollout.dataset == "multihoprag"
    }
    assert shown == without | {f"{id_}#0" for id_ in missing}
    assert len(missing) == 3


def test_rare_outcomes_are_shown_beside_the_evenly_spread_ones() -> None:
    outcomes = ["wrong"] * 50 + ["deadline"] + ["correct"] * 49 + ["tool_error"] * 4
    positions = positions_to_show(outcomes, 10)
    assert {number * len(outcomes) // 10 for number in range(10)} <= positions
    counts = Counter(outcomes[position] for position in positions)
    assert counts == {"wrong": 5, "correct": 5, "deadline": 1, "tool_error": 4}
    assert positions_to_show(outcomes, 1000) == frozenset(range(len(outcomes)))


def unpack(packed: str) -> list[ShownRollout]:
    """The rollouts of :func:`pack`, as browser.js reads them."""
    content = json.loads(gzip.decompress(base64.b64decode(packed)))
    for row in content["rollouts"]:
        for message in row["messages"]:
            if message["role"] == "tool":
                message["text"] = "\n\n".join(
                    content["passages"][position] for position in message["text"]
                )
    return [ShownRollout.model_validate(row) for row in content["rollouts"]]


def test_packing_is_canonical_and_unpacks_to_the_rollouts(finished: Path) -> None:
    rollouts = shown_of(finished, "base", 3)
    packed = pack(rollouts)
    assert packed == pack(rollouts)
    assert unpack(packed) == rollouts
    content = gzip.decompress(base64.b64decode(packed)).decode()
    assert content.count("The port is Port Vale.") == 1
    assert (
        sum(
            message.text.count("The port is Port Vale.")
            for rollout in rollouts
            for message in rollout.messages
        )
        > 10
    )


def test_a_gold_title_comes_with_the_spellings_of_it_that_passages_show(finished: Path) -> None:
    sources = sources_in(finished)
    rows = read_record(sources.evaluate["sft"] / "rows.json", ModelEvaluation).rows
    run = next(read_runs(sources.evaluate, rows[:1], read_questions(sources.questions), 1, {}))
    passages = '[1] "New York City"\nBig.\n\n[2] new_york CITY\nThe same.\n\n[3] Elsewhere\nNot it.'
    rollout = run.samples[0].model_copy(
        update={
            "messages": (Message(role="tool", content=passages, tool_call_id="c"),),
            "question_id": "q",
        }
    )
    metadata = QuestionMetadata(supporting_titles=("New York City", "Zo\u00eb"))
    question = Question(id="q", question="Q?", golden_answers=("A",), metadata=metadata)
    [shown] = shown_rollouts([run._replace(samples=(rollout,))], {run.row.dataset: {"q": question}})
    assert shown.titles == (("New York City", '"New York City"', "new_york CITY"), ("Zo\u00eb",))


def odd(name: str, *messages: ShownMessage, **changes: object) -> ShownRollout:
    """Return a rollout of a model with no other rollouts."""
    fields = {
        "id": name,
        "model": "odd",
        "dataset": "musique",
        "outcome": "correct",
        "type": "",
        "question": name,
    }
    fields |= {
        "golden": ("Ö",),
        "answer": "Ö",
        "f1": 1.0,
        "error": "",
        "facts": (),
        "messages": messages,
    }
    return ShownRollout.model_validate(fields | changes)


ODD = (
    odd(
        "tagged",
        ShownMessage(role="user", text="Search.\n\nQuestion: tagged"),
        ShownMessage(
            role="assistant",
            text="<think>hm <b></think>\n<search>port of Ö</search>",
            queries=("port of Ö",),
        ),
        ShownMessage(
            role="tool",
            text='\n\n<information>Doc 1(Title: A (b)) Old.\nDoc 2(Title: "Port") It is new.</information>\n\n',
        ),
        ShownMessage(role="assistant", text="<answer> Ö </answer>"),
        titles=(("Port", '"Port"'), ("Elsewhere",)),
    ),
    odd(
        "reasoned",
        ShownMessage(role="assistant", text="before</think>\n<answer>Ö</answer>", reasoning=""),
        ShownMessage(role="assistant", text="", reasoning="a field", queries=("retrieve(no JSON",)),
        outcome="tool_call_unparsable",
        f1=0.0,
    ),
)
"""Rollouts as other protocols and servers write them."""


@pytest.fixture(scope="module")
def page(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a page with more than 2,000 rollouts."""
    folder = tmp_path_factory.mktemp("browser")
    config = ReportConfig(comparisons=(), draws=100, rollouts=PER_RUN, search_index=False)
    report = write_report("tiny", sources_in(finished), config, 0, folder)
    source = (folder / "index.html").read_text(encoding="utf-8")
    filled = [
        rollout.model_copy(update={"id": f"{rollout.id}-{copy}"})
        for rollout in report.rollouts
        for copy in range(6)
    ]
    filled = [*filled, *ODD]
    assert len(filled) > 2000
    (folder / "index.html").write_text(
        source.replace(pack(report.rollouts), pack(filled)), encoding="utf-8"
    )
    return (folder / "index.html").as_uri()


def opened(browser: webdriver.Chrome, page: str) -> webdriver.Chrome:
    browser.get(page)
    WebDriverWait(browser, 20).until(
        lambda driver: driver.execute_script("return document.body.dataset.rollouts")
    )
    return browser


def listed(browser: webdriver.Chrome) -> list[WebElement]:
    return browser.find_elements(By.CSS_SELECTOR, "#list button.entry")


@pytest.mark.slow
def test_two_thousand_rollouts_open_without_an_error(chromium: webdriver.Chrome, page: str) -> None:
    opened(chromium, page)
    of_all = re.search(r"of (\d+)", chromium.find_element(By.ID, "count").text)
    assert of_all
    assert int(of_all[1]) > 2000
    assert [entry for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.nightly
def test_greedy_f1_and_searches_stand_beside_sampled_f1_in_the_headline(
    chromium: webdriver.Chrome, page: str
) -> None:
    opened(chromium, page)
    sampled, greedy = chromium.find_elements(By.CSS_SELECTOR, ".headline div:last-child dd")
    assert sampled.rect["y"] == greedy.rect["y"]
    assert sampled.rect["x"] < greedy.rect["x"]
    assert all("2.50 searches" in figure.text for figure in (sampled, greedy))


@pytest.mark.nightly
def test_a_question_that_turned_leads_to_its_rollout(
    chromium: webdriver.Chrome, finished: Path, tmp_path: Path
) -> None:
    config = ReportConfig(comparisons=(("sft", "base"),), draws=100, rollouts=1, search_index=False)
    write_report("tiny", sources_in(finished), config, 0, tmp_path)
    opened(chromium, (tmp_path / "index.html").as_uri())
    link = chromium.find_element(By.CSS_SELECTOR, "a[aria-label^='sft answers question']")
    question = str(link.get_attribute("aria-label")).split()[-1]
    chromium.execute_script("arguments[0].click()", link)
    assert chromium.find_element(By.ID, "rollout").text.strip()
    assert f"id={question}%230" in chromium.current_url


@pytest.mark.slow
def test_filters_and_text_narrow_the_list(chromium: webdriver.Chrome, page: str) -> None:
    opened(chromium, page)
    Select(chromium.find_element(By.NAME, "model")).select_by_value("sft")
    Select(chromium.find_element(By.NAME, "outcome")).select_by_value("no_answer_tag")
    texts = [str(entry.get_property("textContent")) for entry in listed(chromium)]
    assert texts
    assert [text for text in texts if "no answer tag" not in text or "sft, " not in text] == []
    question = re.search(r"Question \d+\?", texts[-1])
    assert question
    chromium.find_element(By.NAME, "text").send_keys(question[0].lower())
    narrowed = [str(entry.get_property("textContent")) for entry in listed(chromium)]
    assert 0 < len(narrowed) < len(texts)
    assert [text for text in narrowed if question[0] not in text] == []
    assert chromium.find_element(By.ID, "count").text.startswith(f"{len(listed(chromium))} of ")


@pytest.mark.slow
def test_a_conversation_shows_its_passages_with_the_gold_fact_marked_and_no_markup_of_theirs(
    chromium: webdriver.Chrome, page: str
) -> None:
    opened(chromium, page)
    listed(chromium)[3].click()
    rollout = chromium.find_element(By.ID, "rollout")
    assert [mark.text for mark in rollout.find_elements(By.TAG_NAME, "mark")] == [
        "The port is Port Vale."
    ]
    assert "<b>Old</b>" in rollout.text
    assert rollout.find_element(By.CLASS_NAME, "seen").text == "retrieved"
    assert rollout.find_elements(By.CSS_SELECTOR, ".passage b") == []


def chosen_rollout(browser: webdriver.Chrome, page: str, address: str) -> WebElement:
    """The conversation that a link leads to."""
    opened(browser, page)
    browser.execute_script(f"location.hash = {address!r}")
    WebDriverWait(browser, 20).until(
        lambda driver: "shown" in driver.execute_script(ADDRESS, address)
    )
    return browser.find_element(By.ID, "rollout")


ADDRESS = """const id = new URLSearchParams(arguments[0]).get("id");
return document.querySelector("#rollout dl").textContent.includes(id) ? "shown" : "";"""


@pytest.mark.slow
def test_the_tag_protocol_is_shown_as_searches_passages_and_answers(
    chromium: webdriver.Chrome, page: str
) -> None:
    rollout = chosen_rollout(chromium, page, "model=odd&id=tagged")
    assert [
        element.text for element in rollout.find_elements(By.CSS_SELECTOR, ".query b, .answer b")
    ] == [
        "port of Ö",
        "Ö",
    ]
    passages = rollout.find_elements(By.CLASS_NAME, "passage")
    assert [element.text for element in passages] == [
        "Doc 1(Title: A (b)) Old.",
        'gold evidence Doc 2(Title: "Port") It is new.',
    ]
    assert [
        element.text for element in rollout.find_elements(By.CSS_SELECTOR, ".seen, .unseen")
    ] == [
        "retrieved",
        "not retrieved",
    ]
    [thought] = rollout.find_elements(By.CSS_SELECTOR, "details.reasoning")
    assert not thought.find_element(By.TAG_NAME, "p").is_displayed()
    thought.find_element(By.TAG_NAME, "summary").click()
    assert thought.find_element(By.TAG_NAME, "p").text == "hm <b>"


@pytest.mark.nightly
def test_reasoning_is_folded_in_every_form_and_a_malformed_call_is_shown_as_written(
    chromium: webdriver.Chrome, page: str
) -> None:
    rollout = chosen_rollout(chromium, page, "model=odd&id=reasoned")
    folded = rollout.find_elements(By.CSS_SELECTOR, "details.reasoning p")
    assert [str(element.get_property("textContent")) for element in folded] == ["before", "a field"]
    assert rollout.find_element(By.CSS_SELECTOR, ".query b").text == "retrieve(no JSON"


@pytest.mark.nightly
def test_counts_link_to_their_rollouts_and_the_address_holds_the_selection(
    chromium: webdriver.Chrome, page: str
) -> None:
    opened(chromium, page)
    link = chromium.find_element(
        By.CSS_SELECTOR, 'a[href="#model=sft&dataset=multihoprag&outcome=no_answer_tag"]'
    )
    link.send_keys(Keys.ENTER)
    WebDriverWait(chromium, 20).until(
        lambda driver: (
            Select(driver.find_element(By.NAME, "model")).first_selected_option.text == "sft"
        )
    )
    texts = [str(entry.get_property("textContent")) for entry in listed(chromium)]
    assert [
        text for text in texts if "no answer tag" not in text or "sft, multihoprag" not in text
    ] == []
    assert chromium.switch_to.active_element == listed(chromium)[0]
    listed(chromium)[1].click()
    address = chromium.current_url
    title = chromium.find_element(By.CSS_SELECTOR, "#rollout dl").text
    chromium.get("about:blank")
    opened(chromium, address)
    assert chromium.find_element(By.CSS_SELECTOR, "#rollout dl").text == title
    chromium.find_element(By.CSS_SELECTOR, "#filters button").click()
    WebDriverWait(chromium, 20).until(lambda driver: len(listed(driver)) == 200)


def summary(browser: webdriver.Chrome) -> str:
    return browser.find_element(By.CSS_SELECTOR, "#rollout dl").text


@pytest.mark.nightly
def test_a_link_opens_the_rollout_of_its_own_run_although_other_runs_use_the_same_id(
    chromium: webdriver.Chrome, page: str
) -> None:
    opened(chromium, page)
    chromium.find_element(By.NAME, "text").send_keys("question 13?")
    assert "id=" not in chromium.current_url  # a filter chooses no rollout
    listed(chromium)[-1].click()
    for reached in ("by its entry", "by a step"):
        address, text = chromium.current_url, summary(chromium)
        assert "base" not in text, "the first run's would be found by the id alone"
        chromium.get("about:blank")
        opened(chromium, address)
        assert summary(chromium) == text, reached
        chromium.find_element(By.CSS_SELECTOR, "#rollout .steps button").click()


@pytest.mark.nightly
def test_all_failures_can_be_selected_together(chromium: webdriver.Chrome, page: str) -> None:
    opened(chromium, page)
    Select(chromium.find_element(By.NAME, "outcome")).select_by_value("any failure")
    assert {
        entry.find_element(By.CLASS_NAME, "outcome").text for entry in listed(chromium)[:20]
    } == {"no answer tag"}
    Select(chromium.find_element(By.NAME, "model")).select_by_value("odd")
    assert [entry.find_element(By.CLASS_NAME, "outcome").text for entry in listed(chromium)] == [
        "tool call unparsable"
    ]


@pytest.mark.nightly
def test_the_list_can_be_used_by_keyboard_alone(chromium: webdriver.Chrome, page: str) -> None:
    opened(chromium, page)
    listed(chromium)[0].send_keys(Keys.ARROW_DOWN)
    chromium.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    current = chromium.find_elements(By.CSS_SELECTOR, "#list [aria-current]")
    assert [listed(chromium).index(entry) for entry in current] == [2]
    assert chromium.switch_to.active_element == current[0]
    current[0].send_keys(Keys.TAB)
    while chromium.switch_to.active_element.get_attribute("class") == "more":
        chromium.switch_to.active_element.send_keys(Keys.TAB)
    assert chromium.switch_to.active_element.get_attribute("id") == "rollout"


def test_a_message_without_calls_is_packed_without_them() -> None:
    assert ShownMessage(role="user", text="?").model_dump(exclude_defaults=True) == {
        "role": "user",
        "text": "?",
    }
