"""The asset graph as a reviewable text: a changed key, dependency, check or schedule shows as a diff of graph.txt."""

from pathlib import Path

from assets.assembly import build_definitions
from schemas.config import Config

SNAPSHOT = Path(__file__).parent / "graph.txt"
CONFIG = Config.model_validate(
    {
        "clusters": [{"name": "one", "prometheus": {"url": "http://p:9090"}}],
        "rates": [{"model": "x", "contracted": "1", "from": "2026-01-01"}],
    }
)


def graph() -> str:
    definitions = build_definitions(CONFIG)
    assets = definitions.resolve_asset_graph()
    lines = []
    for key in sorted(assets.get_all_asset_keys(), key=lambda key: key.path):
        node = assets.get(key)
        parents = ", ".join(sorted(parent.to_user_string() for parent in node.parent_keys))
        lines.append(f"{key.to_user_string()} [{node.group_name}] <- {parents}")
    for check in sorted(assets.asset_check_keys, key=str):
        lines.append(f"check {check.name} of {check.asset_key.to_user_string()}")
    repository = definitions.get_repository_def()
    for schedule in sorted(repository.schedule_defs, key=lambda schedule: schedule.name):
        lines.append(f"schedule {schedule.name} {schedule.cron_schedule} {schedule.default_status.value}")
    return "\n".join(lines) + "\n"


def test_the_graph_is_as_it_was_reviewed() -> None:
    assert graph() == SNAPSHOT.read_text(), "if meant, write tests.unit.assets.test_graph.graph() to graph.txt"


def test_resources_can_be_replaced() -> None:
    definitions = build_definitions(CONFIG, overrides={"lake": "another"})
    assert (definitions.resources or {})["lake"] == "another"
