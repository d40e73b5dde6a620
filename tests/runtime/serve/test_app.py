import asyncio

from dlmc_runtime.events import Event, Finished
from dlmc_runtime.scheduler import Scheduler
from dlmc_runtime.serve import app
from dlmc_runtime.serve.errors import RESPONSES
from dlmc_runtime.serve.models import Catalog, Served
from dlmc_runtime.serve.settings import Settings


def test_the_description_lists_every_path_and_its_errors(shared):
    said = shared.client.get("/openapi.json").json()
    assert {"/v1/completions", "/v1/models", "/v1/models/{name}", "/health", "/metrics"} <= set(
        said["paths"]
    )
    post = said["paths"]["/v1/completions"]["post"]
    assert set(post["responses"]) == {"200", *map(str, RESPONSES)}
    for path in said["paths"].values():
        for operation in path.values():
            assert "422" not in operation["responses"]
    body = said["components"]["schemas"]["CompletionBody"]
    assert body["additionalProperties"] is False
    assert body["required"] == ["model"]


def test_no_page_of_strangers_is_loaded(shared):
    for path in ("/docs", "/redoc"):
        assert shared.client.get(path).status_code == 404


def test_the_table_of_routers_has_no_one_twice():
    assert len(set(app.ROUTERS)) == len(app.ROUTERS)


def test_what_runs_may_finish_when_the_application_ends(letters):
    generator = letters()
    served = Served("test", generator, Scheduler(generator))
    made = app.create_app(Catalog([served]))
    seen: list[Event] = []

    async def main():
        async with made.router.lifespan_context(made):
            request = generator.request("abc", max_new_tokens=20)
            assert served.scheduler.alive
            served.scheduler.submit(request, seen.append)

    asyncio.run(main())
    assert isinstance(seen[-1], Finished)
    assert not served.scheduler.alive


def test_what_stands_in_a_query_is_in_no_log(letters):
    generator = letters()
    served = Served("test", generator, Scheduler(generator))
    made = app.create_app(Catalog([served]), Settings(cors_origins=("http://a.example",)))
    headers = [(b"origin", b"http://a.example"), (b"access-control-request-method", b"GET")]
    for method in ("OPTIONS", "GET"):  # the first is answered by who is asked first
        scope = {
            "type": "http",
            "method": method,
            "path": "/health",
            "query_string": b"api_key=secret",
            "headers": headers,
        }

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            del message

        asyncio.run(made(scope, receive, send))
        assert scope["query_string"] == b""
