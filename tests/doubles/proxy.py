"""Something real with some attributes replaced, for objects that take no new ones."""

from typing import Any


class Proxy:
    """Stands before ``real``; ``own`` attributes hide its."""

    def __init__(self, real: Any, **own: Any) -> None:
        object.__setattr__(self, "real", real)
        object.__setattr__(self, "_own", own)

    def __getattr__(self, name: str) -> Any:
        own = object.__getattribute__(self, "_own")
        return own[name] if name in own else getattr(self.real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.real, name, value)
