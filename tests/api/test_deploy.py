"""What deploy/ ships: alert rules and a dashboard, held against the metrics that there are."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.api.clients.exposition import Exposition, exposition
from tests.api.clients.promtool import promtool
from tests.api.clients.transcript import Client
from tests.api.conftest import Start
from tests.api.test_metrics import busy
from topics.testing.patience import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
RULES = ROOT / "deploy" / "prometheus" / "topics.rules.yml"
RULE_TESTS = RULES.with_suffix(".test.yml")
DASHBOARD = ROOT / "deploy" / "grafana" / "topics.json"
SERIES = re.compile(r"\b(?:topics|process)_[a-z_]+")


@pytest.fixture
def metrics(start: Start) -> Exposition:
    """Every series, with something to count."""
    server = start(max_topics=4)
    api = Client(server.address)
    busy(server, api)
    api.put("/v0/topics/one-too-many")
    return exposition(api)


def family(name: str) -> str:
    return re.sub("_(bucket|sum|count)$", "", name)


def expressions() -> list[str]:
    """All that is asked of Prometheus."""
    board = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    asked += [one["expr"] for one in board["annotations"]["list"]]
    asked += [one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    return asked


def test_promtool_accepts_the_rules() -> None:
    run = subprocess.run([promtool(), "check", "rules", RULES], capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
def test_each_alert_comes_when_it_has_to() -> None:
    """And none of them for a server that is well."""
    run = subprocess.run(
        [promtool(), "test", "rules", RULE_TESTS.name],
        cwd=RULES.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    tests = RULE_TESTS.read_text()
    assert len(alerts) == len(set(alerts)) > 10
    for alert in alerts:
        assert f"alertname: {alert}," in tests, f"{alert} is not said to stay away"
        assert f'alertname="{alert}",alertstate="firing"' in tests, f"{alert} is not said to come"


def test_rules_and_dashboard_ask_for_series_that_exist(metrics: Exposition) -> None:
    """HM6: a slip in a name would be an alert that never comes."""
    asked = {family(name) for text in (*expressions(), RULES.read_text()) for name in SERIES.findall(text)}
    assert len(asked) > 20
    assert asked - set(metrics.types) == set()


def test_the_labels_that_are_asked_for_are_those_that_there_are(metrics: Exposition) -> None:
    labels = {"le", "instance", "job", "alertname"}
    labels |= {key for _, pairs in metrics.samples for key, _ in pairs}
    for text in (*expressions(), *re.findall(r"expr: (.*)", RULES.read_text())):
        grouped = [name.strip() for group in re.findall(r"by \(([^)]*)\)", text) for name in group.split(",")]
        chosen = re.findall(r'([a-z_]+)(?:=~|!~|!=|=)"', text)
        assert set(grouped) | set(chosen) <= labels, text


def test_panels_have_numbers_and_places_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert all(panel["title"] and (panel["type"] == "row" or panel["description"]) for panel in panels)


def test_operations_explains_every_metric(metrics: Exposition) -> None:
    """HM6: what it means, when to worry, what to do."""
    page = (ROOT / "docs" / "operations.md").read_text()
    told = {name for line in page.splitlines() if line.startswith("| `") for name in SERIES.findall(line.split("|")[1])}
    told |= {
        f"topics_topic_{name}_total"
        for names in re.findall(r"`topics_topic_\{([a-z,]+)\}_total", page)
        for name in names.split(",")
    }
    assert set(metrics.types) - told == set()


def test_operations_explains_every_alert() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert [alert for alert in re.findall(r"- alert: (\w+)", RULES.read_text()) if f"`{alert}`" not in page] == []
