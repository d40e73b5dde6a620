"""From the reference functions' arguments to requests."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cases import Case, family

from dlmc_runtime.samplers import build
from dlmc_runtime.samplers.config import SamplerConfig


@dataclass(frozen=True)
class Plan:
    """How to reproduce a case.

    Attributes:
        sampler: of every row.
        max_new_tokens: of every row.
        stop_ids: what ends a row.
        early_exit: whether the reference stops inside a block.
        keep_cache: whether it commits the last block as well.
        suppress: ids the export must suppress.
        block: block length the export must be told.
        shift: shift the export must be told.
        guided: whether the export needs a guided head.
        adapter: folder of the adapter to export.
        infill: whether the prompts are templates.
        more: forwards of the reference that dlmc has no use for.
        less: how many forwards of the reference one of dlmc's stands for.
        cacheless: whether the reference keeps no cache, and so has forwards that denoise only.
        view: how the pack shows a row's canvas, see `views`.
    """

    sampler: SamplerConfig
    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()
    early_exit: bool = False
    keep_cache: bool = False
    suppress: tuple[int, ...] = ()
    block: int | None = None
    shift: int | None = None
    guided: bool = False
    adapter: str | None = None
    infill: bool = False
    more: int = 0
    less: int = 1
    cacheless: bool = False
    view: str = "whole"

    @property
    def scheduled(self) -> bool:
        """Whether a schedule sets the pace, the same for all rows, and not confidence.

        Rows of templates skip blocks that have no mask.
        """
        sampler = self.sampler
        free = sampler.threshold, sampler.factor
        paced = free == (None, None) and sampler.name != "low_confidence_dynamic"
        return paced and not self.stop_ids and not self.infill


_EVERYTHING = math.nextafter(1.0, 0.0)
"""A ``top_p`` that lets all through.

A case that changes the temperature draws at 0 uniform numbers: the first candidate. Candidates are
in the order of their logits only where some filter is on.
"""


def _llada(case: Case) -> Plan:
    """ML-GSAI/LLaDA and Fast-dLLM `generate`: steps are counted over all blocks."""
    p = dict(case.parameters)
    length, block = p.pop("gen_length"), p.pop("block_length")
    steps = p.pop("steps") * block // length
    threshold, factor = p.pop("threshold", None), p.pop("factor", None)
    ends = [p.pop("eos_token_id", None), p.pop("eot_token_id", None)]
    defer = p.pop("confidence_eos_eot_inf", False)
    suppress = p.pop("logits_eos_inf", False)
    guidance = p.pop("cfg_scale", None) or 0.0
    kinds = {span[0] for span in case.data.get("forward_spans", [])} - {"full"}
    cache = {"suffix": "prefix", "prefix": "prefix", "block": "dual", "dual": "dual"}
    sampler = SamplerConfig(
        name=p.pop("remasking", "low_confidence"),
        steps=None if threshold or factor else steps,
        threshold=threshold,
        factor=factor,
        temperature=p.pop("temperature", None) or 0.0,
        block_length=block,
        cache=cache[kinds.pop()] if kinds else _named_cache(case),
        defer_ids=tuple(end for end in ends if end is not None) if defer else (),
        guidance=guidance,
    )
    _nothing_left(case, p, {"mask_id"})
    suppressed = tuple(end for end in ends[:1] if end is not None) if suppress else ()
    return Plan(sampler, length, suppress=suppressed, guided=guidance > 0)


def _named_cache(case: Case) -> str | None:
    """Return the cache that the algorithm's description names."""
    return next((c for c in ("prefix", "dual") if f"{c} cache" in case.algorithm), None)


def _dream(case: Case) -> Plan:
    """Dream `diffusion_generate`, and Fast-dLLM's copies of it."""
    p = dict(case.parameters)
    length, steps, name = p.pop("max_new_tokens"), p.pop("steps"), p.pop("alg")
    block, dual = p.pop("block_length", None), p.pop("dual_cache", False)
    threshold, eps, alg_temp = (p.pop(key, None) for key in ("threshold", "eps", "alg_temp"))
    if block is not None:
        steps = steps * block // length
    if name == "confidence_threshold":  # alone in heeding a threshold, and heeds no schedule
        eps = alg_temp = None
        if block is not None:
            name, steps = "maskgit_plus", None
    else:
        threshold = None
    sampler = SamplerConfig(
        name=name,
        steps=steps,
        threshold=threshold,
        eps=eps or 1e-3,
        alg_temp=alg_temp,
        temperature=p.pop("temperature", None) or 0.0,
        top_k=p.pop("top_k", None) or 0,
        top_p=p.pop("top_p", None) or 1.0,
        block_length=block,
        cache=None if block is None else "dual" if dual else "prefix",
    )
    _nothing_left(case, p, {"mask_token_id", "output_history", "return_dict_in_generate"})
    return Plan(sampler, length)


def _sdar(case: Case) -> Plan:
    """JetAstra/SDAR `block_diffusion_generate`: its temperature is 1 where none is given.

    The packs replace the draw by the most probable token, which is temperature 0 here.
    """
    p = dict(case.parameters)
    everything = _EVERYTHING if p.get("temperature") else 1.0
    name = p.pop("remasking_strategy", "low_confidence_dynamic")
    threshold = p.pop("confidence_threshold", None)
    sampler = SamplerConfig(
        name=name,
        steps=p.pop("denoising_steps", 8),
        threshold=threshold if name == "low_confidence_dynamic" else None,
        temperature=p.pop("temperature", None) or 0.0,
        top_k=p.pop("top_k", None) or 0,
        top_p=min(p.pop("top_p", None) or 1.0, everything),
    )
    length, stop = p.pop("gen_length"), p.pop("stopping_criteria_idx", None) or ()
    block = p.pop("block_length", None)
    _nothing_left(case, p, {"mask_id"})
    return Plan(sampler, length, frozenset(stop), keep_cache=True, block=block)


def _dllm(case: Case) -> Plan:
    """The samplers of dllm: `MDLMSampler` and `BD3LMSampler`."""
    p = dict(case.parameters)
    infill = case.algorithm.endswith("infill")
    blocks = case.algorithm.startswith("dllm_bd3lm")
    longest = max(len(row) for row in case.data["prompts"])
    answer = p.pop("max_new_tokens", 128)
    length = longest if infill else answer
    block = p.pop("block_size", 32 if blocks else 128) or length
    count = -(-length // block)
    steps = p.pop("steps", 128)
    begin = tuple(p.pop("begin_suppress_tokens", ()) or ())
    kept = tuple(p.pop("cfg_keep_tokens", ()) or ())
    guidance = p.pop("cfg_scale", None) or 0.0
    sampler = SamplerConfig(
        name="low_confidence",
        steps=p.pop("steps_per_block", None) or -(-steps // count),
        schedule="cosine" if "Cosine" in case.data["scheduler"] else "linear",
        temperature=p.pop("temperature", 0.0),
        block_length=None if blocks else block,
        uncounted_ids=begin,
        guidance=guidance,
        guidance_keep=kept if guidance else (),
    )
    plan = Plan(
        sampler,
        length,
        frozenset({case.data["eos_id"]}) if blocks else frozenset(),
        suppress=tuple(p.pop("suppress_tokens", ()) or ()),
        block=block if blocks else None,
        shift=int(p.pop("right_shift_logits", False)) or None,
        guided=guidance > 0,
        infill=infill,
        # Without a common batch its two rows go through the model one after the other.
        less=2 if blocks and guidance else 1,
        view="grown" if blocks else "whole",
    )
    _nothing_left(case, p, set())
    return plan


def _fast_dllm_v2(case: Case) -> Plan:
    """`Fast_dLLM_QwenForCausalLM.generate`; the output ends with the seed after the last block."""
    p = dict(case.parameters)
    block, stop = p.pop("block_size", 32), p.pop("stop_token")
    new = len(case.data["finals"][0]) - len(case.data["prompts"][0])
    stopped = stop in case.data["finals"][0][-1:]
    temperature, top_p = p.pop("temperature", 0), p.pop("top_p", 0.95)
    sampler = SamplerConfig(
        name="maskgit_plus" if temperature else "low_confidence",
        threshold=p.pop("threshold", 1),
        sub_block_length=p.pop("small_block_size", 8),
        cache="dual" if p.pop("use_block_cache", False) else None,
        temperature=float(temperature),
        top_p=min(top_p, _EVERYTHING) if temperature else 1.0,
    )
    p.pop("max_new_tokens")
    _nothing_left(case, p, {"mask_id"})
    return Plan(
        sampler,
        new,
        frozenset({stop}),
        early_exit=stopped,
        keep_cache=not stopped,
        block=block,
        view="before",
    )


_NEMOTRON = {
    "native": "low_confidence",
    "fixed": "fixed",
    "confidence_threshold_ref": "confidence_threshold_ref",
    "confidence_threshold_bound": "confidence_threshold_bound",
    "cumulative_error": "cumulative_error",
}


def _nemotron(case: Case) -> Plan:
    """Blaizzy/mlx-vlm's `generate`, `ar_generate` and `linear_spec_generate`."""
    p = dict(case.parameters)
    kind = case.algorithm.split("/")[1]
    eos = next((p.pop(key) for key in ("eos_id", "eos_token_id") if p.get(key) is not None), None)
    stop = frozenset() if eos is None else frozenset({eos})
    known = {"mask_id", "eos_id", "eos_token_id"}
    if not p.get("temperature"):
        known |= {"temperature", "top_p", "top_k"}
    if kind == "ar":
        length = p.pop("max_new_tokens")
        _nothing_left(case, p, known)
        # It runs one forward more than it needs after the last token, unless that ends the text.
        more = 0 if case.data["finals"][0][-1] in stop else 1
        return Plan(SamplerConfig("autoregressive"), length, stop, more=more, view="none")
    if kind.startswith("linear_spec"):
        length, block = p.pop("max_new_tokens"), p.pop("block_length")
        sampler = SamplerConfig("linear_speculation", threshold=p.pop("threshold", 0.0) or None)
        said = f"{case.data['name']} {case.algorithm} {case.data.get('forwards', '')}"
        lora = p.pop("lora", None) or p.pop("use_lora", None) or "lora" in said
        _nothing_left(case, p, known | {"lora_path", "adapter"})
        adapter = "linear_spec_lora" if lora else None
        return Plan(sampler, length, stop, block=block, adapter=adapter, view="draft")
    length, block = p.pop("gen_length"), p.pop("block_length")
    name, threshold = p.pop("sampler", "native"), p.pop("threshold", 0.95)
    options = {
        "factor": p.pop("sampling_scaling_factor", None),
        "min_threshold": p.pop("min_threshold", None),
        "most": p.pop("num_to_transfer", None),
    }
    # Without a threshold, every sampler of the reference keeps to the number of steps.
    name = "low_confidence" if threshold is None else _NEMOTRON[name]
    heeded = build(SamplerConfig(name)).heeds if name != "low_confidence" else ()
    sampler = SamplerConfig(
        name=name,
        steps=p.pop("steps", None),
        threshold=threshold,
        **{key: value for key, value in options.items() if key in heeded},
    )
    if not p.pop("eos_early_stop", False):
        stop = frozenset()
    _nothing_left(case, p, known)
    return Plan(sampler, length, stop, block=block, view="before")


def _stable_diffcoder(case: Case) -> Plan:
    """The hub's `generate_block`: steps are counted over all blocks."""
    p = dict(case.parameters)
    length, block, steps = p.pop("gen_length"), p.pop("block_length"), p.pop("steps")
    threshold, eos = p.pop("threshold", 0.95), p.pop("eos_id", None)
    count = -(-length // block)
    sampler = SamplerConfig(
        name=p.pop("remasking", "low_confidence"),
        steps=None if threshold else steps // count,
        threshold=threshold,
        temperature=p.pop("temperature", 0.0),
    )
    shift = int(p.pop("shift", False)) or None
    _nothing_left(case, p, {"mask_id"})
    return Plan(
        sampler,
        length,
        frozenset() if eos is None else frozenset({eos}),
        # It ends before it commits the block of the end of text.
        keep_cache=eos is None or case.data["finals"][0][-1] != eos,
        block=block,
        shift=shift,
        view="ended",
    )


def _llada2(case: Case) -> Plan:
    """The hub's `LLaDA2MoeModelLM.generate`, of 2.0 and of 2.1."""
    p = dict(case.parameters)
    length, block, threshold = p.pop("gen_length"), p.pop("block_length"), p.pop("threshold")
    steps, fewest = p.pop("steps", 32), p.pop("minimal_topk", 1)
    stop, at_once = frozenset({p.pop("eos_id")}), p.pop("eos_early_stop", False)
    drawn = {key: p.pop(key) for key in ("temperature", "top_k", "top_p") if key in p}
    if case.algorithm == "llada2.1_t2t":  # heeds neither steps nor minimal_topk
        sampler = SamplerConfig(
            name="token_editing",
            threshold=threshold,
            edit_threshold=p.pop("editing_threshold"),
            max_post_steps=p.pop("max_post_steps"),
            least=p.pop("num_to_transfer", 1),
            **drawn,
        )
        # It looks for the end of text in blocks that have converged, if it is told to.
        stop, at_once = (stop if at_once else frozenset()), False
    else:
        sampler = SamplerConfig(
            name="low_confidence_dynamic",
            steps=min(steps, length // fewest),
            threshold=threshold,
            **drawn,
        )
    _nothing_left(case, p, {"mask_id"})
    return Plan(sampler, length, stop, early_exit=at_once, block=block, cacheless=True)


def _nothing_left(case: Case, parameters: dict[str, Any], known: set[str]) -> None:
    left = parameters.keys() - known
    if left:
        raise ValueError(f"{case.name}: nothing here understands {sorted(left)}")


_PLANS: dict[str, Callable[[Case], Plan]] = {
    "llada": _llada,
    "dream": _dream,
    "sdar": _sdar,
    "a2d": _dllm,
    "a2d_bd3lm": _dllm,
    "fast_dllm_v2": _fast_dllm_v2,
    "nemotron_labs_diffusion": _nemotron,
    "stable_diffcoder": _stable_diffcoder,
    "llada2": _llada2,
}


def plan(case: Case) -> Plan:
    """Translate a supported case."""
    found = family(case.pack)
    if found is None:
        raise ValueError(f"{case.name} is of no supported family")
    return _PLANS[found](case)


def exported_as(case: Case, plan: Plan) -> dict[str, Any]:
    """Return the options of `dlmc export` that a case needs."""
    options = {
        "family": family(case.pack),
        "mask_id": case.mask_id,
        "suppress": plan.suppress,
        "block_length": plan.block,
        "shift": plan.shift,
        "variant": "guided" if plan.guided else None,
        "adapter": plan.adapter,
    }
    return {name: value for name, value in options.items() if value is not None}
