from __future__ import annotations

import pytest
from sample_rows import make_checkpoint, make_end, make_note, make_profile, make_run

from mileage.ledger import secrets
from mileage.ledger.rows import Row
from mileage.ledger.secrets import scrubbed_command, scrubbed_json, scrubbed_row, scrubbed_text, scrubbed_value

SECRETS = [
    "--db postgresql://bob:hunter22@db.host/ledger",
    "--db=postgresql+psycopg://bob:hun@ter/hunter22@db.host/ledger",
    "postgres://h/db?password=hunter22&sslmode=require",
    "redis://:hunter22@host:6379/0",
    "host=h password='my hunter22' user=x",
    "PGPASSWORD=hunter22 mileage train",
    "--wandb-api-key hunter22 --seed 1",
    "MY_SERVICE_SECRET: hunter22",
    "Authorization: Bearer hunter22hunter22",
    "token=hunter22",
    '{"db_password": "hunter22"}',
]
HARMLESS = [
    "mileage train ppo CartPole-v1 --target mean_return>=475 --seed 3",
    "postgresql://bob@h/db",
    "max_tokens=512 eos_token=</s> tokens: 3 pass_rate=0.5 key=3 monkey=4",
    "https://example.org/a:b/c",
    "policy.safetensors",
    "mail me@example.org about 12:30",
]


@pytest.fixture(autouse=True)
def forget_the_environment() -> None:
    """What another test put into the environment would hide a secret here that no rule finds."""
    secrets._secrets_of_environment.cache_clear()


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_hidden_and_stays_hidden(text: str) -> None:
    clean = scrubbed_text(text)
    assert "hunter22" not in clean
    assert "***" in clean
    assert scrubbed_text(clean) == clean


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert scrubbed_text(text) == text


@pytest.mark.parametrize(
    "issued",
    ["ghp_" + "a1B2" * 9, "hf_" + "a1B2" * 8, "sk-" + "a1B2" * 8, "AKIA" + "A1B2" * 4, "glpat-" + "a1B2" * 5],
)
def test_keys_are_known_by_their_form(issued: str) -> None:
    assert scrubbed_text(f"use {issued} here") == "use *** here"


def test_an_option_hides_the_argument_after_it_and_an_address_may_have_blanks() -> None:
    assert scrubbed_command(["mileage", "--db-password", "a b", "--seed", "3"]) == "mileage --db-password *** --seed 3"
    assert scrubbed_command(["x", "--db=postgresql://u:p q@h/d"]) == "x --db=postgresql://u:***@h/d"


@pytest.mark.parametrize(
    "arguments",
    [
        ['--password=hunter22,hunter22;hunter22&x"hunter22 hunter22'],
        ["--password", "-hunter22"],
        ["--token", "--password", "hunter22"],
        ["--dbpw", "hunter22", "--seed", "1"],
        ["--auth", "hunter22"],
        ["--license-key=hunter22"],
        ["env", "PGPASSWORD=hunter22 with blanks, hunter22", "python"],
        ["--set", "db.password=hunter22,hunter22"],
        ["curl", "-u", "bob:hunter22", "https://h"],
        ["sh", "-c", "curl --user bob:hunter22 https://h"],
        ["curl", "-H", "Cookie: session=hunter22; id=hunter22"],
        ["--db", "postgresql://h/db?password=hunter22,hunter22&sslmode=require"],
        ["--db", "host=h password=hunter22,hunter22 dbname=d"],
        ["https://h/x?X-Amz-Signature=hunter22&y=1"],
    ],
)
def test_a_secret_argument_is_hidden_to_its_end_alone_and_in_a_list(arguments: list[str]) -> None:
    assert "hunter22" not in scrubbed_command(arguments)
    assert "hunter22" not in str(scrubbed_value({"command": arguments}))


def test_a_long_text_is_looked_through_once() -> None:
    text = "key " + "a" * 1_000_000  # anything that grows with the square of it would not come to an end
    assert scrubbed_text(text) == text


def test_other_settings_beside_a_secret_one_stay() -> None:
    assert scrubbed_text("Server=h;Password=x,y;Database=d") == "Server=h;Password=***;Database=d"
    assert scrubbed_text("password=x, lr=0.1") == "password=***, lr=0.1"
    assert scrubbed_command(["python", "-u", "my.module:Class"]) == "python -u my.module:Class"
    assert scrubbed_value({"secrets": {"a": ["x", 1], "b": None}, "auth": True}) == {
        "secrets": {"a": ["***", "***"], "b": None}, "auth": True
    }  # fmt: skip


def test_values_are_hidden_by_the_name_they_stand_under() -> None:
    given = {
        "lr": 0.1,
        "db": {"password": 1234, "url": "postgresql://a:b@c/d"},
        "keys": ["k"],
        "max_tokens": 5,
        "on": True,
    }
    assert scrubbed_value(given) == {
        "lr": 0.1, "db": {"password": "***", "url": "postgresql://a:***@c/d"}, "keys": ["k"], "max_tokens": 5,
        "on": True,
    }  # fmt: skip
    assert scrubbed_json('{"lr":0.1}') == '{"lr":0.1}'
    assert scrubbed_json('{"api_key":"x","lr":0.1}') == '{"api_key":"***","lr":0.1}'
    assert scrubbed_json("not json, password=x") == "not json, password=***"


def test_secrets_of_the_environment_are_known_by_their_value(monkeypatch: pytest.MonkeyPatch) -> None:
    from mileage.ledger import secrets

    monkeypatch.setenv("PGPASSWORD", "correct horse")
    monkeypatch.setenv("MILEAGE_DB", "postgresql://u:battery-staple@h/d")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/ssh/agent")
    monkeypatch.setenv("REPORTS", "host=h user=u password=wrench-drill")
    monkeypatch.setenv("KAGGLE_KEY", "p@ss/word")
    secrets._secrets_of_environment.cache_clear()
    assert (
        scrubbed_text("said correct horse and battery-staple to /tmp/ssh/agent") == "said *** and *** to /tmp/ssh/agent"
    )
    assert scrubbed_text("wrench-drill, p%40ss%2Fword and p@ss/word") == "***, *** and ***"
    secrets._secrets_of_environment.cache_clear()


def test_every_row_that_holds_words_is_scrubbed() -> None:
    word = "postgresql://u:hunter22@h/d"
    run = make_run(command=word, config=f'{{"db":"{word}"}}', machine=f'{{"x":"{word}"}}')
    rows: list[Row] = [
        run,
        make_checkpoint(run, 1, path=word, claimed=f'{{"db":"{word}"}}'),
        make_profile(run, 2)._replace(summary=f'{{"db":"{word}"}}'),
        make_note(run, text=word),
        make_end(run, reason=f"OperationalError: {word}"),
    ]
    for row in rows:
        assert "hunter22" in repr(row)
        assert "hunter22" not in repr(scrubbed_row(row))
    clean = make_checkpoint(run, 1)
    assert scrubbed_row(clean) is clean


def test_several_tokens_are_secrets_where_they_are_words_and_counts_where_they_are_numbers() -> None:
    hidden = {"tokens": ["hunter22", "hunter22"], "hf_tokens": {"a": "hunter22"}, "api-tokens": "hunter22"}
    assert "hunter22" not in repr(scrubbed_value(hidden))
    assert scrubbed_text("tokens: [hunter22, 'hunter22']") == "tokens: ***"
    for kept in ({"tokens": [1, 2]}, {"tokens": 5}, {"tokens": "12,000"}, {"special_tokens": ["<pad>"]}):
        assert scrubbed_value(kept) == kept
    assert scrubbed_text("METRIC tokens=512 step=3") == "METRIC tokens=512 step=3"
