"""Loading engines: how often weights are read, and how much memory that takes.

    python benchmarks/engine_load.py

Each engine is loaded in a process of its own, hashes checked, and then runs every profile once.
Memory is what the process grew by after importing its libraries: resident bytes, in which pages of
mapped files count although the system can drop them, and anonymous bytes, which it cannot. Reads
of mapped files are no calls and are not counted.
"""

from statistics import median

from dlmc.bench import memory
from dlmc.bench.roofline import Weights
from dlmc_runtime.bundle import Bundle
from machine import Cell, Table, parser, report
from synthetic import ENGINES, LLADA_300M, SDAR_500M, Shape, build

# Which vocabulary matrices there are: SDAR-1.7B's head is its embedding, LLaDA's is its own.
SHAPES = ((LLADA_300M, False), (SDAR_500M, True))
COLUMNS = (
    "model",
    "engine",
    "weights MB",
    "loading MB",
    "running MB",
    "anonymous MB",
    "loading / weights",
    "running / weights",
    "anonymous / weights",
    "read / weights",
    "load s (median)",
)


def measure(shape: Shape, *, tied: bool, repeats: int) -> list[tuple[Cell, ...]]:
    """Build and load every engine of one model; memory is that of the worst run."""
    rows: list[tuple[Cell, ...]] = []
    with shape.bundle("--no-tokenizer") as root:
        for engine in ENGINES:
            build(root, engine)
            bundle = Bundle.open(root, hashes=False)
            precision = bundle.engine(engine).precision
            size = Weights.of(bundle.manifest.model, tied=tied).bytes(precision)
            runs = [memory.measure(root, engine) for _ in range(repeats)]
            found = [run for run in runs if run is not None]
            worst = [
                max(getattr(one, part) for one in found)
                for part in ("load", "peak", "anonymous", "read")
            ]
            sizes = [size / 1e6, *(one / 1e6 for one in worst[:3])]
            seconds = median(one.seconds for one in found)
            rows.append((shape.name, engine, *sizes, *(one / size for one in worst), seconds))
    return rows


def main() -> None:
    """Measure every model and print the table."""
    arguments = parser(__doc__)
    arguments.add_argument("--repeats", type=int, default=3)
    given = arguments.parse_args()
    rows = [
        row for shape, tied in SHAPES for row in measure(shape, tied=tied, repeats=given.repeats)
    ]
    report(Table("engine_load", COLUMNS, tuple(rows)), given.json)


if __name__ == "__main__":
    main()
