"""The packaged application on Ray Serve: two replicas on one machine, one killed under load."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import httpx
import pytest
import yaml
from processes import free_ports, running

from dlmc_runtime.errors import BundleError, EngineError, UsageError
from dlmc_runtime.package import ray_app
from dlmc_runtime.package.loading import close
from dlmc_runtime.serve.models import Catalog, Site

WAIT = 120.0
NAME = "tiny"


def test_a_replica_serves_its_package(packaged):
    app = ray_app.build(packaged("ray"))
    assert list(app.state.site.catalog) == [NAME]
    close(app)


def test_keys_of_the_environment_are_asked_for(packaged, monkeypatch):
    monkeypatch.setenv("DLMC_API_KEYS", "abcdefgh,ijklmnop")
    app = ray_app.build(packaged("ray"))
    assert app.state.site.settings.api_keys == ("abcdefgh", "ijklmnop")
    close(app)


@pytest.mark.parametrize("alive", [True, False])
def test_a_replica_whose_engine_has_stopped_is_not_healthy(alive):
    scheduler = SimpleNamespace(alive=alive, round_seconds=0.0)
    site = Site(Catalog([SimpleNamespace(name=NAME, scheduler=scheduler)]))  # type: ignore[list-item]
    replica = ray_app.Replica()
    replica.app = SimpleNamespace(state=SimpleNamespace(site=site))  # type: ignore[assignment]
    if alive:
        replica.check_health()
    else:
        with pytest.raises(EngineError, match="the engine of tiny has stopped"):
            replica.check_health()


def needs_ray():
    if find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'ray[serve]'")


@pytest.mark.parametrize(
    ("form", "error"), [("triton", UsageError), (None, BundleError)], ids=["triton", "nothing"]
)
def test_an_application_is_of_a_package_for_ray(packaged, tmp_path, form, error):
    with pytest.raises(error, match="dlmc package"):
        ray_app.application(packaged(form) if form else tmp_path)


# `serve run` in a cluster that is as small as can be and ends with this process.
DRIVER = """
import sys
import ray
ray.init(
    num_cpus=2,
    include_dashboard=False,
    object_store_memory=80_000_000,
    namespace="serve",
    log_to_driver=False,
    configure_logging=False,
    _temp_dir=sys.argv[1],
)
sys.argv = ["serve", "run", "serve.yaml"]
from ray.serve.scripts import cli
cli()
"""


@dataclass(frozen=True)
class Cluster:
    """Two replicas.

    Attributes:
        address: of their proxy.
        folder: Ray's own, which its processes are known by.
        package: what they serve.
    """

    address: str
    folder: str
    package: Path

    def replicas(self) -> set[int]:
        """Return the processes that serve: children of this cluster's raylet."""
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (folder / "cmdline").read_text().startswith("ray::ServeReplica"):
                    parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                    if self.folder in (Path("/proc") / parent / "cmdline").read_text():
                        found.add(int(folder.name))
        return found

    def serves(self) -> bool:
        """Return whether both replicas are there and one answers."""
        try:
            response = httpx.get(f"{self.address}/v1/models", timeout=5)
        except httpx.TransportError:
            return False
        return response.status_code == 200 and len(self.replicas()) == 2


@pytest.fixture(scope="module")
def cluster(packaged, repository, tmp_path_factory):
    """Serve a package with two replicas."""
    needs_ray()
    package = packaged("ray")
    (port,) = free_ports(1)
    written = yaml.safe_load((package / "serve.yaml").read_text())
    written["http_options"]["port"] = port
    (deployment,) = written["applications"][0]["deployments"]
    deployment["autoscaling_config"].update(min_replicas=2, max_replicas=2)
    deployment["ray_actor_options"]["num_cpus"] = 0.5
    (package / "serve.yaml").write_text(yaml.safe_dump(written))
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{repository / 'runtimes'}:{package}",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    log = tmp_path_factory.mktemp("ray") / "log"
    with TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        made = Cluster(f"http://127.0.0.1:{port}", folder, package)
        command = [sys.executable, "-c", DRIVER, folder]
        with running(command, made.serves, log=log, environment=variables, folder=package):
            yield made


def ask(client, prompt):
    return client.completions.create(model=NAME, prompt=prompt, max_tokens=48).choices[0].text


@pytest.mark.slow
def test_a_killed_replica_costs_no_answer(cluster, alone):
    """Whoever waited for it is told 500 and asks again, as OpenAI's client does by itself."""
    from openai import OpenAI

    outcome: Counter[str] = Counter()
    before = cluster.replicas()
    done = threading.Event()

    def work(prompt: str, expected: str) -> None:
        with OpenAI(base_url=f"{cluster.address}/v1", api_key="none", max_retries=5) as client:
            while not done.is_set():
                outcome["right" if ask(client, prompt) == expected else "wrong"] += 1

    threads = [threading.Thread(target=work, args=pair) for pair in alone.items()]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: outcome["right"] >= 10)
        os.kill(min(before), signal.SIGKILL)
        answered = outcome["right"]
        wait_until(lambda: outcome["right"] >= answered + 20)
        wait_until(lambda: len(cluster.replicas() - before) == 1)  # another one takes its place
    finally:
        done.set()
        for thread in threads:
            thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads)
    assert outcome["wrong"] == 0


def wait_until(condition):
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_the_readme_of_a_package_says_how_to_call_it(cluster):
    """Its commands run as they are, but for the port."""
    readme = (cluster.package / "README.md").read_text()
    commands = [one for one in re.findall(r"```sh\n(.*?)```", readme, re.S) if "curl" in one]
    assert len(commands) == 2
    for command in commands:
        line = command.replace("http://localhost:8000", cluster.address)
        shell = ["bash", "-ec", line]
        done = subprocess.run(shell, capture_output=True, text=True, timeout=WAIT, check=True)
        assert '"id"' in done.stdout, done
        assert '"error"' not in done.stdout, done
