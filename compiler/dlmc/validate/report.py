"""What a comparison found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One output of an engine against the reference, over all recorded states.

    Attributes:
        output: name of the graph output, or ``generation``.
        compared: how many numbers, or generations, were compared.
        difference: largest absolute difference; for ids, how many differ.
        tolerance: what the manifest allows; for ids, nothing.
        where: forward, row and position of the largest difference, with both values.
    """

    output: str
    compared: int
    difference: float
    tolerance: float
    ok: bool
    where: str


@dataclass(frozen=True)
class Report:
    """All rows of one validation."""

    bundle: str
    target: str
    reference: str
    prompts: int
    forwards: int
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether every output agrees."""
        return all(row.ok for row in self.rows)
