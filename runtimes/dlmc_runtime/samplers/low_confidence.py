"""LLaDA's low-confidence remasking, with Fast-dLLM's two rules for parallel decoding."""

from dlmc_runtime.samplers.ranked import Ranked


class LowConfidence(Ranked):
    """Commit the most confident masked positions of the block.

    Confidence is the probability of the token before temperature (ML-GSAI/LLaDA ``generate.py``,
    arXiv 2502.09992; the same in dllm's samplers, which take the ``linear`` schedule).
    """
