"""What the HTTP API's application answers, as responses of Triton."""

import json
from typing import Any

import numpy as np

from dlmc_runtime.package.exchange import EventReader

DONE = "[DONE]"

# Triton's errors by HTTP status; others are INVALID_ARG.
_CODES = {
    404: "NOT_FOUND",
    429: "UNAVAILABLE",
    499: "CANCELLED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "UNAVAILABLE",
}


class Answer:
    """Turns a response of the application into responses of Triton, the last of them final.

    Args:
        backend: Triton's module `triton_python_backend_utils`.
        sender: the response sender of a request.
    """

    def __init__(self, backend: Any, sender: Any) -> None:
        self._backend, self._sender = backend, sender
        self._status, self._events = 200, False
        self._whole = bytearray()
        self._reader = EventReader()
        self._ended = False

    @property
    def unwanted(self) -> bool:
        """Whether the client has gone before the answer's end. Triton tells nobody: one must ask.

        Asked after the final response, Triton 24.10 dies.
        """
        return not self._ended and bool(self._sender.is_cancelled())

    @property
    def ended(self) -> bool:
        """Whether the final response was sent."""
        return self._ended

    def begin(self, status: int, media_type: str) -> None:
        """Take the status and the kind of body."""
        self._status, self._events = status, media_type == "text/event-stream"

    def take(self, data: bytes) -> None:
        """Take bytes of the body; every event that they complete is sent."""
        if not self._events:
            self._whole += data
            return
        for event in self._reader.feed(data):
            self._send_event(event)

    def finish(self) -> None:
        """Send what is left when the application has said everything."""
        if self._whole and self._status < 400:
            self._send(self._whole.decode(), final=True)
        elif self._whole:
            self.fail(self._status, _message(json.loads(self._whole)))
        elif not self._ended:
            self._end()

    def fail(self, status: int, message: str) -> None:
        """Send an error, which ends the answer.

        Args:
            status: as HTTP has it.
            message: for the client.
        """
        code = getattr(self._backend.TritonError, _CODES.get(status, "INVALID_ARG"))
        error = self._backend.TritonError(message, code)
        self._end(self._backend.InferenceResponse(error=error))

    def _send_event(self, event: str) -> None:
        if event == DONE:
            self._send(event, final=True)
            return
        said = json.loads(event)
        if "error" in said:
            self.fail(500, _message(said))
        else:
            self._send(event, final=False)

    def _send(self, event: str, *, final: bool) -> None:
        text = "" if event == DONE else _text(json.loads(event))
        response = self._backend.InferenceResponse(
            [
                self._tensor("text_output", np.array([text.encode()], np.object_)),
                self._tensor("event", np.array([event.encode()], np.object_)),
                self._tensor("final", np.array([final])),
            ]
        )
        if final:
            self._end(response)
        elif not self._ended:
            self._sender.send(response)

    def _tensor(self, name: str, value: Any) -> Any:
        return self._backend.Tensor(name, value)

    def _end(self, response: Any = None) -> None:
        if self._ended:
            return
        self._ended = True
        flag = self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if response is None:
            self._sender.send(flags=flag)
        else:
            self._sender.send(response, flags=flag)


def _message(said: Any) -> str:
    return str(said["error"]["message"])


def _text(said: Any) -> str:
    """Return the text of the first choice: what was added in an event, all of it in a body."""
    choices = said.get("choices") or [{}]
    choice = choices[0]
    told = choice.get("delta") or choice.get("message") or {}
    return choice.get("text") or told.get("content") or ""
