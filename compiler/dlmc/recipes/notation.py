"""YAML as recipes write it: plain data, no key twice, no references.

References are refused because a few of them can describe more data than fits in memory, and
``1e-5`` is a number here, as in JSON; YAML 1.1 takes it for text.
"""

import re
from collections.abc import Hashable
from typing import Any

import yaml

from dlmc_runtime.errors import UsageError


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            problem = "references are not supported"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001, FBT002  (PyYAML's signature)
    ) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if name in seen:
                problem = f"{name} is stated twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse(text: bytes, where: str) -> Any:
    """Return the data of a YAML document.

    Raises:
        UsageError: it breaks YAML or the rules above; the message names file and line.
    """
    try:
        return yaml.load(text.decode(), _Loader)  # noqa: S506  (a subclass of the safe loader)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{where}{line}: {error.problem}", "correct the file") from None
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        problem = " ".join(str(error).split())
        raise UsageError(f"{where} is not YAML ({problem})", "correct the file") from None
