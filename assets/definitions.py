"""What workspace.yaml loads: the definitions of this machine's configuration."""

import os
from pathlib import Path

from assets.assembly import build_definitions
from assets.runs import SAMPLE_CONFIG
from schemas.config_file import load_config


def config_path() -> Path:
    """The user's configuration; without one, the embedded cluster's, so that the graph can be looked at."""
    if "GPU_CHARGEBACK_CONFIG" in os.environ:
        return Path(os.environ["GPU_CHARGEBACK_CONFIG"])
    path = Path("chargeback.yaml")
    return path if path.exists() else SAMPLE_CONFIG


defs = build_definitions(load_config(config_path()))
