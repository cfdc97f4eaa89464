"""chargeback.yaml: its model. Every key, its type, what may stand there, and what depends on what.

How the file is read (YAML, environment, problems with their paths) is in `schemas.config_file`.
"""

import datetime as dt
import hashlib
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from schemas.models import normalize_model

NOT_YET = "not supported by this version"
FUTURE_SECTIONS = ("hardware", "bills", "shared_costs", "budgets", "unit_costs", "sources", "publish")
# x_ columns that FOCUS rows carry in any case: a dimension may not take their place.
RESERVED_COLUMNS = frozenset(
    "x_" + name
    for name in [
        "Cluster",
        "NodeName",
        "NodePool",
        "DeviceId",
        "DeviceModel",
        "MigUuid",
        "MigProfile",
        "SharingMode",
        "ShareNumerator",
        "ShareDenominator",
        "Namespace",
        "PodName",
        "PodUid",
        "ContainerName",
        "OwnerKind",
        "OwnerName",
        "ClaimName",
        "HoldId",
        "HoldStart",
        "HoldEnd",
        "ChargeKind",
        "AllocationModel",
        "AllocationReason",
        "IdlePolicy",
        "Evidence",
        "AttributionScope",
        "TelemetryCoverage",
        "RateId",
        "ConfigDigest",
        "EngineActiveRatio",
        "DeviceEngineActiveRatio",
        "TensorActiveRatio",
        "ProcessSmRatio",
        "EngineActiveGpuHours",
        "MeasuredGpuHours",
        "MemoryUsedGiBMean",
        "MemoryUsedGiBMax",
        "MemoryGiBHours",
        "EnergyKwh",
        "LabelSources",
    ]
)
MOST_PRICE_PLACES = 6
_CUSTOM_COLUMN_LENGTH = 50

NonEmpty = Annotated[str, Field(min_length=1)]


class Model(BaseModel):
    """Unknown keys are errors; nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Account(Model):
    """The billing account that every charge is in."""

    id: NonEmpty = "gpu-chargeback"
    name: NonEmpty = "GPU chargeback"


class Billing(Model):
    """Who charges: the platform team is FOCUS' service provider and invoice issuer."""

    issuer: NonEmpty = "Platform Engineering"
    account: Account = Account()
    service_name: NonEmpty = "GPU Platform"
    service_category: NonEmpty = "Compute"
    service_subcategory: NonEmpty = "Containers"


class Region(Model):
    """FOCUS RegionId and RegionName."""

    id: NonEmpty
    name: NonEmpty


class BasicAuth(Model):
    """User and password of Prometheus."""

    username: NonEmpty
    password: SecretStr


class PrometheusConfig(Model):
    """Prometheus, Thanos, Mimir, VictoriaMetrics: anything with its HTTP API."""

    url: NonEmpty
    headers: dict[str, SecretStr] = {}
    bearer_token: SecretStr | None = None
    basic_auth: BasicAuth | None = None
    ca_file: Path | None = None
    verify: bool = True
    matchers: dict[str, str] = Field(default={}, description="Added to every selector.")
    replica_label: str | None = None
    timeout_s: Annotated[int, Field(ge=1, le=3600)] = 60
    concurrency: Annotated[int, Field(ge=1, le=8)] = 2

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str) -> str:
        return _http_url(url, "move user and password to `basic_auth`")

    @field_validator("matchers")
    @classmethod
    def _label_names(cls, matchers: dict[str, str]) -> dict[str, str]:
        for name in matchers:
            if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name):
                raise ValueError(f"expected Prometheus label names as keys, found {name!r}")
        return matchers

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        if self.bearer_token and self.basic_auth:
            raise ValueError("expected `bearer_token` or `basic_auth`, found both; leave one out")
        return self


class KubernetesConfig(Model):
    """One of: in_cluster, a kubeconfig context, or a server with its token."""

    in_cluster: bool = False
    context: str | None = None
    kubeconfig: Path | None = None
    server: str | None = None
    bearer_token: SecretStr | None = None
    ca_file: Path | None = None
    verify: bool = True

    @field_validator("server")
    @classmethod
    def _plain_url(cls, url: str | None) -> str | None:
        return url and _http_url(url, "use `bearer_token`")

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        ways = {
            "in_cluster: true": self.in_cluster,
            "context/kubeconfig": bool(self.context or self.kubeconfig),
            "server": bool(self.server),
        }
        chosen = [name for name, given in ways.items() if given]
        if len(chosen) != 1:
            raise ValueError(f"expected exactly one of {', '.join(ways)}; found {' and '.join(chosen) or 'none'}")
        return self


class Cluster(Model):
    """One Kubernetes cluster and where its records are."""

    name: str
    host_provider: str | None = Field(default=None, description="HostProviderName; default: the issuer.")
    region: Region | None = None
    prometheus: PrometheusConfig
    kubernetes: KubernetesConfig | None = Field(default=None, description="Absent: kube-state-metrics only.")

    @field_validator("name")
    @classmethod
    def _safe(cls, name: str) -> str:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", name):
            raise ValueError(f"expected lower-case letters, digits, '-' and '.', at most 63, found {name!r}")
        return name


class Dimension(Model):
    """A dimension of the label schema: a pod label, a column of every fact."""

    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
    required: bool = False
    allowed: Annotated[list[NonEmpty], Field(min_length=1)] | None = None

    @property
    def flat_column(self) -> str:
        """The FOCUS column that repeats the value: cost-center -> x_CostCenter."""
        return "x_" + "".join(part[:1].upper() + part[1:] for part in re.split(r"[._-]+", self.key))


class Labels(Model):
    """The label schema that charges are keyed by."""

    prefix: str = Field(default="", description="`acme.dev` makes the label acme.dev/cost-center; empty: the bare key.")
    dimensions: Annotated[list[Dimension], Field(min_length=1)] = [
        Dimension(key="cost-center", required=True),
        Dimension(key="workload-kind"),
        Dimension(key="model"),
        Dimension(key="tenant"),
    ]
    coverage_target: Annotated[Decimal, Field(ge=0, le=1)] = Decimal("0.9")

    @field_validator("prefix")
    @classmethod
    def _no_slash(cls, prefix: str) -> str:
        if not re.fullmatch(r"([a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?)?", prefix):
            raise ValueError(f"expected a DNS name without a slash, such as acme.dev, found {prefix!r}")
        return prefix

    @model_validator(mode="after")
    def _columns_apart(self) -> Self:
        taken: dict[str, str] = {}
        for dimension in self.dimensions:
            column = dimension.flat_column
            if len(column) > _CUSTOM_COLUMN_LENGTH:
                raise ValueError(
                    f"dimension {dimension.key!r}: column {column} exceeds FOCUS' 50 characters; shorten it"
                )
            if column.lower() in {name.lower() for name in RESERVED_COLUMNS}:
                raise ValueError(f"dimension {dimension.key!r}: its column {column} is one of ours; choose another key")
            if column.lower() in taken:
                other = taken[column.lower()]
                raise ValueError(
                    f"dimensions {other!r} and {dimension.key!r} would share the column {column}; rename one"
                )
            taken[column.lower()] = dimension.key
        return self


class When(Model):
    """Globs that must all match."""

    cluster: str | None = None
    namespace: str | None = None
    pod: str | None = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not any((self.cluster, self.namespace, self.pod)):
            raise ValueError("expected at least one of cluster, namespace, pod; use '*' to match everything")
        return self


class VirtualTagRule(Model):
    """Values for pods whose own label does not answer; the first matching rule wins, per dimension."""

    set: Annotated[dict[str, NonEmpty], Field(min_length=1)]
    when: When


class Pool(Model):
    """A node pool, selected by node labels."""

    name: NonEmpty
    selector: Annotated[dict[str, str], Field(min_length=1)]
    owner: str | None = None
    idle: Literal["platform"] | None = None
    allocation: Literal["held"] | None = None
    replicas: Annotated[int, Field(ge=1)] | None = None


class Rate(Model):
    """A row of the rate card: price per GPU-hour of one model, from (inclusive) to (exclusive), UTC."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True, populate_by_name=True)

    id: NonEmpty | None = None
    model: NonEmpty = Field(description="As DCGM gives it; any spelling of the same card meets it.")
    list_price: Decimal | None = Field(default=None, alias="list", description="Default: contracted.")
    contracted_price: Decimal = Field(alias="contracted")
    category: Literal["Standard", "Dynamic", "Other"] = "Standard"
    valid_from: dt.datetime = Field(alias="from")
    valid_to: dt.datetime | None = Field(default=None, alias="to")

    @field_validator("list_price", "contracted_price")
    @classmethod
    def _exact(cls, price: Decimal | None) -> Decimal | None:
        if price is None:
            return None
        if not price.is_finite() or price < 0:
            raise ValueError(f"expected a price of 0 or more per GPU-hour, found {price}")
        exponent = price.normalize().as_tuple().exponent
        if isinstance(exponent, int) and -exponent > MOST_PRICE_PLACES:
            raise ValueError(f"expected at most {MOST_PRICE_PLACES} decimal places, found {price}")
        if price >= 10**12:
            raise ValueError(f"expected a price below 1,000,000,000,000, found {price}")
        return price

    @field_validator("valid_from", "valid_to", mode="before")
    @classmethod
    def _instant(cls, value: Any) -> Any:
        if isinstance(value, dt.datetime):
            instant = value
        elif isinstance(value, dt.date):
            instant = dt.datetime.combine(value, dt.time())
        elif isinstance(value, str):
            try:
                instant = dt.datetime.fromisoformat(value)
            except ValueError:
                raise ValueError(f"expected a UTC day or instant such as 2026-01-01, found {value!r}") from None
        else:
            return value
        return instant.replace(tzinfo=dt.UTC) if instant.tzinfo is None else instant.astimezone(dt.UTC)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.valid_to is not None and self.valid_to <= self.valid_from:
            raise ValueError(
                f"expected `to` after `from`, found {self.valid_from:%Y-%m-%d} to {self.valid_to:%Y-%m-%d}"
            )
        return self

    @property
    def listed_price(self) -> Decimal:
        """The list price, which defaults to the contracted one."""
        return self.contracted_price if self.list_price is None else self.list_price


class Allocation(Model):
    """What is billed of a hold."""

    default: Literal["held"] = "held"
    mig_basis: Literal["compute"] = "compute"


class Idle(Model):
    """Who pays for what nobody held."""

    policy: Literal["platform"] = "platform"
    cost_center: NonEmpty = "platform"


class Ownership(Model):
    """When a device that nothing shows for a while is still owned."""

    bridge_gap_minutes: Annotated[int, Field(ge=0, le=1440)] = 10


class Config(Model):
    """chargeback.yaml."""

    lake: NonEmpty = "data/lake"
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    billing: Billing = Billing()
    clusters: Annotated[list[Cluster], Field(min_length=1)]
    labels: Labels = Labels()
    virtual_tags: list[VirtualTagRule] = []
    pools: list[Pool] = []
    rates: Annotated[list[Rate], Field(min_length=1)]
    allocation: Allocation = Allocation()
    idle: Idle = Idle()
    ownership: Ownership = Ownership()

    @field_validator("lake")
    @classmethod
    def _local(cls, lake: str) -> str:
        if "://" in lake:
            raise ValueError(f"object stores are {NOT_YET}: expected a path, found {lake!r}")
        return lake

    @field_validator("clusters")
    @classmethod
    def _unique_clusters(cls, clusters: list[Cluster]) -> list[Cluster]:
        _require_unique("cluster", [cluster.name for cluster in clusters])
        return clusters

    @field_validator("pools")
    @classmethod
    def _unique_pools(cls, pools: list[Pool]) -> list[Pool]:
        _require_unique("pool", [pool.name for pool in pools])
        return pools

    @field_validator("rates")
    @classmethod
    def _no_overlap(cls, rates: list[Rate]) -> list[Rate]:
        overlaps = [
            f"rows {i} ({_row(a)}) and {j} ({_row(b)}) price the same model at the same time"
            for i, a in enumerate(rates)
            for j, b in enumerate(rates[i + 1 :], start=i + 1)
            if normalize_model(a.model) == normalize_model(b.model)
            and a.valid_from < (b.valid_to or _EVER)
            and b.valid_from < (a.valid_to or _EVER)
        ]
        if overlaps:
            raise ValueError("; ".join(overlaps) + "; end the earlier row with `to`")
        _require_unique("rate id", [rate.id for rate in rates if rate.id])
        return rates

    @field_validator("virtual_tags")
    @classmethod
    def _tags_name_dimensions(cls, rules: list[VirtualTagRule], info: ValidationInfo) -> list[VirtualTagRule]:
        if "labels" not in info.data:  # wrong itself, and told
            return rules
        known = sorted(dimension.key for dimension in info.data["labels"].dimensions)
        unknown = [f"[{i}].set: {key!r}" for i, rule in enumerate(rules) for key in rule.set if key not in known]
        if unknown:
            verb = "are no dimensions" if len(unknown) > 1 else "is no dimension"
            raise ValueError(f"{', '.join(unknown)} {verb}; expected one of {', '.join(known)}")
        return rules

    def digest(self) -> str:
        """Sixteen hex digits over everything that decides the ledger: never connections, never secrets."""
        ledger = self.model_dump(
            mode="json",
            include={
                "currency": True, "billing": True, "labels": True, "virtual_tags": True, "pools": True, "rates": True,
                "allocation": True, "idle": True, "ownership": True,
                "clusters": {"__all__": {"name", "host_provider", "region"}},
            },
        )  # fmt: skip
        canonical = json.dumps(ledger, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


_EVER = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)


def _row(rate: Rate) -> str:
    until = f"{rate.valid_to:%Y-%m-%d}" if rate.valid_to else "open"
    return f"{rate.id or rate.model}, {rate.valid_from:%Y-%m-%d} to {until}"


def _require_unique(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{what} names must differ, found twice: {', '.join(twice)}")


def _http_url(url: str, instead: str) -> str:
    try:
        parts = urlsplit(url)
        credentials = parts.username is not None or parts.password is not None
    except ValueError:
        raise ValueError("expected an http:// or https:// address") from None
    if credentials:
        raise ValueError(f"expected an address without credentials; {instead}")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError("expected an http:// or https:// address")
    return url


def json_schema() -> dict[str, Any]:
    """JSON Schema of chargeback.yaml, for editors; `rates` may also name a CSV file."""
    schema = Config.model_json_schema(by_alias=True)
    rows = schema["properties"]["rates"]
    file = {
        "type": "object",
        "properties": {"file": {"type": "string"}},
        "required": ["file"],
        "additionalProperties": False,
    }
    schema["properties"]["rates"] = {"anyOf": [rows, file], "title": "Rates"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
