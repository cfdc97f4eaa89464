from decimal import Decimal
from pathlib import Path

import pytest

from schemas.config import RESERVED_COLUMNS, Config, Dimension
from schemas.config_file import load_config
from schemas.errors import ConfigError
from schemas.focus import dimension_column, own_columns

GOOD = """
clusters:
  - name: prod
    prometheus: {url: http://prometheus:9090}
rates:
  - {model: NVIDIA H100 80GB HBM3, contracted: 5.191, from: 2026-01-01}
"""
FULL = """
lake: lake
currency: USD
billing:
  issuer: Acme Platform Engineering
  account: {id: acme-gpu, name: Acme GPU platform}
clusters:
  - name: prod-east
    host_provider: AWS
    region: {id: us-east-1, name: US East (N. Virginia)}
    prometheus:
      url: http://prometheus:9090
      headers: {X-Scope-OrgID: gpu}
      bearer_token: ${env:PROM_TOKEN}
      ca_file: corp.pem
      matchers: {cluster: prod-east}
      replica_label: prometheus_replica
    kubernetes: {in_cluster: true}
labels:
  prefix: acme.dev
  dimensions:
    - {key: cost-center, required: true}
    - {key: workload-kind, allowed: [inference, training, interactive]}
    - {key: model}
    - {key: tenant, allowed: [internal, customer-dedicated]}
  coverage_target: 0.9
virtual_tags:
  - {set: {cost-center: search}, when: {namespace: "search-*"}}
pools:
  - {name: h100, selector: {node.acme.dev/pool: h100}, owner: ml-platform, replicas: 4}
rates:
  - {id: h100-2026, model: NVIDIA H100 80GB HBM3, list: 6.88, contracted: 5.191, category: Standard, from: 2026-01-01}
allocation: {default: held, mig_basis: compute}
idle: {policy: platform, cost_center: platform}
"""


def loaded(folder: Path, text: str) -> Config:
    path = folder / "chargeback.yaml"
    path.write_text(text)
    return load_config(path)


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as found:
        loaded(folder, text)
    return found.value.problems


def test_the_smallest_configuration(tmp_path: Path) -> None:
    config = loaded(tmp_path, GOOD)
    assert config.rates[0].contracted_price == Decimal("5.191")
    assert config.rates[0].listed_price == Decimal("5.191")
    assert config.lake == str(tmp_path / "data" / "lake")
    assert [dimension.key for dimension in config.labels.dimensions] == [
        "cost-center",
        "workload-kind",
        "model",
        "tenant",
    ]


def test_the_documented_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROM_TOKEN", "hush-hush")
    config = loaded(tmp_path, FULL)
    token = config.clusters[0].prometheus.bearer_token
    assert token is not None
    assert token.get_secret_value() == "hush-hush"
    assert "hush-hush" not in repr(config) + str(config.model_dump()) + config.model_dump_json()
    assert config.clusters[0].prometheus.ca_file == tmp_path / "corp.pem"


def test_every_problem_at_once(tmp_path: Path) -> None:
    told = problems(
        tmp_path,
        """
curency: USD
hardware: {}
clusters:
  - name: A B
    prometheus: {url: "http://user:pass@h", timeout_s: soon, bearer_token: [secret-word]}
    kubernetes: {in_cluster: true, server: "http://x"}
idle: {policy: owner}
rates:
  - {model: H100, contracted: 5.1912345, from: 2026-01-01}
  - {model: H200, contracted: -1, from: nope, replicas: 4}
pools: [{name: x, selector: {a: "${env:SURELY_NOT_SET}"}}]
""",
    )
    assert sorted(problem.split(":")[0] for problem in told) == sorted(
        [
            "curency", "hardware", "clusters[0].name", "clusters[0].prometheus.url", "clusters[0].prometheus.timeout_s",
            "clusters[0].prometheus.bearer_token", "clusters[0].kubernetes", "idle.policy", "rates[0].contracted",
            "rates[1].contracted", "rates[1].from", "rates[1].replicas", "pools[0].selector.a",
        ]
    )  # fmt: skip
    text = "\n".join(told)
    assert "did you mean 'currency'?" in text
    assert "hardware: not supported by this version" in text
    assert "secret-word" not in text
    assert "pass" not in text.replace("password", "")


@pytest.mark.parametrize(
    ("addition", "expected"),
    [
        ("rates: []", "given twice"),
        ("labels: {dimensions: [{key: cost_center}, {key: cost-center}]}", "would share the column x_CostCenter"),
        ("labels: {dimensions: [{key: pod-name}]}", "x_PodName is one of ours"),
        ("labels: {dimensions: [{key: " + "a" * 60 + "}]}", "50 characters"),
        ("labels: {dimensions: []}", "labels.dimensions"),
        ("virtual_tags: [{set: {team: x}, when: {namespace: a}}]", "'team' is no dimension"),
        ("virtual_tags: [{set: {tenant: x}, when: {}}]", "at least one of cluster, namespace, pod"),
        ("allocation: {default: occupancy}", "'occupancy' is not supported by this version"),
        ("lake: s3://bucket/prefix", "object stores are not supported by this version"),
        ("currency: euro", "currency"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, addition: str, expected: str) -> None:
    assert any(expected in problem for problem in problems(tmp_path, GOOD + addition))


def test_rates_that_overlap_are_named(tmp_path: Path) -> None:
    rows = """
  - {id: second, model: nvidia-h100-80gb-hbm3-shared, contracted: 4.8, from: 2026-06-01}
"""
    told = problems(tmp_path, GOOD.rstrip() + rows)
    assert "rows 0 (NVIDIA H100 80GB HBM3, 2026-01-01 to open) and 1 (second, 2026-06-01 to open)" in told[0]


def test_a_rate_card_in_csv(tmp_path: Path) -> None:
    head = GOOD[: GOOD.index("rates:")]
    (tmp_path / "rates.csv").write_text(
        "id,model,list,contracted,from,to\na,H100,,5.191,2026-01-01,2026-06-01\nb,H100,7,4.8,2026-06-01,\n"
    )
    config = loaded(tmp_path, head + "rates: {file: rates.csv}\n")
    assert [(rate.id, rate.listed_price) for rate in config.rates] == [("a", Decimal("5.191")), ("b", Decimal(7))]
    (tmp_path / "rates.csv").write_text("id,model,price\na,H100,5\n")
    told = problems(tmp_path, head + "rates: {file: rates.csv}\n")
    assert any("found also price" in problem for problem in told)
    assert any("cannot be read" in problem for problem in problems(tmp_path, head + "rates: {file: none.csv}\n"))


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "a: [1, 2\n", "\t: x"])
def test_what_is_no_configuration_at_all(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gpu-chargeback init"):
        load_config(tmp_path / "none.yaml")


def test_the_digest_is_of_the_ledger_only(tmp_path: Path) -> None:
    digest = loaded(tmp_path, GOOD).digest()
    assert digest == loaded(tmp_path, GOOD.replace("http://prometheus:9090", "https://elsewhere")).digest()
    assert digest != loaded(tmp_path, GOOD.replace("5.191", "5.192")).digest()


def test_reserved_columns_are_those_of_the_rows() -> None:
    assert {*own_columns(), "x_LabelSources"} == RESERVED_COLUMNS
    for key in ("cost-center", "a_b.c", "team"):
        assert Dimension(key=key).flat_column == dimension_column(key)
