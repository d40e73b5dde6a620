"""``/metrics``: what Prometheus reads, and how long requests take."""

from collections.abc import Callable, Iterator, Mapping
from time import monotonic

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dlmc_runtime.serve.models import Catalog, Site
from dlmc_runtime.statistics import Statistics
from dlmc_runtime.ticket import Ticket

# Seconds; from a small model's one block to a long answer of a large one.
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Read = Callable[[Statistics], float]
ReadMany = Callable[[Statistics], Mapping[str, float]]

GAUGES: tuple[tuple[str, str, Read], ...] = (
    ("dlmc_requests_waiting", "Requests in the queue.", lambda s: s.waiting),
    ("dlmc_requests_active", "Requests that share forwards.", lambda s: s.active),
    ("dlmc_batch_slots", "Rows that can share a forward.", lambda s: s.slots),
    (
        "dlmc_batch_occupancy",
        "Share of the room in all forwards so far that requests filled.",
        lambda s: s.rows_fed / s.slots_fed if s.slots_fed else 0.0,
    ),
    (
        "dlmc_tokens_per_forward",
        "Tokens of all answers so far over the forwards their rows took part in.",
        lambda s: s.tokens / s.row_forwards if s.row_forwards else 0.0,
    ),
    ("dlmc_prefix_bytes", "Memory of blocks kept for later prompts.", lambda s: s.prefix_bytes),
)
COUNTERS: tuple[tuple[str, str, Read], ...] = (
    ("dlmc_batch_rows", "Rows that took part in forwards.", lambda s: s.rows_fed),
    ("dlmc_batch_room", "Rows that forwards had room for.", lambda s: s.slots_fed),
    ("dlmc_tokens", "Tokens generated.", lambda s: s.tokens),
    ("dlmc_prompt_tokens", "Tokens of prompts.", lambda s: s.prompt_tokens),
    ("dlmc_cached_tokens", "Tokens of prompts taken from earlier ones.", lambda s: s.cached_tokens),
    ("dlmc_requests_cancelled", "Requests whose client left.", lambda s: s.cancelled),
    ("dlmc_forward_seconds", "Time in forwards.", lambda s: s.forward_seconds),
    ("dlmc_busy_seconds", "Time with work to do.", lambda s: s.busy_seconds),
)
LABELLED: tuple[tuple[str, str, str, ReadMany], ...] = (
    ("dlmc_forwards", "Forwards by what they were for.", "kind", lambda s: s.forwards),
    ("dlmc_requests_finished", "Answers by why they ended.", "reason", lambda s: s.finished),
    ("dlmc_requests_failed", "Requests that came to an error.", "kind", lambda s: s.failed),
)


class _Schedulers(Collector):
    """Reads the schedulers whenever Prometheus asks."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def collect(self) -> Iterator[Metric]:
        """Yield every family with a sample for each model."""
        said = {name: one.scheduler.statistics() for name, one in self._catalog.items()}
        for name, text, read in GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["model"])
            for model, statistics in said.items():
                gauge.add_metric([model], read(statistics))
            yield gauge
        for name, text, read in COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["model"])
            for model, statistics in said.items():
                counter.add_metric([model], read(statistics))
            yield counter
        for name, text, label, read_many in LABELLED:
            labelled = CounterMetricFamily(name, text, labels=["model", label])
            for model, statistics in said.items():
                for value, number in sorted(read_many(statistics).items()):
                    labelled.add_metric([model, value], number)
            yield labelled


class Metrics:
    """Everything that a server counts."""

    def __init__(self, catalog: Catalog) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Schedulers(catalog))
        self._queue, self._first, self._whole = (
            Histogram(name, text, ["model"], buckets=BUCKETS, registry=self.registry)
            for name, text in (
                ("dlmc_queue_seconds", "From arrival to the first forward."),
                ("dlmc_first_block_seconds", "From arrival to the first final tokens."),
                ("dlmc_request_seconds", "From arrival to the end of the answer."),
            )
        )
        for name, served in catalog.items():
            served.observe = self._observer(name)

    def _observer(self, model: str) -> Callable[[Ticket], None]:
        queue, first, whole = (one.labels(model) for one in (self._queue, self._first, self._whole))

        def observe(ticket: Ticket) -> None:
            if ticket.admitted is not None:
                queue.observe(ticket.admitted - ticket.submitted)
            if ticket.first_block is not None:
                first.observe(ticket.first_block - ticket.submitted)
            whole.observe((ticket.ended or monotonic()) - ticket.submitted)

        return observe

    def text(self) -> bytes:
        """Return all of it in Prometheus' text format."""
        return generate_latest(self.registry)


router = APIRouter(tags=["operations"])


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def read_metrics(http: Request) -> Response:
    """Return the counters in Prometheus' text format."""
    metrics: Metrics = http.app.state.metrics
    return Response(metrics.text(), media_type=MEDIA_TYPE)


@router.get("/health", responses={503: {"description": "Draining, or an engine is gone."}})
async def check_health(http: Request, response: Response) -> dict[str, str]:
    """Say whether requests are taken, also while all threads are busy with them."""
    site = Site.of(http)
    failed = site.failed
    if not site.draining and not failed:
        return {"status": "ok"}
    response.status_code = 503
    return {"status": "draining"} if site.draining else {"status": "failed", "model": failed[0]}
