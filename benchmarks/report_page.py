"""Size and opening time of the report's page, with rollouts as long as those of real question sets.

The rollouts are generated: random words, which compress worse than a language, three passages of a
corpus per search, one gold fact in the last result. A page counts as open when its rollouts are
unpacked and listed and the first one is shown; the time is the browser's own, from the start of the
navigation. One key typed into the text search, with list and conversation redrawn, is timed in the
same way.

    .venv/bin/python -m benchmarks.report_page
"""

import random
import statistics
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from benchmarks.measure import parse_options, publish
from deepsearch_rl.evaluate.report.page import page_templates
from deepsearch_rl.evaluate.report.rollouts import ShownMessage, ShownRollout

SIZES = ((2000, 450), (2000, 2000), (2000, 4000), (10000, 2000))
"""Rollouts, and words of each."""
OPENINGS = 5
PASSAGE_WORDS = 150
"""As in a chunk of 200 tokens."""
PASSAGES = 5000
"""Chunks of a corpus; MultiHop-RAG's has about as many."""
DRAWN = {
    "model": ("base", "sft", "rl", "sft_rl"),
    "dataset": ("multihoprag", "musique"),
    "outcome": ("correct", "wrong", "no_answer_tag", "search_budget"),
    "type": ("inference", "temporal"),
}
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Trajectories</title>
<style>{% include "page.css" %}</style></head><body><main><section><h2 id="trajectories">Trajectories</h2>
{% include "trajectories.html" %}</section></main></body></html>"""
TYPED = """const box = document.querySelector("#filters [name=text]"), before = performance.now();
box.value = "arguably"; box.dispatchEvent(new Event("input", {bubbles: true}));
void document.body.offsetHeight; return performance.now() - before;"""


def make_page(rollouts: int, words: int, seed: int) -> str:
    """Return the browser's section as a page by itself: conversations of about ``words`` words."""
    rng = random.Random(seed)
    vocabulary: list[str] = []
    for _ in range(20_000):
        vocabulary.append("".join(rng.choices("etaoinshrdlcumwfgypbvk", k=rng.randint(2, 10))))

    def text(count: int) -> str:
        return " ".join(rng.choices(vocabulary, k=count))

    def make_rollout(number: int) -> ShownRollout:
        fact = f"{text(9)}."
        question = f"Which {text(12)}?"
        messages = [
            ShownMessage(role="system", text="Search."),
            ShownMessage(role="user", text=question),
        ]

        for _ in range(max(1, words // (3 * PASSAGE_WORDS))):
            drawn_passages = enumerate(rng.choices(passages, k=3), 1)
            results = [f"[{rank}] {passage}" for rank, passage in drawn_passages]
            messages.append(ShownMessage(role="assistant", text="", queries=(text(5),)))
            messages.append(ShownMessage(role="tool", text="\n\n".join(results)))

        messages[-1] = messages[-1].model_copy(update={"text": f"{messages[-1].text} {fact}"})
        messages.append(ShownMessage(role="assistant", text=f"<answer>{vocabulary[0]}</answer>"))
        fields: dict[str, object] = {
            "id": f"q{number}#0",
            "question": question,
            "golden": (vocabulary[1],),
            "facts": (fact,),
            "answer": vocabulary[0],
            "f1": 0.0,
            "error": "",
            "messages": messages,
        }
        for name, values in DRAWN.items():
            fields[name] = rng.choice(values)
        return ShownRollout.model_validate(fields)

    passages = [text(PASSAGE_WORDS) for _ in range(PASSAGES)]
    report = {"rollouts": [make_rollout(number) for number in range(rollouts)]}
    return page_templates().from_string(PAGE).render(report=report)


def chromium() -> webdriver.Chrome:
    """Return Debian's headless Chromium, which a ``with`` block ends."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    return webdriver.Chrome(options, Service("/usr/bin/chromedriver"))


def time_page(browser: webdriver.Chrome, address: str) -> tuple[float, float]:
    """Return medians in milliseconds: until the page is open, and of one key in the text search."""
    opened = []
    typed = []

    for _ in range(OPENINGS):
        browser.get("about:blank")
        browser.get(address)
        WebDriverWait(browser, 60).until(
            lambda driver: driver.execute_script("return document.body.dataset.rollouts")
        )
        opened.append(
            browser.execute_script(
                "return performance.getEntriesByName('rollouts ready')[0].startTime"
            )
        )
        typed.append(browser.execute_script(TYPED))

    return statistics.median(opened), statistics.median(typed)


def main() -> None:
    """Measure and print."""
    options = parse_options(__doc__)
    rows: list[tuple[str, ...]] = []

    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        page = Path(folder, "page.html")
        for rollouts, words in SIZES:
            page.write_text(make_page(rollouts, words, seed=0), encoding="utf-8")
            open_ms, key_ms = time_page(browser, page.as_uri())
            figures = (
                f"{page.stat().st_size / 1e6:.1f}",
                f"{open_ms / 1000:.2f}",
                f"{key_ms / 1000:.2f}",
            )
            rows.append((f"{rollouts:,}", f"{words:,}", *figures))

    header = ("rollouts", "words of each", "page, MB", "open after s", "one key searched in s")
    publish(options, "report_page", header, rows)


if __name__ == "__main__":
    main()
