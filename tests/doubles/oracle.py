"""What a request must give, without caches, profiles, rows or masks of the runtime.

Every forward runs over all there is so far; attention is a rule between two positions.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from dlmc_runtime import samplers
from dlmc_runtime.samplers.base import BlockState, Candidates, EditIds, Prediction


class Run:
    """One request: the canvas and where its random numbers come from."""

    def __init__(self, engine: Any, request: Any) -> None:
        self.engine, self.request = engine, request
        manifest = self.engine.manifest
        self.attention, self.shift = manifest.attention, manifest.shift
        self.mask = manifest.tokens.mask
        self.config = self.request.sampler
        self.sampler = samplers.build(self.config)
        self.rng = np.random.default_rng(self.request.seed)
        self.prompt = len(self.request.prompt)
        self.wanted = self.prompt + self.request.max_new_tokens
        self.block = self.config.block_length or self.attention.block_length
        full = self.attention.regime == "full"
        self.by_answer = full or self.attention.aligned_to == "answer"
        first = self.prompt % self.block if self.by_answer else 0
        self.edges = [0, *range(first or self.block, self.wanted + self.block, self.block)]
        self.edges = [edge for edge in self.edges if edge - self.block < self.wanted]
        if full or self.attention.last_block == "cut":
            self.edges[-1] = min(self.edges[-1], self.wanted)
        self.canvas = np.array(
            [*self.request.prompt, *[self.mask] * (self.edges[-1] - self.prompt)]
        )
        self.open = np.arange(self.edges[-1]) >= self.prompt
        self.editing = False
        tokens = manifest.tokens
        self.edits = (
            None if tokens.split is None else EditIds(tokens.mask, tokens.delete, tokens.split)
        )

    def number(self, position: Any) -> Any:
        """Return the number of the block of a position."""
        return sum(edge <= position for edge in self.edges)

    def answer(self) -> Any:
        """Return the tokens."""
        starts = self.edges[:-1]
        if self.attention.regime == "full" or self.attention.aligned_to == "answer":
            starts = [edge for edge in starts if edge >= self.prompt]
        else:
            starts = [
                edge for edge, end in zip(starts, self.edges[1:], strict=True) if end > self.prompt
            ]
        for start in starts:
            self.seed(start)
            self.fill_block(start, self.edges[self.edges.index(start) + 1])
        return tuple(self.canvas[self.prompt : self.wanted].tolist())

    def seed(self, start: Any) -> None:
        """Put the first token of a block, where the model gives it."""
        if not self.attention.seeded or start < 1 or not self.open[start]:
            return
        context = self.attention.regime == "context"
        rule = (lambda q, k: k <= q) if context else self.blocks_rule()
        drawn = self.rng.random(1) if context and self.config.temperature else np.zeros(1)
        out = self.forward(self.canvas[:start], rule, [start - 1], drawn)
        token = chosen(out, self.config, drawn, type(self.sampler)).tokens[0]
        if not context:
            token = out["top_ids"][0, 0, 0]
        self.canvas[start], self.open[start] = token, False

    def lead(self, start: Any) -> Any:
        """Return what is said about a block's first position when the one before it is stored.

        Its token is drawn then, once for the whole block.
        """
        if not self.shift or self.attention.regime != "block" or self.attention.seeded or not start:
            return None
        drawn = self.rng.random(1) if self.config.temperature else np.zeros(1)
        return self.forward(self.canvas[:start], self.blocks_rule(), [start - 1], drawn)

    def blocks_rule(self) -> Any:
        """Return the rule of models that see their own block and those before."""
        numbers = [self.number(position) for position in range(self.edges[-1])]
        return lambda q, k: numbers[k] <= numbers[q]

    def begin(self, begin: Any, stop: Any) -> Any:
        """Return where a block stands at its first step."""
        self.sampler.begin()
        self.editing = self.sampler.rewrites and bool(self.open[begin:stop].any())
        return self.state(begin, stop, 0, None)

    def fill_block(self, start: Any, end: Any) -> None:
        """Denoise a block, sub-block by sub-block."""
        size = self.config.sub_block_length or self.block
        rule = {
            "full": lambda q, k: True,
            "block": self.blocks_rule(),
            "context": lambda q, k: q >= start or k <= q,
        }[self.attention.regime]
        lead = self.lead(start)
        for begin in range(start, end, size):
            stop, step = min(begin + size, end), 0
            state = self.begin(begin, stop)
            while self.editing or self.open[begin:stop].any():
                state = self.state(begin, stop, step, state)
                if self.sampler.idle(state):
                    step += 1
                    continue
                seen = self.edges[-1] if self.attention.regime == "full" else end
                rows = [max(p - self.shift, 0) for p in range(begin, stop)]
                drawn = (
                    self.rng.random(stop - begin)
                    if self.config.temperature
                    else np.zeros(stop - begin)
                )
                out = self.forward(self.canvas[:seen], rule, rows, drawn)
                if lead and begin == start:
                    out = {
                        k: np.concatenate((lead[k][:1], v[:1, 1:]), 1)
                        if v.shape[1:2] == drawn.shape
                        else v
                        for k, v in out.items()
                        if not k.startswith("present")
                    }
                self.decide(chosen(out, self.config, drawn, type(self.sampler)), begin, stop, state)
                step += 1

    def state(self, begin: Any, stop: Any, step: Any, before: Any) -> Any:
        masks = int(self.open[begin:stop].sum()) if before is None else before.masks
        given = np.arange(begin, stop) < self.prompt if before is None else before.given
        if before is None:
            given = ~self.open[begin:stop] & True
        return BlockState(
            self.open[begin:stop].copy(),
            step,
            masks,
            self.canvas[begin:stop].copy(),
            given,
            self.edits,
        )

    def decide(
        self, prediction: Any, begin: Any, stop: Any, state: Any, only_first: Any = False
    ) -> None:
        """Let the sampler fix positions, and reopen some."""
        if "noise" in type(self.sampler).asks_for(self.config):
            prediction = replace(prediction, noise=self.rng.random(stop - begin))
        if only_first:
            picked, again = np.arange(stop - begin) == 0, np.zeros(stop - begin, bool)
        elif self.sampler.rewrites:
            after = self.sampler.rewrite(prediction, state)
            self.canvas[begin:stop], self.open[begin:stop] = after.tokens, after.masked
            self.editing = not after.final
            return
        else:
            prediction = self.sampler.adjust(prediction, state)
            picked = self.sampler.select(prediction, state)
            again = self.sampler.reopen(prediction, state, picked)
            steps = self.config.steps
            if steps and self.sampler.limited and state.step + 1 >= steps:
                picked, again = picked | state.masked, again & False
        where = begin + np.flatnonzero(picked)
        self.canvas[where] = prediction.tokens[picked]
        self.open[where] = False
        back = begin + np.flatnonzero(again)
        self.canvas[back] = self.mask
        self.open[back] = True

    def unguided(self, ids: Any) -> Any:
        """Return ids without the prompt."""
        kept = np.isin(ids, self.config.guidance_keep)
        return np.where((np.arange(len(ids)) < self.prompt) & ~kept, self.mask, ids)

    def forward(
        self, ids: Any, rule: Any, rows: Any, drawn: Any, past: Any = (), positions: Any = None
    ) -> Any:
        """Run the model over ``ids``; ``past`` lists what its cache holds, by layer and part."""
        length, manifest = len(ids), self.engine.manifest
        positions = np.arange(length) if positions is None else positions
        mask = np.array([[rule(q, k) for k in range(length)] for q in range(length)])
        both = [ids, self.unguided(ids)] if self.config.guidance else [ids]
        count, model = len(both), manifest.model
        empty = np.zeros((count, model.num_key_value_heads, 0, model.head_dim), np.float32)
        names = [
            f"past_key_values.{layer}.{part}"
            for layer in range(model.num_hidden_layers)
            for part in ("key", "value")
        ]
        held = past or [empty] * len(names)
        context = np.ones((length, held[0].shape[2]), bool)
        feeds = {
            "input_ids": np.array(both),
            "position_ids": np.tile(positions, (count, 1)),
            "attention_mask": np.tile(np.concatenate((context, mask), 1), (count, 1, 1, 1)),
            **dict(zip(names, held, strict=True)),
            "head_rows": np.tile(rows, (count, 1)),
            "temperature": np.full(count, self.config.temperature, np.float32),
            "uniform": np.tile(np.asarray(drawn, np.float32), (count, 1)),
        }
        if manifest.head.variant == "guided":
            feeds["guidance"] = np.array([self.config.guidance, 0.0], np.float32)[:count]
            feeds["partner"] = np.array([count - 1] * count)
        return self.engine.run(feeds)


class CachedRun(Run):
    """Fast-dLLM's approximate caches, with keys and values cut out of a whole forward."""

    def fill_block(self, start: Any, end: Any) -> None:
        everything, length = (lambda q, k: True), self.edges[-1]
        step, state, kept = 0, self.begin(start, end), None
        while self.editing or self.open[start:end].any():
            state = self.state(start, end, step, state)
            idle = self.sampler.idle(state)
            if idle and not (kept is None and self.shift):
                step += 1
                continue
            count = end - start
            drawn = self.rng.random(count) if self.config.temperature else np.zeros(count)
            if kept is None:
                rows = [max(p - self.shift, 0) for p in range(start, end)]
                out = self.forward(self.canvas, everything, rows, drawn)
                whole = [value for name, value in out.items() if name.startswith("present")]
                behind = range(end, length) if self.config.cache == "dual" else []
                kept = [value[:, :, [*range(start), *behind]] for value in whole]
                only_first = bool(self.shift)
            else:
                stop = end if self.config.cache == "dual" else length
                rows = [max(p - self.shift, start) - start for p in range(start, end)]
                positions = np.arange(start, stop)
                ids = self.canvas[start:stop]
                out = self.partial(ids, rows, drawn, kept, positions)
                only_first = False
            prediction = chosen(out, self.config, drawn, type(self.sampler))
            self.decide(prediction, start, end, state, only_first=only_first)
            step += 1

    def partial(self, ids: Any, rows: Any, drawn: Any, kept: Any, positions: Any) -> Any:
        start = int(positions[0])
        whole_prompt = self.prompt
        self.prompt = max(whole_prompt - start, 0)
        out = self.forward(ids, lambda q, k: True, rows, drawn, kept, positions)
        self.prompt = whole_prompt
        return out


def answer(engine: Any, request: Any) -> Any:
    """Return the tokens of a request."""
    cached = request.sampler.cache in ("prefix", "dual")
    return (CachedRun if cached else Run)(engine, request).answer()


def greedy(engine: Any, request: Any) -> Any:
    """Return the tokens that the causal pass says one after the other."""
    run = Run(engine, request)
    for position in range(run.prompt, run.wanted):
        drawn = run.rng.random(1) if run.config.temperature else np.zeros(1)
        ids = run.canvas[:position]
        out = run.forward(ids, lambda q, k: k <= q, [position - 1], drawn)
        run.canvas[position] = chosen(out, run.config, drawn, type(run.sampler)).tokens[0]
    return tuple(run.canvas[run.prompt : run.wanted].tolist())


def chosen(out: Any, config: Any, uniform: Any, sampler: Any) -> Any:
    """Return what a head's answer predicts, in float64, row by row."""
    tokens, confidence, margins, entropies = [], [], [], []
    tempered = sampler.tempered and config.temperature > 0
    for row, number in enumerate(uniform):
        logits = out["top_logits"][0, row].astype(np.float64)
        scale = config.temperature or 1.0
        if config.top_k or config.top_p < 1:
            share = _filtered(logits / scale, out, row, config, sampler)
            pick = 0
            while (
                config.temperature and share[: pick + 1].sum() <= number and pick + 1 < len(share)
            ):
                pick += 1
            tokens.append(int(out["top_ids"][0, row, pick]))
            plain = np.exp(logits[pick] - out["logsumexp"][0, row])
            confidence.append(share[pick] if sampler.tempered else plain)
            margins.append(share[0] - (share[1] if len(share) > 1 else 0.0))
            entropies.append(-(share * np.log(share + 1e-10)).sum())
            continue
        tokens.append(int(out["sampled_id"][0, row]))
        logit = float(out["sampled_logit"][0, row])
        name = "tempered_logsumexp" if tempered else "logsumexp"
        divisor = scale if tempered else 1.0
        confidence.append(np.exp(logit / divisor - out[name][0, row]))
        two = np.exp(logits[:2] / divisor - out[name][0, row])
        margins.append(two[0] - two[1])
        entropies.append(out["tempered_entropy" if tempered else "entropy"][0, row])
    needs = sampler.asks_for(config)
    found = Candidates(
        out["top_ids"][0],
        out["top_logits"][0].astype(np.float64),
        out["logsumexp"][0].astype(np.float64),
    )
    return Prediction(
        np.array(tokens),
        np.array(confidence),
        margin=np.array(margins) if "margin" in needs else None,
        entropy=np.array(entropies, np.float64) if "entropy" in needs else None,
        candidates=found if "candidates" in needs else None,
    )


def _filtered(scaled: Any, out: Any, row: Any, config: Any, sampler: Any) -> Any:
    """Return the shares of the candidates that top-k and top-p leave."""
    base = out["tempered_logsumexp" if config.temperature else "logsumexp"][0, row]
    weights = np.exp(scaled - base)
    if config.top_k and not sampler.nucleus_first:
        weights = weights[: config.top_k] / weights[: config.top_k].sum()
    kept, total = [], 0.0
    for weight in weights:
        if total < config.top_p:
            kept.append(weight)
        total += weight
    kept = kept[: config.top_k or len(kept)]
    return np.array(kept) / sum(kept)
