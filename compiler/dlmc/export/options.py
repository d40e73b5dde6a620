"""What a caller can decide about an export."""

from dataclasses import dataclass
from pathlib import Path

from dlmc_runtime.manifest import HeadVariant


@dataclass(frozen=True)
class ExportOptions:
    """All choices of one export; None leaves a choice to the recipe, then to the family.

    Attributes:
        source: a checkpoint folder or a hub id; None takes the recipe's, or, without weights,
            the recipe's configuration alone and no tokenizer.
        output: the folder to make.
        family: name of the family, where the checkpoint does not tell.
        mask_id: id of the mask token.
        block_length: positions denoised together.
        attention: who sees whom, ``full``, ``block`` or ``context``, where a checkpoint was trained
            otherwise than its family.
        shift: 1 where logit i predicts token i + 1, else 0.
        candidates: best tokens (K) that the graph hands out for each row.
        variant: ``guided`` lets pairs of rows be combined (classifier-free guidance), ``logits``
            lets the graph hand out all logits as well, for validation.
        suppress: ids, besides the mask, that must never be predicted.
        head_part: ids that a head which expects embeddings reduces at a time. What it makes on the
            way to its sums is as much smaller than the logits as these are fewer than all.
        adapter: folder of an adapter that each row can switch on, in the checkpoint or elsewhere.
        recipe: name or path of a recipe.
        weights: whether the bundle holds weights; a bundle without cannot run.
        tokenizer: whether the bundle holds a tokenizer; a bundle without takes token ids.
        revision: branch, tag or commit of the hub repository.
        force: whether to replace a bundle at ``output``.
    """

    source: str | None
    output: Path
    family: str | None = None
    mask_id: int | None = None
    block_length: int | None = None
    attention: str | None = None
    shift: int | None = None
    candidates: int | None = None
    variant: HeadVariant = "plain"
    suppress: tuple[int, ...] = ()
    head_part: int = 1 << 14
    adapter: str | None = None
    recipe: str | None = None
    weights: bool = True
    tokenizer: bool = True
    revision: str | None = None
    force: bool = False
