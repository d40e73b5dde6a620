"""The reference engine: the module that `export` traces, run by torch on the bundle's weights."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dlmc.denoiser.head import DenoiserWithHead
from dlmc.export.graph_io import arguments
from dlmc_runtime.cache import Cache, HostCache
from dlmc_runtime.engines.base import Inputs, Outputs, Store, head_outputs, input_shapes
from dlmc_runtime.manifest import Manifest, Profile


class TorchEngine:
    """A `dlmc_runtime.engines.base.Engine` that runs in float32 on the CPU."""

    def __init__(
        self, module: DenoiserWithHead, manifest: Manifest, profiles: tuple[Profile, ...]
    ) -> None:
        self.module = module.eval()
        self.manifest, self.profiles = manifest, profiles

    def cache(self, batch: int, size: int) -> HostCache:
        """Allocate an empty cache for ``batch`` rows of ``size`` positions."""
        return HostCache(self.manifest.model, batch, size)

    def inputs(self, profile: Profile) -> Inputs:
        """Allocate the input buffers of a profile."""
        return Inputs(profile, input_shapes(self.manifest, profile))

    def forward(self, inputs: Inputs, cache: Cache, stores: Sequence[Store]) -> Outputs:
        """Run the denoiser once, then write what ``stores`` names to the cache."""
        if not isinstance(cache, HostCache):
            raise TypeError("the cache belongs to another engine")
        answers = self.run({**inputs.arrays(), **cache.front(inputs.profile.batch)})
        present = [v for k, v in answers.items() if "present" in k]
        for store in stores:
            cache.write(store.row, store.count, present, store.at)
        return Outputs(*(answers[name] for name in head_outputs(self.manifest)))

    @torch.inference_mode()
    def run(self, feeds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return all outputs of the graph, by name, for its inputs, by name."""
        tensors = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in feeds.items()}
        head, present = self.module(**arguments(tensors))
        answers = {k: v.numpy() for k, v in head._asdict().items() if v is not None}
        for layer, pair in enumerate(present):
            for part, tensor in zip(("key", "value"), pair, strict=True):
                answers[f"present.{layer}.{part}"] = tensor.numpy()
        return answers

    def points(self) -> set[str]:
        """Return the names that `inner` knows: modules with weights that are called."""
        return {
            name
            for name, module in self.module.denoiser.named_modules()
            if name != "lm_head" and any(True for _ in module.parameters())
        }

    def inner(
        self, feeds: dict[str, NDArray[Any]], modules: Sequence[str]
    ) -> dict[str, NDArray[np.float32]]:
        """Return what modules of the denoiser answer on the way, by name; see `points`."""
        found: dict[str, NDArray[np.float32]] = {}

        def keep(name: str) -> Callable[[torch.nn.Module, object, Any], None]:
            def hook(module: torch.nn.Module, arguments: object, answer: Any) -> None:
                del module, arguments
                # A layer also answers its keys and values, which are not on the way.
                found[name] = (answer[0] if isinstance(answer, tuple) else answer).numpy()

            return hook

        known = dict(self.module.denoiser.named_modules())
        hooks = [known[name].register_forward_hook(keep(name)) for name in modules if name in known]
        try:
            self.run(feeds)
        finally:
            for handle in hooks:
                handle.remove()
        return found

    def close(self) -> None:
        """Do nothing: torch's memory goes with the object."""
