"""YAML that others write, without forms that can cost a reader time or memory without end."""

from typing import Any

import yaml

# Values of a file with aliases expanded, levels of nesting, and characters of a number.
MOST_NODES, MOST_LEVELS, MOST_DIGITS = 100_000, 50, 40
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _Loader(yaml.SafeLoader):
    """YAML's plain data, without merges and base-60 numbers."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._level = self._count = 0
        # The nodes of each anchor; an anchor that contains its own alias is not complete.
        self._sizes: dict[str, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event, before = self.peek_event(), self._count  # type: ignore[no-untyped-call]
        self._level += 1
        self._count += self._sizes.get(str(event.anchor), MOST_NODES) if isinstance(event, yaml.AliasEvent) else 1
        if self._level > MOST_LEVELS or self._count > MOST_NODES:
            limits = f"more than {MOST_LEVELS} levels or {MOST_NODES} values, or an alias of itself"
            raise yaml.composer.ComposerError(None, None, limits, event.start_mark)
        node = super().compose_node(parent, index)
        self._level -= 1
        if getattr(event, "anchor", None):
            self._sizes[event.anchor] = self._count - before
        return node

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        if node.tag in NUMBERS and (":" in node.value or len(node.value) > MOST_DIGITS):
            words = f"a number in base 60 or of over {MOST_DIGITS} digits: write it in decimal, or quote it"
            raise yaml.constructor.ConstructorError(None, None, words, node.start_mark)
        return super().construct_scalar(node)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                words = "a merge (<<): write its keys out"
                raise yaml.constructor.ConstructorError(None, None, words, key.start_mark)


def parse_yaml(text: str) -> Any:
    """Parse plain data; yaml.YAMLError if it is not valid or exceeds a bound."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a safe loader
    except (ValueError, RecursionError, MemoryError) as error:
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from None
