import gzip
import json
import re
import shutil
import socket
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evalscope.benchmarks.ifeval import instructions, instructions_registry, instructions_util

from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.core.errors import (
    ArtifactError,
    CheckFailedError,
    ConfigError,
    EndpointError,
    RecordError,
)
from deepsearch_rl.evaluate.ifeval import (
    IfevalConfig,
    evaluate_ifeval,
    generated_prompts,
    load_prompts,
    read_prompts,
)
from tests.evaluate.chat import KEY, says, serve_chat

CONFIG = IfevalConfig(
    prompts="generated",
    count=40,
    path=Path("src/deepsearch_rl/evaluate/ifeval_prompts.yaml"),
    max_tokens=64,
    concurrency=8,
    timeout_s=20,
    retries=1,
)
RESPONSE = "the river city is called stoke\n\nlater it grew"


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: tuple[str, int]) -> None:
        assert self.family == socket.AF_UNIX or address[0] == "127.0.0.1", (
            f"something was sent to {address}"
        )
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


def expected(response: str) -> tuple[float, float]:
    """Prompt- and instruction-level strict accuracy, straight from the official checkers."""
    followed = []
    for prompt in generated_prompts(40):
        checks = []
        for name, kwargs in zip(prompt.instruction_id_list, prompt.kwargs, strict=True):
            checker = instructions_registry.INSTRUCTION_DICT[name](name)
            checker.build_description(**kwargs)
            checks.append(bool(checker.check_following(response)))
        followed.append(checks)
    single = [check for checks in followed for check in checks]
    return sum(map(all, followed)) / len(followed), sum(single) / len(single)


@pytest.mark.parametrize(
    ("prompts", "path"), [("real", CONFIG.path), ("generated", Path("prompts.jsonl"))]
)
def test_a_file_of_the_other_kind_of_prompts_is_refused(prompts: str, path: Path) -> None:
    with pytest.raises(
        ConfigError, match=rf"ifeval\.path is {path}, and ifeval\.prompts is {prompts}"
    ):
        load_prompts(CONFIG.model_copy(update={"prompts": prompts, "path": path}))


@pytest.mark.slow
def test_every_generated_prompt_is_asked_scored_and_kept(tmp_path: Path) -> None:
    with serve_chat(lambda _: says(RESPONSE)) as chat:
        score = evaluate_ifeval(
            "sft", [chat.endpoint], CONFIG, load_prompts(CONFIG), 0, tmp_path / "out"
        )
    prompts = generated_prompts(40)
    assert Counter(request["messages"][0]["content"] for request in chat.requests) == Counter(
        prompt.prompt for prompt in prompts
    )
    assert all(
        (request["temperature"], request["max_tokens"]) == (0.0, 64) for request in chat.requests
    )
    assert (score.n, score.instruction_ids) == (
        40,
        len({name for p in prompts for name in p.instruction_id_list}),
    )
    assert (score.prompt_strict, score.inst_strict) == pytest.approx(expected(RESPONSE), abs=1e-6)
    assert 0 < score.prompt_strict < score.inst_strict < 1
    responses = [
        json.loads(line) for line in (tmp_path / "out" / "responses.jsonl").read_text().splitlines()
    ]
    assert [line["key"] for line in responses] == [prompt.key for prompt in prompts]
    assert {line["response"] for line in responses} == {RESPONSE}
    assert not any(
        KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )


@pytest.mark.slow
def test_several_servers_share_the_prompts(tmp_path: Path) -> None:
    with serve_chat(lambda _: says(RESPONSE)) as first, serve_chat(lambda _: says("")) as second:
        endpoints = [first.endpoint, second.endpoint]
        score = evaluate_ifeval("sft", endpoints, CONFIG, load_prompts(CONFIG), 0, tmp_path / "out")
    asked = [
        [request["messages"][0]["content"] for request in server.requests]
        for server in (first, second)
    ]
    assert sorted(asked[0] + asked[1]) == sorted(prompt.prompt for prompt in generated_prompts(40))
    assert min(map(len, asked)) >= CONFIG.concurrency
    # Each answer belongs to its prompt, whoever gave it
    lines = (tmp_path / "out" / "responses.jsonl").read_text().splitlines()
    for response in map(json.loads, lines):
        assert (response["response"] == RESPONSE) == (response["prompt"] in asked[0])
    assert score.n == 40


@pytest.mark.slow
def test_an_empty_response_follows_nothing_and_is_counted(tmp_path: Path) -> None:
    with serve_chat(lambda _: says("")) as chat:
        score = evaluate_ifeval(
            "base", [chat.endpoint], CONFIG, load_prompts(CONFIG), 0, tmp_path / "out"
        )
    assert (score.n, score.prompt_loose, score.inst_loose) == (40, 0.0, 0.0)


@pytest.mark.slow
def test_a_prompt_whose_checker_fails_makes_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bool:
        raise LookupError("no such resource")

    monkeypatch.setattr(instructions.CommaChecker, "check_following", broken)
    unscored = [
        prompt.key
        for prompt in generated_prompts(40)
        if "punctuation:no_comma" in prompt.instruction_id_list
    ]
    assert unscored
    message = rf"asked 40 prompts and scored {40 - len(unscored)}.*{re.escape(str(unscored))}.*no such resource"
    with (
        serve_chat(lambda _: says(RESPONSE)) as chat,
        pytest.raises(CheckFailedError, match=message),
    ):
        evaluate_ifeval("sft", [chat.endpoint], CONFIG, load_prompts(CONFIG), 0, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_endpoint_that_fails_stops_the_run_and_keeps_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serve_chat(lambda _: 401) as chat, pytest.raises(EndpointError) as caught:
        evaluate_ifeval("sft", [chat.endpoint], CONFIG, load_prompts(CONFIG), 0, tmp_path / "out")
    assert chat.endpoint.base_url in str(caught.value)
    assert "AuthenticationError" in str(caught.value)
    assert KEY not in str(caught.value)
    assert not (tmp_path / "out").exists()
    console = capfd.readouterr()
    assert KEY not in console.out + console.err
    assert not any(tmp_path.iterdir())


def with_password(endpoint: Endpoint) -> Endpoint:
    return replace(endpoint, base_url=endpoint.base_url.replace("//", "//somebody:hid%2Fden@"))


@pytest.mark.slow
def test_the_password_in_an_address_is_sent_and_written_nowhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serve_chat(lambda _: says(RESPONSE)) as chat:
        score = evaluate_ifeval(
            "sft", [with_password(chat.endpoint)], CONFIG, load_prompts(CONFIG), 0, tmp_path / "out"
        )
    with serve_chat(lambda _: 401) as chat, pytest.raises(EndpointError) as caught:
        evaluate_ifeval(
            "sft", [with_password(chat.endpoint)], CONFIG, load_prompts(CONFIG), 0, tmp_path / "out"
        )
    assert score.n == 40
    assert chat.requests
    assert f" {chat.endpoint.base_url} did not answer" in str(caught.value)
    console = capfd.readouterr()
    files = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert "failed for Basic ***" in str(caught.value)  # so it was sent
    for text in (str(caught.value), console.out, console.err, *files):
        assert "somebody" not in text
        assert "hid%2Fden" not in text
        assert "c29tZWJvZHk6aGlkL2Rlbg" not in text  # both as the header spells them


@pytest.mark.slow
def test_generated_prompts_need_no_nltk_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions_util.nltk.data, "path", [])
    instructions_util._get_sentence_tokenizer.cache_clear()
    monkeypatch.setattr(
        instructions_util, "check_nltk_data", lambda name: pytest.fail(f"{name} was asked for")
    )
    assert expected(RESPONSE)[0] > 0


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (
            '{"key": 1, "prompt": "p", "instruction_id_list": ["punctuation:no_commas"], "kwargs": [{}]}',
            "no_commas",
        ),
        (
            '{"key": 1, "prompt": "p", "instruction_id_list": ["punctuation:no_comma"], "kwargs": []}',
            "kwargs",
        ),
        ('{"key": 1, "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}', "prompt"),
    ],
)
def test_a_malformed_prompt_names_file_and_line(tmp_path: Path, line: str, field: str) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(RecordError, match=field) as caught:
        read_prompts(path)
    assert f"{path}, line 2" in str(caught.value)


@pytest.mark.realdata
def test_the_real_prompts_are_refused_while_the_sentence_model_is_missing(
    tmp_path: Path, real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "input_data.jsonl"
    with gzip.open(real_data / "ifeval" / "input_data.jsonl.gz") as packed, path.open("wb") as out:
        shutil.copyfileobj(packed, out)
    monkeypatch.setattr(instructions_util.nltk.data, "path", [str(tmp_path)])
    with pytest.raises(ArtifactError, match="punkt_tab"):
        read_prompts(path)
    (tmp_path / "tokenizers" / "punkt_tab").mkdir(parents=True)
    assert len(read_prompts(path)) == 441


def write_rows(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("instruction", "arguments", "words"),
    [
        (
            "length_constraints:number_words",
            {"relation": "at least", "num_word": 300},
            "'num_word' is none of its arg",
        ),
        ("length_constraints:number_words", {"relation": "at least"}, "'num_words' is missing"),
        (
            "length_constraints:number_words",
            {"relation": "at least", "num_words": "300"},
            "do not work",
        ),
        ("keywords:existence", {"keywords": "sea"}, "'keywords' must be a list"),
        (
            "keywords:forbidden_words",
            {"forbidden_words": "sea"},
            "'forbidden_words' must be a list",
        ),
        ("language:response_language", {"language": "xx"}, "do not work"),
        (
            "length_constraints:number_words",
            {"relation": "more than", "num_words": 300},
            "do not work",
        ),
        ("punctuation:no_comma", {"commas": 0}, "its arguments: none"),
    ],
)
def test_a_wrong_argument_of_a_checker_is_found_before_any_prompt_is_asked(
    tmp_path: Path, instruction: str, arguments: dict[str, Any], words: str
) -> None:
    prompt = {
        "key": 1,
        "prompt": "Say it.",
        "instruction_id_list": [instruction],
        "kwargs": [arguments],
    }
    with pytest.raises(RecordError, match=f"line 1: .*{instruction}.*{words}"):
        read_prompts(write_rows(tmp_path, prompt))


def test_two_prompts_of_one_key_are_named(tmp_path: Path) -> None:
    row = {
        "key": 1,
        "prompt": "p",
        "instruction_id_list": ["keywords:existence"],
        "kwargs": [{"keywords": ["a"]}],
    }
    with pytest.raises(RecordError, match="line 2: field 'key': 1 is the key of an earlier prompt"):
        read_prompts(write_rows(tmp_path, row, row))
