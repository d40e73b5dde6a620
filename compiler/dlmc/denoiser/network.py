"""From a configuration to the network it describes."""

from dlmc.denoiser.config import DenoiserConfig
from dlmc.denoiser.denoiser import Denoiser
from dlmc.denoiser.gemma import GemmaDenoiser

Network = Denoiser | GemmaDenoiser


def network(config: DenoiserConfig) -> Network:
    """Build the denoiser of ``config``, on the default device."""
    if config.gemma is not None:
        return GemmaDenoiser(config, config.gemma)
    return Denoiser(config)
