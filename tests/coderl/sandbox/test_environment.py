from __future__ import annotations

import pytest

from mileage.coderl.sandbox.isolation import allowed_environment


@pytest.mark.parametrize(
    "name",
    [
        "DATABASE_URL", "GITHUB_PAT", "OPENAI_API_KEY", "MY_KEY", "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "HF_TOKEN",
        "PGPASSWORD",
        "KUBECONFIG", "SSH_AUTH_SOCK", "NETRC", "WANDB_API_KEY", "CARGO_REGISTRY_TOKEN", "CARGO_REGISTRIES_X_TOKEN",
        "npm_config__auth", "NPM_CONFIG_PASSWORD", "CMAKE_SECRET", "PYTHON_KEYRING_PASSPHRASE",
        "SCCACHE_REDIS_PASSWORD",
        "LC_PRIVATE_KEY", "BUNDLE_GITHUB__COM", "http_proxy",
    ],
)  # fmt: skip
def test_secrets_and_strangers_stay_outside(name: str) -> None:
    assert allowed_environment({name: "hunter2"}) == {}


@pytest.mark.parametrize(
    "name",
    ["PATH", "HOME", "LANG", "LC_ALL", "CC", "CFLAGS", "CARGO_HOME", "RUSTFLAGS", "GOPATH", "JAVA_HOME", "PYTHONPATH"],
)
def test_what_toolchains_read_is_passed_on(name: str) -> None:
    assert allowed_environment({name: "x"}) == {name: "x"}


def test_a_password_in_an_address_is_a_secret_whatever_the_variable_is_called() -> None:
    source = {"GOPROXY": "https://me:hunter2@proxy.example", "CMAKE_PREFIX_PATH": "/opt"}
    assert allowed_environment(source) == {"CMAKE_PREFIX_PATH": "/opt"}


def test_a_variable_can_be_named() -> None:
    assert allowed_environment({"DATABASE_URL": "x", "OTHER": "y"}, ("DATABASE_URL",)) == {"DATABASE_URL": "x"}
