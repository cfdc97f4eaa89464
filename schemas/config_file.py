"""Reading chargeback.yaml: YAML without surprises, `${env:NAME}`, a rate card in CSV, and every problem at once.

What may stand in the file is in `schemas.config`.
"""

import csv
import difflib
import os
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import pydantic
import yaml

from schemas.config import FUTURE_SECTIONS, NOT_YET, Config, Model
from schemas.errors import ConfigError

_ENVIRONMENT = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET_KEYS = {"bearer_token", "password", "headers"}
# Values and keys that the design knows and a later version brings: told apart from mistakes.
_LATER_VALUES = {
    "policy": {"proportional", "owner", "shared_pool"},
    "idle": {"proportional", "owner", "shared_pool"},
    "default": {"occupancy", "hybrid"},
    "allocation": {"occupancy", "hybrid"},
    "mig_basis": {"memory", "profile"},
}
_LATER_KEYS = {*FUTURE_SECTIONS, "node_selector", "sharing_mode", "mig_profile", "replicas", "node_included", "keys"}
_RATE_COLUMNS = ("id", "model", "list", "contracted", "category", "from", "to")


class _Loader(yaml.SafeLoader):
    """YAML whose numbers and dates stay text (a price is never a binary float) and whose keys are not given twice."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as its base declares it

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: dict[Any, int] = {}
        for key_node, _ in node.value:
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if key in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice, at lines {keys[key]} and {line}; keep one", None
                )
            keys[key] = line
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(~|null|)$"), ["~", "n", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false)$"), ["t", "f"])


def load_config(path: Path) -> Config:
    """Read and validate a configuration; paths in it are relative to it.

    Raises:
        ConfigError: with every problem, each as `path.in.file: what was expected, what was found`.
    """
    source = str(path)
    raw = _read_yaml(path)
    problems: list[str] = []
    given = _with_environment(raw, "", problems)
    if isinstance(given.get("rates"), Mapping):
        given = {**given, "rates": _rates_from_file(given["rates"], path.parent, problems)}
    try:
        config = Config.model_validate(given)
    except pydantic.ValidationError as invalid:
        already = {problem.split(":", 1)[0] for problem in problems}
        found = [_problem(error) for error in invalid.errors(include_url=False)]
        problems += [problem for problem in found if problem.split(":", 1)[0] not in already]
        raise ConfigError(source, problems) from None
    if problems:
        raise ConfigError(source, problems)
    return _beside(config, path.parent.resolve())


def _read_yaml(path: Path) -> dict[str, Any]:
    source = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(source, ["no such file; `gpu-chargeback init` writes one, --config names another"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(source, [f"cannot be read: {error}"]) from None
    try:
        raw = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(source, [f"not valid YAML: {_yaml_problem(error)}"]) from None
    if not isinstance(raw, dict):
        raise ConfigError(
            source, [f"expected keys such as `clusters:`, found {type(raw).__name__ if raw else 'nothing'}"]
        )
    return raw


def _yaml_problem(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or str(error)
    mark = getattr(error, "problem_mark", None)
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark else str(problem)


def _with_environment(value: Any, at: str, problems: list[str]) -> Any:
    """Replace `${env:NAME}` in every string; an unset variable is a problem where it stands."""
    if isinstance(value, dict):
        return {
            key: _with_environment(item, f"{at}.{key}" if at else str(key), problems) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_with_environment(item, f"{at}[{i}]", problems) for i, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    for name in _ENVIRONMENT.findall(value):
        if name not in os.environ:
            problems.append(f"{at}: the environment variable {name} is not set")
    return _ENVIRONMENT.sub(lambda match: os.environ.get(match[1], ""), value)


def _rates_from_file(given: Mapping[str, Any], folder: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Rows of a rate card in CSV; empty cells are left out."""
    if set(given) != {"file"} or not isinstance(given.get("file"), str):
        problems.append(
            f"rates: expected a list of rows or {{file: rates.csv}}, found keys {', '.join(map(str, given))}"
        )
        return []
    path = folder / given["file"]
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        problems.append(f"rates: {path} cannot be read: {error}")
        return []
    unknown = [name for name in columns if name not in _RATE_COLUMNS]
    if unknown:
        told = f"; {NOT_YET}: {', '.join(sorted(set(unknown) & _LATER_KEYS))}" if set(unknown) & _LATER_KEYS else ""
        problems.append(
            f"rates: {path}: expected the columns {', '.join(_RATE_COLUMNS)}, found also {', '.join(unknown)}{told}"
        )
    if any(None in row for row in rows):
        problems.append(f"rates: {path}: a row has more cells than there are columns")
    return [{name: cell for name, cell in row.items() if name in _RATE_COLUMNS and cell} for row in rows]


_EXPECTED = {
    "model_type": "expected keys and values",
    "dict_type": "expected keys and values",
    "list_type": "expected a list",
    "string_type": "expected text",
    "decimal_parsing": "expected a number",
    "decimal_type": "expected a number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
}


def _problem(error: Any) -> str:
    """One line: where, what was expected, what was found."""
    where = _path(error["loc"])
    kind, found = error["type"], error["input"]
    name = str(error["loc"][-1]) if error["loc"] else ""
    if kind == "extra_forbidden":
        return f"{where}: {_unknown_key(name)}"
    if kind == "missing":
        return f"{where}: required, not there"
    if kind == "value_error":
        return (
            f"{where}: {error['msg'].removeprefix('Value error, ')}"
            if where
            else error["msg"].removeprefix("Value error, ")
        )
    told = _EXPECTED.get(kind) or error["msg"][:1].lower() + error["msg"][1:]
    if kind == "literal_error":
        told = f"expected {error['ctx']['expected']}"
        if isinstance(found, str) and found in _LATER_VALUES.get(name, ()):
            return f"{where}: {found!r} is {NOT_YET}; {told}"
    if _SECRET_KEYS & {str(part) for part in error["loc"]}:
        return f"{where}: {told}"
    return f"{where}: {told}, found {_short(found)}"


def _unknown_key(name: str) -> str:
    if name in _LATER_KEYS:
        return f"{NOT_YET}; leave it out"
    close = difflib.get_close_matches(name, _known_keys(), n=1)
    return f"unknown key{f', did you mean {close[0]!r}?' if close else ''}"


def _known_keys() -> list[str]:
    names = [field.alias or name for model in Model.__subclasses__() for name, field in model.model_fields.items()]
    return sorted(set(names))


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _beside(config: Config, folder: Path) -> Config:
    """Paths relative to the configuration's folder made absolute."""

    def absolute(path: Path | None) -> Path | None:
        return path and folder / path.expanduser()

    clusters = [
        cluster.model_copy(
            update={
                "prometheus": cluster.prometheus.model_copy(update={"ca_file": absolute(cluster.prometheus.ca_file)}),
                "kubernetes": cluster.kubernetes
                and cluster.kubernetes.model_copy(
                    update={
                        "ca_file": absolute(cluster.kubernetes.ca_file),
                        "kubeconfig": absolute(cluster.kubernetes.kubeconfig),
                    }
                ),
            }
        )
        for cluster in config.clusters
    ]
    return config.model_copy(update={"lake": str(folder / Path(config.lake).expanduser()), "clusters": clusters})
