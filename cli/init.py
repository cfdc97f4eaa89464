"""`init`: a commented chargeback.yaml to start from."""

import importlib.resources
from pathlib import Path

import typer

from schemas.errors import UsageError


def write_config(path: Path, *, force: bool) -> None:
    """Write the template. Raises UsageError where a file is there already and `force` is not given."""
    if path.exists() and not force:
        raise UsageError(f"{path} is there already; --force replaces it, --config names another")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: no such folder")
    path.write_text(importlib.resources.files("cli").joinpath("chargeback.template.yaml").read_text())
    typer.echo(f"{path}: written. Put in your addresses and prices, then run `gpu-chargeback check`.")
