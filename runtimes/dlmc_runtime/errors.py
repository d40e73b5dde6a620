"""Errors a user can cause or act on. Anything else that escapes is a defect of dlmc."""


class DlmcError(Exception):
    """What went wrong and where, in one sentence, and what to do about it.

    Args:
        message: what is wrong and where, without a final full stop.
        hint: what to do, as a clause without a final full stop; may be empty.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}: {self.hint}" if self.hint else self.message


class UsageError(DlmcError):
    """A command line, argument or request that cannot be meant."""

    exit_code = 2


class CheckpointError(DlmcError):
    """A checkpoint that is not what its family says it is."""


class BundleError(DlmcError):
    """A bundle or engine that must not be loaded."""


class EngineError(DlmcError):
    """An engine that cannot be built, loaded or run here."""


class RequestError(DlmcError):
    """A prompt or request that this engine cannot serve."""


class OverloadError(DlmcError):
    """A request that comes when a server has no room for it; it may be sent again.

    Attributes:
        retry_after: seconds after which that makes sense.
    """

    def __init__(self, message: str, hint: str = "", retry_after: float = 1.0) -> None:
        super().__init__(message, hint)
        self.retry_after = retry_after


class DeadlineError(DlmcError):
    """A request that was not done in the time it had."""


class ValidationError(DlmcError):
    """Two engines that disagree."""
