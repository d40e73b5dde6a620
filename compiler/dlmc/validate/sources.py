"""Where recorded forwards come from: a reference that runs, or files of one that has run."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlmc.validate.prompts import Wanted, ask
from dlmc.validate.recording import Recording, record
from dlmc.validate.reference import Reshaped, answering, open_reference
from dlmc.validate.replay import load_states, save_states
from dlmc.validate.torch_engine import TorchEngine
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines.base import Engine
from dlmc_runtime.errors import EngineError, UsageError
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Profile
from dlmc_runtime.row import Request
from dlmc_runtime.text import TextCodec

Profiles = tuple[Profile, ...]


@dataclass(frozen=True)
class Recorded:
    """What a reference did, and the requests that it did it for."""

    recording: Recording
    requests: tuple[Request, ...]
    prompts: tuple[str, ...]


class Live:
    """A reference that is loaded when it is first needed and generates once for every shape."""

    def __init__(self, bundle: Bundle, against: str, wanted: Wanted) -> None:
        self.name = against
        self._bundle, self._wanted = bundle, wanted
        self._text = load_text(bundle)
        self._engine: Engine | None = None
        self._recorded: dict[Profiles, Recorded] = {}

    @property
    def torch(self) -> TorchEngine | None:
        """The torch reference, where that is what is loaded."""
        return self._engine if isinstance(self._engine, TorchEngine) else None

    def recorded(self, profiles: Profiles) -> Recorded:
        """Generate in these shapes; the second time the same is returned.

        Raises:
            RequestError: a prompt fits no profile.
            EngineError: the reference does not load or fails.
        """
        if profiles not in self._recorded:
            if self._engine is None:
                self._engine = open_reference(self._bundle, self.name, profiles)
            engine = Reshaped(self._engine, self.name, profiles)
            asked = ask(Generator(engine, self._text), self._wanted)
            requests = tuple(one.request for one in asked)
            recording = record(engine, requests, self._wanted.forwards)
            shown = tuple(one.shown for one in asked)
            self._recorded[profiles] = Recorded(recording, requests, shown)
        return self._recorded[profiles]

    def save(self, profiles: Profiles, folder: Path) -> None:
        """Write what was recorded, see `replay.save_states`.

        Raises:
            UsageError: the reference is an engine, which does not answer all that is saved.
            EngineError: the folder cannot be written.
        """
        recorded = self.recorded(profiles)
        if self._engine is None:
            raise RuntimeError("the reference was closed")
        with answering(self._bundle, self.name, self._engine) as run:
            try:
                save_states(recorded.recording, self._bundle, self.name, run, folder)
            except OSError as error:
                raise EngineError(
                    f"{folder} cannot be written ({error.strerror})", "make room"
                ) from error

    def close(self) -> None:
        """Release the reference; what it recorded stays."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None


class Saved:
    """A reference that has run before."""

    torch: TorchEngine | None = None

    def __init__(self, bundle: Bundle, outputs: Path) -> None:
        runner, self._recording = load_states(bundle, outputs)
        self.name = f"{runner} ({outputs.name})"
        self._bundle, self._text, self._path = bundle, load_text(bundle), outputs

    def recorded(self, profiles: Profiles) -> Recorded:
        """Return what was saved.

        Raises:
            UsageError: it was recorded in other shapes.
        """
        used = {state.inputs.profile for state in self._recording.states}
        missing = [str(profile) for profile in used if profile not in profiles]
        if missing:
            raise UsageError(
                f"{self._path} was recorded with the profile {missing[0]}, which the engine lacks",
                "record again with an engine of the same profiles",
            )
        requests = tuple(self._requests())
        shown = [
            f"ids {list(one.prompt)}" if self._text is None else self._text.decode(one.prompt)
            for one in requests
        ]
        return Recorded(self._recording, requests, tuple(shown))

    def _requests(self) -> Iterator[Request]:
        recording = self._recording
        for prompt, answer in enumerate(recording.answers):
            states = [state for state in recording.states if state.prompt == prompt]
            sampler = next((one.choice.sampler for one in states if one.choice is not None), None)
            if sampler is None or len(states[0].canvas) < recording.starts[prompt] + 1:
                raise UsageError(f"{self._path} and the files beside it do not fit", "record again")
            ids = tuple(states[0].canvas[: recording.starts[prompt]].tolist())
            yield Request(ids, len(answer), sampler)

    def save(self, profiles: Profiles, folder: Path) -> None:
        """Refuse: what was saved is there already."""
        del profiles, folder
        raise UsageError(f"{self._path} holds saved states already", "leave --save-states out")

    def close(self) -> None:
        """Do nothing."""


def load_text(bundle: Bundle) -> TextCodec | None:
    """Return the bundle's tokenizer, None where it has none."""
    spec = bundle.manifest.text
    return None if spec is None else TextCodec.load(bundle.root, spec)
