"""Give nodes and values names that say where in the network they are."""

import ast
from collections import Counter

import onnx_ir as ir

_SCOPES = "pkg.torch.onnx.name_scopes"


class NameNodes(ir.passes.InPlacePass):
    """Names nodes ``<module>.<operator>``, counting repetitions, and values after their node.

    ``layers.0.self_attn.Attention`` is the attention of the first layer, ``layers.0.mlp.Mul_1``
    the second product in its MLP: stable from one torch to the next, and short enough to read in
    a profile. Graph inputs and outputs keep their names.

    Args:
        prefix: what to take off the front of module and initializer names.
    """

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rename initializers, nodes and inner values."""
        modified = self._name_initializers(model.graph)
        fixed = {*model.graph.inputs, *model.graph.outputs}
        seen: Counter[str] = Counter()
        for node in model.graph:
            stem = f"{self._module(node)}.{node.op_type}".lstrip(".")
            modified |= _rename(node, f"{stem}_{seen[stem]}" if seen[stem] else stem)
            seen[stem] += 1
            for index, value in enumerate(node.outputs):
                if value not in fixed:
                    modified |= _rename(value, f"{node.name}.{index}")
        return ir.passes.PassResult(model, modified)

    def ensures(self, model: ir.Model) -> None:
        """No two nodes and no two values share a name."""
        nodes = [node.name for node in model.graph]
        values = [value.name for node in model.graph for value in node.outputs]
        values += [*model.graph.initializers, *(value.name for value in model.graph.inputs)]
        for names in (nodes, values):
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise ir.passes.PostconditionError(f"the name {twice[0]} is used twice")

    def _name_initializers(self, graph: ir.Graph) -> bool:
        """Strip the prefix from what belongs to a module, and number what folding made."""
        modified, folded = False, 0
        for value in list(graph.initializers.values()):
            name = str(value.name)
            if "." in name:
                modified |= _rename(value, name.removeprefix(self._prefix))
            else:
                modified |= _rename(value, f"constant_{folded}")
                folded += 1
        return modified

    def _module(self, node: ir.Node) -> str:
        """Return the name of the module that the node was traced in; empty for the root."""
        scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
        # The last scope is the operator's own; those before it are modules, the innermost last.
        module = str(scopes[-2]) if len(scopes) > 1 else ""
        return "" if module.startswith("_") else f"{module}.".removeprefix(self._prefix)[:-1]


def _rename(part: ir.Node | ir.Value, name: str) -> bool:
    """Rename ``part`` and return whether that changed anything."""
    changed = part.name != name
    if changed:
        part.name = name
    return changed
