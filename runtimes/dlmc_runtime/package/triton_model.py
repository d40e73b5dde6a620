"""The model that Triton's Python backend runs: the HTTP API behind a decoupled model.

Every request becomes a request to the application of `dlmc serve` in this process, which checks
it, and every server-sent event of the answer a response. All requests of an instance share one
scheduler, and so forwards; a cancelled one leaves before the next forward.
"""

import asyncio
import json
import logging
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from dlmc_runtime.errors import DlmcError, UsageError
from dlmc_runtime.package import loading
from dlmc_runtime.package.exchange import Exchange
from dlmc_runtime.package.hosted import Hosted
from dlmc_runtime.package.record import BUNDLE
from dlmc_runtime.package.triton_answer import Answer
from dlmc_runtime.package.triton_call import read_call
from dlmc_runtime.scheduler import Limits
from dlmc_runtime.serve.settings import Settings

_LOG = logging.getLogger(__name__)

INPUTS = ("request", "text_input", "endpoint")
OUTPUTS = ("text_output", "event", "final")

_CANCELLED_EVERY = 0.1  # seconds between questions whether the client has gone
_MOST_WAITING = 4096


class TritonPythonModel:
    """What Triton calls by this name in a model's ``model.py``."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle beside ``model.py`` and start serving it.

        Args:
            args: ``model_repository``, ``model_version``, ``model_name``, ``model_config`` (JSON)
                and what the instance runs on, as Triton gives them.

        Raises:
            TritonModelException: the bundle cannot be served here; the sentence says why.
        """
        self._backend: Any = import_module("triton_python_backend_utils")
        self._model = args["model_name"]
        _choose_gpu(args)
        root = Path(args["model_repository"]) / args["model_version"] / BUNDLE
        try:
            options = read_options(json.loads(args["model_config"]).get("parameters", {}))
            target, limits, settings = options
            app = loading.load_app(root, self._model, target, limits, settings)
            self._hosted = Hosted(app)
        except DlmcError as error:
            raise self._backend.TritonModelException(str(error)) from error

    def execute(self, requests: Sequence[Any]) -> None:
        """Take requests; their answers are sent from another thread."""
        for request in requests:
            self._hosted.run(self._answer(request, request.get_response_sender()))

    def finalize(self) -> None:
        """Stop serving. Triton has waited for the answers already."""
        self._hosted.close()
        loading.close(self._hosted.app)

    async def _answer(self, request: Any, sender: Any) -> None:
        answer = Answer(self._backend, sender)
        try:
            call = read_call(_inputs(request), json.loads(request.parameters()), self._model)
            exchange = Exchange(self._hosted.app, call.path, call.body, answer)
            watch = asyncio.create_task(_watch(answer, exchange))
            try:
                await exchange.run()
            finally:
                watch.cancel()
            answer.finish()
        except DlmcError as error:
            answer.fail(400, str(error))
        except asyncio.CancelledError:  # the model stops, and waits no longer
            answer.fail(503, "the server was shut down: ask another one")
            raise
        except Exception:  # noqa: BLE001  (whatever it is, the client is told and Triton goes on)
            _LOG.exception("a request to %s failed", self._model)
            answer.fail(500, "the model made a mistake: the server's log says which")


async def _watch(answer: Answer, exchange: Exchange) -> None:
    """Hang up when the client has gone."""
    while not answer.ended:
        if answer.unwanted:
            exchange.hang_up()
            return
        await asyncio.sleep(_CANCELLED_EVERY)


def _inputs(request: Any) -> dict[str, bytes]:
    """Return the inputs that a request has; each is one string."""
    return {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in request.inputs()}


def _choose_gpu(args: Mapping[str, str]) -> None:
    """Let this process see only the GPU that Triton chose, before a library looks for them."""
    if args.get("model_instance_kind") != "GPU":
        return
    device, visible = args["model_instance_device_id"], os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else []
    os.environ["CUDA_VISIBLE_DEVICES"] = names[int(device)] if int(device) < len(names) else device


def read_options(parameters: Mapping[str, Any]) -> tuple[str, Limits, Settings]:
    """Read the parameters of a ``config.pbtxt``: the target, and what a scheduler may take on.

    Raises:
        UsageError: one is missing or has an illegal value.
    """
    given = {name: str(value.get("string_value", "")) for name, value in parameters.items()}
    if "target" not in given:
        raise UsageError("config.pbtxt names no target", "make the package again")
    waiting = _number(given, "max_queue", Limits.queue)
    seconds = _number(given, "request_seconds", int(Settings.request_seconds))
    settings = Settings(max_concurrent=_MOST_WAITING, request_seconds=float(seconds))
    return given["target"], Limits(queue=waiting), settings


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, str(default))
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1_000_000):
        raise UsageError(f"{name} in config.pbtxt is {text[:40]!r}", "give a whole number above 0")
    return int(text)
