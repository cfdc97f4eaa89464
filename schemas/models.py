"""One key for every spelling of a GPU model."""

import re


def normalize_model(name: str) -> str:
    """`NVIDIA H100 80GB HBM3` and `NVIDIA-H100-80GB-HBM3-SHARED` -> `nvidia-h100-80gb-hbm3`.

    Spaces and underscores are hyphens, case is folded, the suffixes -SHARED and -MIG-<profile> go.
    The column expression of the same rule is `pipelines.transform.model_names.model_key`.
    """
    key = re.sub(r"[ _]+", "-", name.strip().lower())
    return re.sub(r"-shared$", "", re.sub(r"-mig-.*$", "", key))
