"""One key for every spelling of a device model, as an expression; `schemas.models` has its scalar twin."""

import polars as pl


def model_key(model: pl.Expr) -> pl.Expr:
    """`NVIDIA H100 80GB HBM3` and `NVIDIA-H100-80GB-HBM3-SHARED` -> `nvidia-h100-80gb-hbm3` (ACCOUNTING 3)."""
    return (
        model.str.strip_chars()
        .str.to_lowercase()
        .str.replace_all(r"[ _]+", "-")
        .str.replace(r"-mig-.*$", "")
        .str.replace(r"-shared$", "")
    )
