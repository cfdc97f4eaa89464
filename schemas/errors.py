"""What can go wrong, one class per thing a caller can handle; the command line maps each to its exit code.

Messages speak to the user: what was expected, what was found, what to do, in names that they know.
"""


class ChargebackError(Exception):
    """Base of every error that is meant for a person. `exit_code` is what the command line ends with."""

    exit_code = 1


class ConfigError(ChargebackError):
    """The configuration is wrong. Carries every problem at once, each with its path in the file."""

    exit_code = 2

    def __init__(self, source: str, problems: list[str]) -> None:
        self.source = source
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{source}: {count}\n" + "\n".join(f"  {problem}" for problem in problems))


class UsageError(ChargebackError):
    """The call is wrong: an unknown cluster, a date in the future, a window that ends before it starts."""

    exit_code = 2


class SourceRefused(ChargebackError):
    """A source answered and refused: wrong credentials, no permission. Trying again will not help."""

    exit_code = 2


class SourceUnavailable(ChargebackError):
    """A source could not be reached, was too slow, or gave a partial answer. Try again: a run resumes."""

    exit_code = 3


class NothingToBill(ChargebackError):
    """A source answered with nothing at all. Names the selector that found nothing: never an empty success."""


class MissingPrice(ChargebackError):
    """A device model has no price in force. Names the model, the time and the row to add: never a price of 0."""


class NotCovered(ChargebackError):
    """The data show a case that this version does not bill (named): nothing is published rather than billed wrongly."""


class PartitionMissing(ChargebackError):
    """A partition that a step needs is not in the lake."""


class PartitionUnreadable(ChargebackError):
    """A Parquet object is truncated, or its columns are of an older schema. Names it and how to rebuild it."""


class LakeUnwritable(ChargebackError):
    """The lake's folder cannot be written: permissions, a full disk. Nothing half-written is left."""


class CheckFailed(ChargebackError):
    """A blocking check failed: nothing was published, what was published stays."""


class PublicationBusy(ChargebackError):
    """Another run is making the same partition."""

    exit_code = 3
