"""How probable a decided token was, from what the head tells about its position."""

import numpy as np

from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.events import UNLIKELY, TokenLogprob


def told(said: Outputs, offset: int, token: int, forward: int, count: int) -> TokenLogprob:
    """Return the log-probability of a token, and ``count`` alternatives.

    Args:
        said: about the positions that a forward read, [n] and [n,K].
        offset: of the position among them.
        token: what it holds now.
        forward: number of the forward.
        count: of the best tokens to report, at most K.
    """
    ids = said.top_ids[offset]
    logprobs = said.top_logits[offset].astype(np.float64) - float(said.logsumexp[offset])
    known = dict(zip(ids.tolist(), logprobs.tolist(), strict=True))
    drawn = float(said.sampled_logit[offset]) - float(said.logsumexp[offset])
    known.setdefault(int(said.sampled_id[offset]), drawn)
    top = tuple(zip(ids[:count].tolist(), logprobs[:count].tolist(), strict=True))
    # Rounding of float32 may leave a certain token a little more than certain.
    return TokenLogprob(token, min(known.get(token, UNLIKELY), 0.0), forward, top)
