import pytest

from deepsearch_rl.core.environment import ENV_FILE_NAMES
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.redaction import (
    environment_secrets,
    is_secret,
    mask_users,
    public_address,
    read_key,
    redact,
)


@pytest.mark.parametrize(
    "name", ["api_key", "teacher.API_KEY_variable", "db_password", "client_secret", "auth_token"]
)
def test_a_setting_that_is_named_like_a_secret_is_one(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "SEARCH_TOKEN",
        "DEEPSEARCH_LOGIN",
        "AWS_SESSION_TOKEN",
        "MLFLOW_TRACKING_TOKEN",
        "PREFECT_API_AUTH_STRING",
        "GITHUB_PAT",
        "KAGGLE_KEY",
        "OPENAI_KEY",
        "SERPER_KEY",
        "TAVILY_APIKEY",
        "AZURE_STORAGE_KEY",
        "AZURE_STORAGE_CONNECTION_STRING",
    ],
)
def test_an_environment_variable_that_is_named_like_a_secret_is_one(name: str) -> None:
    assert is_secret(name)
    assert redact("it is hidden1", environment_secrets({name: "hidden1"})) == "it is ***"


def test_the_secrets_of_an_environment_are_passwords_in_it_and_keys_that_the_env_file_brought() -> (
    None
):
    environment = {
        "DEEPSEARCH_LOGIN": "me:hidden:1",
        "MLFLOW_TRACKING_URI": "http://you:hidden2@host:5000",
        "MY_KEY": "sk-0123456789abcdef",
        "MY_FOLDER": "/data/models/of-2026",
        "MY_THREADS": "4",
        "OTHER": "sk-0123456789abcdee",
        ENV_FILE_NAMES: "MY_KEY,MY_FOLDER,MY_THREADS",
    }
    text = "hidden:1 hidden2 sk-0123456789abcdef /data/models/of-2026 4 sk-0123456789abcdee http://host:5000"
    shown = "*** *** *** /data/models/of-2026 4 sk-0123456789abcdee http://host:5000"
    assert redact(text, environment_secrets(environment)) == shown


@pytest.mark.parametrize(
    "name",
    [
        "token_limit",
        "token_variable",
        "gspo_token_level",
        "tokens",
        "max_tokens",
        "key",
        "seed",
        "tokenizer",
    ],
)
def test_other_settings_are_no_secrets(name: str) -> None:
    assert not is_secret(name)


def test_an_address_is_public_without_user_password_and_query() -> None:
    assert public_address("https://user:hidden@host:8000/v1?token=hidden") == "https://host:8000/v1"


@pytest.mark.parametrize(
    "address", ["http://u:hid/den@h", "http://u:1?hidden@h", "http://u:hid#den@h", "http://h:x/"]
)
def test_an_address_whose_password_may_be_read_as_another_part_is_not_public(address: str) -> None:
    assert public_address(address) is None


def test_users_are_masked_in_the_addresses_of_a_text() -> None:
    assert (
        mask_users("see http://u:hid@den@h/v1 and http://h") == "see http://***@h/v1 and http://h"
    )


def test_a_secret_is_masked_in_every_spelling_and_what_is_no_secret_stays() -> None:
    text = r"a/b a%2Fb a\/b and ab"
    assert redact(text, ["a/b", None, ""]) == "*** *** *** and ab"


def test_a_secret_that_holds_another_is_masked_whole() -> None:
    assert redact("key-long key", ["key", "key-long"]) == "*** ***"


def test_a_missing_key_is_told_without_the_login_in_its_servers_address() -> None:
    with pytest.raises(ConfigError) as raised:
        read_key("KEY_THAT_NOBODY_SET", "https://bob:hid@den@host/v1")
    assert "the key of https://***@host/v1: it is not set" in str(raised.value)
