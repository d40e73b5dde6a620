"""What Triton's Python backend gives a model, without Triton."""

import json
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
WAIT = 60.0


class Tensor:
    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, value

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._value


class TritonError(Exception):
    INTERNAL, INVALID_ARG, NOT_FOUND, UNAVAILABLE, CANCELLED = range(5)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        super().__init__(message)
        self.message, self.code = message, code


class TritonModelException(Exception):  # noqa: N818  (Triton's name)
    pass


class InferenceResponse:
    def __init__(self, tensors: Any = (), error: TritonError | None = None) -> None:
        self.tensors, self.error = tensors, error

    @property
    def values(self) -> dict[str, Any]:
        found = {tensor.name(): tensor.as_numpy().item() for tensor in self.tensors}
        return {k: v.decode() if isinstance(v, bytes) else v for k, v in found.items()}


@dataclass
class Sender:
    """Collects responses. None stands for one that has only a flag."""

    cancelled: bool = False
    responses: list[InferenceResponse | None] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        assert not self.ended.is_set(), "a response after the final one"
        if response is not None or not flags:
            self.responses.append(response)
        if flags:
            self.ended.set()

    def is_cancelled(self) -> bool:
        assert not self.ended.is_set(), "Triton 24.10 dies of this question after a final response"
        return self.cancelled

    def wait(self) -> list[dict[str, Any]]:
        """Return all responses' tensors once the last has come; raise an error among them."""
        assert self.ended.wait(WAIT)
        for response in self.responses:
            assert response is not None
            if response.error is not None:
                raise response.error
        return [response.values for response in self.responses if response is not None]


class Request:
    def __init__(self, parameters: dict[str, Any] | None = None, **inputs: str) -> None:
        self._parameters, self.sender = parameters or {}, Sender()
        self._inputs = inputs

    def inputs(self) -> list[Tensor]:
        texts = {name: np.array([text.encode()], object) for name, text in self._inputs.items()}
        return [Tensor(name, value) for name, value in texts.items()]

    def parameters(self) -> str:
        return json.dumps(self._parameters)

    def get_response_sender(self) -> Sender:
        return self.sender
