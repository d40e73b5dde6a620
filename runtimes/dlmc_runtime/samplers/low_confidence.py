"""LLaDA's low-confidence remasking, with Fast-dLLM's two rules for parallel decoding."""

import numpy as np

from dlmc_runtime.samplers.base import BlockState, Bools, Floats, Prediction, Sampler, best, quota


class LowConfidence(Sampler):
    """Commit the most confident masked positions of the block.

    Without further parameters as many as LLaDA's schedule says (ML-GSAI/LLaDA ``generate.py``,
    arXiv 2502.09992). With ``threshold`` all that are at least that sure; with ``factor`` the
    longest prefix in rank r whose confidence is at least 1 - factor / (r + 1); both always the
    best one (Fast-dLLM, arXiv 2505.22618).
    """

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        scores = self.scores(prediction)
        if self.config.threshold is not None:
            sure = block.masked & (scores >= self.config.threshold)
            return sure | best(scores, block.masked, 1)
        if self.config.factor is not None:
            return best(scores, block.masked, self._parallel(scores[block.masked]))
        steps = self.config.steps or len(scores)
        return best(scores, block.masked, quota(block.masks, steps, block.step))

    def scores(self, prediction: Prediction) -> Floats:
        """Return what positions are ranked by: confidence, negative for deferred tokens."""
        if not self.config.defer_ids:
            return prediction.confidence
        deferred = np.isin(prediction.tokens, self.config.defer_ids)
        return np.where(deferred, prediction.confidence - 2.0, prediction.confidence)

    def _parallel(self, confidence: Floats) -> int:
        """Return how many of the best candidates pass Fast-dLLM's factor bound."""
        ranked = np.sort(confidence)[::-1]
        bound = 1.0 - (self.config.factor or 0.0) / (np.arange(len(ranked)) + 2.0)
        bound[0] = -np.inf
        passed = ranked >= bound
        return len(passed) if passed.all() else int(np.argmin(passed))
