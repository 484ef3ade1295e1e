from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sample_rows import make_checkpoint, make_end, make_run
from shown_runs import exam, rows
from typer.testing import CliRunner

import extras
from mileage.cli.app import app as commands
from mileage.errors import UsageError
from mileage.ledger.rows import Run
from mileage.ledger.store import Store

pytestmark = extras.needs("web", "starlette", "httpx", "uvicorn")

TOKEN = "a-token-that-is-long-enough"
Client = Any


@contextmanager
def opened(db: Path) -> Iterator[Callable[..., Client]]:
    """Clients of the pages of a ledger."""
    from starlette.testclient import TestClient

    from mileage.report.web.app import make_app

    with Store.viewer(db) as store:
        yield lambda token=None, base="http://127.0.0.1:8350": TestClient(
            make_app(store, token), base_url=base, raise_server_exceptions=False
        )


@pytest.fixture
def open_client(ledger: Path) -> Iterator[Callable[..., Client]]:
    with opened(ledger) as make:
        yield make


@pytest.fixture
def client(open_client: Callable[..., Client]) -> Client:
    return open_client()


def cli_json(*arguments: str) -> Any:
    result = CliRunner().invoke(commands, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_every_page_answers(client: Client, runs: dict[str, Run]) -> None:
    paths = ["/", "/recipes", "/compare", "/compare?a=fast&b=slow", "/builds", "/static/page.css", "/static/page.js"]
    for run in runs.values():
        paths += [f"/runs/{run.run_id}", f"/recipes/{run.run_id}", f"/runs/{run.run_id}/live"]
    for path in paths:
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text[:500])
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]


def test_the_api_is_what_the_command_line_prints(client: Client, runs: dict[str, Run]) -> None:
    run_id = runs["slow-4"].run_id
    assert client.get("/api/runs.json").json() == cli_json("ledger", "list")
    assert client.get("/api/runs.json?selection=name%3Dslow&state=reached&limit=2").json() == cli_json(
        "ledger", "list", "name=slow", "--state", "reached", "--limit", "2"
    )
    assert client.get(f"/api/runs/{run_id}.json").json() == cli_json("ledger", "show", run_id)
    asked = client.get(f"/api/runs/{run_id}.json?target=mean_return%3E%3D100").json()
    assert asked == cli_json("ledger", "show", run_id, "--target", "mean_return>=100")
    assert client.get("/api/compare.json?a=fast&b=slow").json() == cli_json("ledger", "compare", "fast", "slow")
    loose = "/api/compare.json?a=fast&b=pendulum&allow_unmatched=panel_id&allow_unmatched=target"
    assert client.get(loose).json() == cli_json(
        "ledger", "compare", "fast", "pendulum", "--allow-unmatched", "panel_id", "--allow-unmatched", "target"
    )


def test_runs_of_other_exams_are_refused_in_words(client: Client) -> None:
    page = client.get("/compare?a=fast&b=pendulum")
    assert page.status_code == 409
    assert "these runs may not be compared, because they differ in panel_id, target" in page.text
    assert "Pendulum-v1" in page.text
    answer = client.get("/api/compare.json?a=fast&b=pendulum")
    assert (answer.status_code, list(answer.json())) == (409, ["error"])


def listed(page: str) -> list[str]:
    return re.findall(r'<td class="id"><a href="/runs/([^"]+)"', page)


def test_the_list_is_filtered_sorted_and_searched_by_its_address(client: Client, runs: dict[str, Run]) -> None:
    assert len(listed(client.get("/").text)) == len(runs)
    slow = {runs[f"slow-{seed}"].run_id for seed in range(5)}
    assert set(listed(client.get("/?q=SLOW").text)) == slow
    assert listed(client.get("/?q=slow&state=not_reached").text) == [runs["slow-4"].run_id]
    ascending = listed(client.get("/?q=slow&sort=seed&order=up").text)
    assert ascending == [runs[f"slow-{seed}"].run_id for seed in range(5)]
    assert listed(client.get("/?q=slow&sort=seed").text) == ascending[::-1]
    assert listed(client.get("/?q=%25").text) == [runs["evil"].run_id] or listed(client.get("/?q=%25").text) == []
    assert listed(client.get("/?page=2").text) == []


def test_recipes_count_their_seeds(client: Client) -> None:
    page = client.get("/recipes?q=slow").text
    cells = [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", page)]
    assert cells[2:8] == ["slow", "ppo on CartPole-v1", "mean_return&gt;=475.0", "5", "4", "1"]
    returns = [run["mean_return"] for run in client.get("/api/runs.json?selection=slow").json()]
    assert cells[9] == f"{sum(returns) / len(returns):,.1f}"  # of all seeds, not of the best


def test_a_number_is_the_same_on_every_page(client: Client, runs: dict[str, Run]) -> None:
    """Of a recipe alone and beside another, and in the report."""
    alone = client.get(f"/recipes/{runs['slow-0'].run_id}").text
    beside = client.get("/compare?a=fast&b=slow").text
    (path,) = re.findall(r'<path d="([^"]*)" class="curve c0"', alone)[:1]
    shapes = re.findall(r'<path d="([^"]*)" class="curve c1"', beside)
    assert path
    assert shapes  # drawn on other axes, so the places differ; what is said of it does not
    said = "5 seeds, 4 reached, 1 failed"
    assert said in alone
    assert said in beside


def test_words_of_others_are_inert_on_every_page(client: Client, runs: dict[str, Run]) -> None:
    evil = runs["evil"].run_id
    for path in ("/", "/recipes", f"/runs/{evil}", f"/recipes/{evil}", "/compare?a=fast&b=slow", "/builds",
                 "/?q=%3Cscript%3Ealert(1)%3C/script%3E", "/compare?a=%22%3E%3Cscript%3E&b=x"):  # fmt: skip
        page = client.get(path).text
        assert "<script>" not in page, path
        assert "onerror=" not in re.sub(r"&lt;img[^<]*", "", page), path
        assert "<img" not in page, path


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/runs/nobody", 404), ("/recipes/nobody", 404), ("/runs/nobody/live", 404), ("/events/nobody", 404),
        ("/api/runs/nobody.json", 404), ("/api/runs.json?selection=nobody", 404), ("/nowhere", 404),
        ("/static/../../../etc/passwd", 404), ("/static/..%2f..%2fetc%2fpasswd", 404), ("/runs/..%2F..%2Fl.db", 404),
        ("/runs/%00", 400), ("/?q=%00", 400), ("/?q=%1b", 400), ("/?page=x", 400), ("/?page=-1", 400),
        ("/?page=99999999999999999999", 400), ("/?sort=password", 400), ("/?state=odd", 400),
        ("/?sort=name;DROP TABLE ledger_run", 400), ("/api/runs.json?limit=-1", 400),
        ("/api/runs.json?limit=%C2%B2", 400),
        ("/api/runs.json?selection=seed%3D99999999999999999999", 400), ("/api/runs.json?selection=password%3D1", 400),
        ("/api/compare.json", 400), ("/api/compare.json?a=fast&b=fast", 400), ("/compare?a=fast&b=nobody", 400),
        ("/api/compare.json?a=fast&b=slow&allow_unmatched=all", 400), ("/?q=" + "x" * 9000, 414),
        ("/api/runs.json?selection=' OR 1=1 --", 400),
        ("/?q=' OR 1=1 --", 200), ("/compare?a=fast&b=slow&path=1&x=", 200),
        ("/compare?a=fast&b=slow&path=1&x=days", 400),
    ],
)  # fmt: skip
def test_odd_addresses_get_a_sentence(client: Client, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    assert "Traceback" not in answer.text


def test_pages_can_only_be_read(client: Client, runs: dict[str, Run], ledger: Path) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        for path in ("/", "/api/runs.json", f"/runs/{runs['fast-0'].run_id}"):
            assert client.request(method, path).status_code == 405
    with Store.viewer(ledger) as store:
        with store.engine.connect() as connection, pytest.raises(Exception, match=r"readonly|query_only|read-only"):
            connection.exec_driver_sql("DELETE FROM ledger_heartbeat")
        with store.engine.connect() as connection, pytest.raises(Exception, match=r"readonly|query_only|read-only"):
            connection.exec_driver_sql("CREATE TABLE x (y)")
    with sqlite3.connect(ledger) as connection:
        assert connection.execute("SELECT count(*) FROM ledger_run").fetchone() == (len(runs),)


def test_a_stranger_by_another_name_is_refused(open_client: Callable[..., Client]) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.7:8350", ""):
        assert open_client().get("/", headers={"host": host}).status_code == 421
    for host in ("localhost:1", "127.0.0.1", "[::1]:8350"):
        assert open_client().get("/", headers={"host": host}).status_code == 200


def test_with_a_token_only_who_has_it_sees_anything(open_client: Callable[..., Client], runs: dict[str, Run]) -> None:
    strange = open_client(TOKEN, "http://10.0.0.7:8350")
    for path in ("/", "/api/runs.json", f"/events/{runs['fast-0'].run_id}", "/static/page.css", "/openapi.json"):
        assert strange.get(path).status_code == 401
        assert strange.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert strange.get(path, headers={"cookie": "mileage_token=wrong"}).status_code == 401
        assert strange.get(path + "?token=wrong").status_code == 403
        assert strange.get(path + "?token=", follow_redirects=False).status_code == 403
    assert strange.get("/api/runs.json", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    entered = strange.get(f"/?q=slow&token={TOKEN}", follow_redirects=False)
    assert (entered.status_code, entered.headers["location"]) == (303, "/?q=slow")
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert strange.get("/recipes").status_code == 200  # by the cookie
    away = open_client(TOKEN).get(f"//evil.example/?token={TOKEN}", follow_redirects=False)
    assert away.headers.get("location", "/").startswith("/")
    assert not away.headers.get("location", "/").startswith("//")


def test_a_run_that_goes_on_tells_its_page(tmp_path: Path) -> None:
    run = make_run(name="live", seed=0, **exam())
    with Store(tmp_path / "l.db") as store:
        store.deliver(rows(run, end=False)[:3])
    with opened(tmp_path / "l.db") as make:
        follow(make(), run, tmp_path / "l.db")


def follow(client: Client, run: Run, ledger: Path) -> None:
    page = client.get(f"/runs/{run.run_id}").text
    assert f'data-live="/runs/{run.run_id}/live"' in page
    (events,) = re.findall(r'data-events="([^"]*)"', page)
    with Store(ledger) as store:
        store.deliver([make_checkpoint(run, 30, step=9000, target_value=333.25, mean_return=333.25)])
        store.deliver([make_end(run)])
    with client.stream("GET", events) as stream:
        said = "".join(stream.iter_text())
    assert said == "retry: 3000\n\nevent: ended\ndata: {}\n\n"
    assert "333.2" in client.get(f"/runs/{run.run_id}/live").text
    assert "data-live" not in client.get(f"/runs/{run.run_id}").text


def test_the_document_of_the_api_names_what_is_there(client: Client) -> None:
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.")
    for path in document["paths"]:
        assert client.get(path.replace("{run_id}", "nobody")).status_code in (200, 400, 404), path


@pytest.mark.parametrize(
    "arguments", [("--port", "70000"), ("--token", "short"), ("--host", "256.0.0.1"), ("--port", "-1")]
)
def test_a_mistake_is_one_sentence(runs: dict[str, Run], arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        CliRunner().invoke(commands, ["serve", *arguments], catch_exceptions=False)


@pytest.mark.slow
@extras.needs("dev", "schemathesis")
def test_a_fuzzer_finds_no_fault(open_client: Callable[..., Client], runs: dict[str, Run], ledger: Path) -> None:
    import hypothesis
    import schemathesis

    from mileage.report.web.app import make_app, openapi

    with Store.viewer(ledger) as store:
        schema = schemathesis.openapi.from_dict(openapi())
        schema.app = make_app(store)
        for operation in schema.get_all_operations():
            made = operation.ok()

            @hypothesis.given(case=made.as_strategy())
            @hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
            def one(case: Any) -> None:
                answer = case.call(base_url="http://127.0.0.1:8350")
                assert answer.status_code < 500, (case, answer.text)

            one()
