import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from records import MANIFEST

from dlmc.cli.serve import KEYS_VARIABLE, _release, read_size, served_names
from dlmc_runtime.errors import EngineError, UsageError
from dlmc_runtime.manifest import parse_manifest
from dlmc_runtime.samplers.config import SamplerConfig

KEY = "a-key-of-ours"


@pytest.fixture
def served(codec, monkeypatch):
    """Bundles that need no engine, and a server that only takes note of what it was given."""
    seen = SimpleNamespace(loaded=[], closed=0, app=None, socket=None, log=None)

    class Loaded:
        engine, text, sampler = SimpleNamespace(), codec, SamplerConfig("low_confidence_dynamic")
        manifest = parse_manifest(json.dumps(MANIFEST).encode())
        profiles = manifest.profiles

        def close(self):
            seen.closed += 1

    def load(path, target):
        seen.loaded.append((str(path), target))
        return Loaded()

    def prepare(app, ready, *, log):
        seen.app, seen.log = app, log

        def run(sockets):
            seen.socket = sockets[0].getsockname()
            ready()

        return SimpleNamespace(run=run)

    monkeypatch.setattr("dlmc_runtime.generate.Generator.load", load)
    monkeypatch.setattr("dlmc_runtime.serve.server.prepare", prepare)
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)
    return seen


def test_what_is_about_to_be_served_is_said_first(dlmc, served):
    outcome = dlmc("serve", "some/bundle", "--port", "0")
    assert (outcome.status, outcome.out) == (0, "")
    *said, last = outcome.err.splitlines()
    assert said == [
        "bundle: sdar, low_confidence_dynamic, context of 64 tokens, 32 to an answer",
        "the widest batch, 256 may wait, 512 at once; caches half of the free memory, "
        "prefixes 256 MB",
        "600 s and 4.19 MB a request, 30 s to drain, no API keys",
    ]
    assert last == f"serving on http://127.0.0.1:{served.socket[1]}"
    assert served.loaded == [("some/bundle", "onnxruntime-cpu")]
    assert served.closed == 1


def test_several_bundles_are_served_by_name(dlmc, served):
    line = ("a/x", "b/x", "--name", "one", "--name", "org/two", "--port", "0")
    assert dlmc("serve", *line, "--target", "openvino-cpu").status == 0
    assert list(served.app.state.site.catalog) == ["one", "org/two"]
    assert served.loaded == [("a/x", "openvino-cpu"), ("b/x", "openvino-cpu")]
    assert served.closed == 2


def test_options_are_limits_and_settings(dlmc, served, tmp_path, monkeypatch):
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    monkeypatch.setenv(KEYS_VARIABLE, "another-key")
    outcome = dlmc(
        *("serve", "x", "--port", "0", "--api-key-file", str(keys), "--access-log"),
        *("--max-queue", "7", "--max-batch", "2", "--cache-memory", "2GB", "--prefix-memory", "0"),
        *("--request-timeout", "9", "--max-body-bytes", "5000", "--max-concurrent", "3"),
        *("--drain-timeout", "1", "--cors-origin", "https://a.example"),
        *("--allowed-host", "Models.Example"),
    )
    assert outcome.status == 0
    site = served.app.state.site
    limits = site.catalog["x"].scheduler.limits
    assert (limits.queue, limits.rows, limits.cache_bytes, limits.prefix_bytes) == (7, 2, 2e9, 0)
    settings = site.settings
    assert settings.api_keys == (KEY, "another-key")
    assert (settings.max_body_bytes, settings.max_concurrent) == (5000, 3)
    assert (settings.request_seconds, settings.drain_seconds) == (9, 1)
    assert settings.cors_origins == ("https://a.example",)
    assert settings.allowed_hosts == ("models.example",)
    assert served.log is True


@pytest.mark.parametrize("more", [0, 1])
def test_a_batch_that_the_engine_has_no_room_for_is_warned_of(dlmc, served, more):
    manifest = parse_manifest(json.dumps(MANIFEST).encode())
    widest = max(profile.batch for profile in manifest.profiles)
    outcome = dlmc("serve", "x", "--port", "0", "--max-batch", str(widest + more))
    assert outcome.status == 0
    said = f"warning: --max-batch {widest + more}: x has room for {widest} rows"
    assert (said in outcome.err) is bool(more)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_keys_are_counted_and_not_shown(dlmc, served, monkeypatch, options):
    monkeypatch.setenv(KEYS_VARIABLE, KEY)
    outcome = dlmc("serve", "x", "--port", "0", *options)
    assert outcome.status == 0
    assert KEY not in outcome.out + outcome.err
    assert "1 API keys" in outcome.err or outcome.json["settings"]["api_keys"] == 1


def test_json_is_one_object(dlmc, served):
    said = dlmc("serve", "x", "--port", "0", "--json").json
    assert said["url"] == f"http://127.0.0.1:{served.socket[1]}"
    assert (said["models"][0]["id"], said["models"][0]["engine"]) == ("x", "onnxruntime-cpu")
    assert said["limits"]["queue"] == 256
    assert said["settings"]["max_concurrent"] == 512


def test_names_of_this_machine_alone_are_served_on_loopback(dlmc, served):
    dlmc("serve", "x", "--port", "0")
    assert "localhost" in served.app.state.site.settings.allowed_hosts
    outcome = dlmc("serve", "x", "--port", "0", "--host", "0.0.0.0")  # noqa: S104
    assert served.app.state.site.settings.allowed_hosts == ()
    assert "warning: 0.0.0.0 is open to other machines, and no API key" in outcome.err


def test_a_key_spares_the_warning(dlmc, served, monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, KEY)
    outcome = dlmc("serve", "x", "--port", "0", "--host", "0.0.0.0")  # noqa: S104
    assert "warning" not in outcome.err


def test_a_port_in_use_is_one_sentence_before_anything_is_loaded(dlmc, served):
    from dlmc_runtime.serve.server import bind

    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        outcome = dlmc("serve", "x", "--port", str(port))
    assert outcome.status == 1
    sentence = f"port {port} of 127.0.0.1 is in use: give another --port"
    assert outcome.err == f"dlmc: error: {sentence}\n"
    assert not served.loaded


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["a/x", "b/x"], "two bundles are called x: give --name for each"),
        (["a", "b", "--name", "c"], "there are 1 names for 2 bundles: give --name for each"),
        (["a", "--name", "ä"], "a model cannot be called 'ä': give a --name of ASCII letters"),
        (["a", "--cache-memory", "2 GB"], "--cache-memory 2 GB is no size: write 2GB, 512MB or 0"),
        (["a", "--api-key-file", "none"], "none cannot be read (No such file or directory)"),
        (["a", "--port", "70000"], "invalid value for '--port'"),
        (["a", "--host", "no host"], "--host no host is no address"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(dlmc, served, line, sentence):
    outcome = dlmc("serve", *line)
    assert outcome.status == 2
    assert sentence in outcome.err
    assert not served.loaded


def test_memory_that_holds_no_row_is_refused_before_anything_is_served(dlmc, served):
    line = ("serve", "x", "--port", "0", "--cache-memory")
    outcome = dlmc(*line, "1k")
    assert outcome.status == 2
    sentence = "--cache-memory 1 kB is too small for the longest request to x: give it "
    assert sentence in outcome.err
    assert served.app is None
    needed = outcome.err.split(sentence)[1].split()[0]
    assert dlmc(*line, str(int(needed) - 1)).status == 2
    assert dlmc(*line, needed).status == 0


def test_a_process_ends_at_once_where_a_thread_is_inside_an_engine(monkeypatch, capsys):
    def close():
        raise EngineError("the engine of tiny does not come back", "look at it")

    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    _release(SimpleNamespace(close=close))  # type: ignore[arg-type]
    assert ended == [1]
    said = "dlmc: error: the engine of tiny does not come back: look at it\n"
    assert capsys.readouterr().err == said


def test_a_bundle_is_called_as_its_folder():
    assert served_names([Path("a/tiny-sdar"), Path("b")], None) == ["tiny-sdar", "b"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("7", 7), ("7B", 7), ("512MB", 512_000_000), ("2G", 2_000_000_000), ("1kB", 1000)],
)
def test_sizes_have_units(text, size):
    assert read_size("--x", text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "1.5GB", "9" * 16, "1PB", "٣"])
def test_other_sizes_are_refused(text):
    with pytest.raises(UsageError, match="is no size"):
        read_size("--x", text)
