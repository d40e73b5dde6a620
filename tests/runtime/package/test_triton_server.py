"""The packaged model in the real `tritonserver`, which comes with the nvidia-pytriton wheel."""

import json
import os
import queue
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from processes import free_ports, running

pytestmark = pytest.mark.slow

NAME = "tiny"
WAIT = 60
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def triton() -> Path:
    """Return the folder of the wheel's Triton."""
    package = find_spec("pytriton")
    if package is None or package.origin is None:
        pytest.skip("the tritonserver program is not installed: pip install nvidia-pytriton")
    folder = Path(package.origin).parent / "tritonserver"
    if not (folder / "python_backend_stubs" / PYTHON).is_dir():
        pytest.skip(f"nvidia-pytriton has no stub for Python {PYTHON}")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip(f"this Python {PYTHON} has no libpython, which Triton's stub loads")
    return folder


def numpy_one() -> Path:
    """Return a folder with numpy 1: Triton 24.10, which the wheel has, cannot read numpy 2."""
    folder = Path(sys.prefix) / "share" / "triton-python"
    if not (folder / "numpy").is_dir():
        pytest.skip(f"numpy 1 for Triton 24.10 is not in {folder}: see Makefile")
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory, repository) -> Path:
    """A Python environment with these sources and what they need."""
    paths = [numpy_one(), repository / "runtimes", Path(np.__file__).parent.parent]
    root: Path = tmp_path_factory.mktemp("environment")
    venv.create(root, symlinks=True, with_pip=False)
    (root / "lib" / f"python{PYTHON}" / "site-packages" / "dlmc.pth").write_text(
        "".join(f"{path}\n" for path in paths)
    )
    return root


@pytest.fixture(scope="module")
def server(environment, packaged, tmp_path_factory):
    """Start Triton on the package; return its addresses for HTTP and gRPC, and the package."""
    source = triton()
    package = packaged("triton", str(environment))
    folder = tmp_path_factory.mktemp("triton")
    backend = shutil.copytree(source / "backends" / "python", folder / "backends" / "python")
    stub = "triton_python_backend_stub"
    shutil.copy(source / "python_backend_stubs" / PYTHON / stub, backend / stub)
    libraries = [
        str(source.parent.parent / "nvidia_pytriton.libs"),
        str(sysconfig.get_config_var("LIBDIR")),
    ]
    http, grpc = free_ports(2)
    command = [
        str(source / "bin" / "tritonserver"),
        f"--model-repository={package}",
        f"--backend-directory={folder / 'backends'}",
        "--http-address=127.0.0.1",
        f"--http-port={http}",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={grpc}",
        "--allow-metrics=false",
    ]
    variables = {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries), "OMP_NUM_THREADS": "1"}

    def ready() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{http}/v2/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    started = running(command, ready, log=folder / "log", environment=variables, folder=folder)
    with started:
        yield f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", package


@pytest.fixture
def address(server):
    return f"http://{server[0]}/v2/models/{NAME}"


def events(response):
    """Return the outputs of every server-sent event."""
    lines = response.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def test_http_answers_whole(address, alone):
    for prompt, expected in list(alone.items())[:2]:
        request = {"request": json.dumps({"prompt": prompt})}
        answer = httpx.post(f"{address}/generate", json=request, timeout=WAIT).json()
        assert answer["text_output"] == expected
        assert answer["final"] is True
        assert json.loads(answer["event"])["usage"]["forwards"] > 1


def test_http_streams(address, alone):
    prompt, expected = next(iter(alone.items()))
    request = {"request": json.dumps({"prompt": prompt, "stream": True})}
    found = events(httpx.post(f"{address}/generate_stream", json=request, timeout=WAIT))
    assert len(found) > 2
    assert "".join(one["text_output"] for one in found) == expected
    assert [one["final"] for one in found] == [False] * (len(found) - 1) + [True]


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"text_input": "a", "frob": 1}, "frob is not supported here"),
        ({"request": '{"prompt": "a", "model": "x"}'}, "there is no model 'x'"),
        ({"text_input": "a", "request": "{}"}, "exclude each other"),
    ],
)
def test_http_says_what_is_wrong(address, request_, sentence):
    response = httpx.post(f"{address}/generate", json=request_, timeout=WAIT)
    assert response.status_code == 400
    assert sentence in response.json()["error"]


def test_a_stream_asked_of_generate_is_an_error(address):
    request = {"request": json.dumps({"prompt": "1+1=", "stream": True})}
    response = httpx.post(f"{address}/generate", json=request, timeout=WAIT)
    assert "use generate stream" in response.json()["error"]


@pytest.fixture
def grpc(server):
    """Return a function that sends requests over one gRPC stream and collects their answers."""
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    connection = client.InferenceServerClient(server[1])
    heard: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def send(key, request):
        tensor = client.InferInput("request", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([json.dumps(request).encode()], np.object_))
        connection.async_stream_infer(NAME, [tensor], request_id=key)

    def talk(requests):
        connection.start_stream(lambda result, error: heard.put((result, error)))
        for key, request in requests.items():
            send(key, request)
        answers, left = dict.fromkeys(requests, ""), len(requests)
        while left:
            result, error = heard.get(timeout=WAIT)
            if error is not None:
                raise error
            answers[result.get_response().id] += result.as_numpy("text_output")[0].decode()
            left -= bool(result.as_numpy("final")[0])
        connection.stop_stream()
        return answers

    def first(request):
        """Return when a part of an answer is here, and cancel the rest."""
        connection.start_stream(lambda result, error: heard.put((result, error)))
        send("0", request)
        assert heard.get(timeout=WAIT)[1] is None
        connection.stop_stream(cancel_requests=True)
        while not heard.empty():  # what was on its way, and that it was cancelled
            heard.get()

    yield talk, first
    connection.close()


def test_grpc_streams_many_at_once(grpc, alone):
    requests = {prompt: {"prompt": prompt, "stream": True} for prompt in alone}
    assert grpc[0](requests) == alone


def test_grpc_carries_errors(grpc):
    utils = import_module("tritonclient.utils")
    with pytest.raises(utils.InferenceServerException, match="threshold is 7"):
        grpc[0]({"0": {"prompt": "a", "diffusion": {"threshold": 7.0}}})


def test_the_model_goes_on_after_a_cancelled_request(grpc, alone):
    ignoring = {"ignore_eos": True}
    grpc[1]({"prompt": "9*9=", "max_tokens": 150, "stream": True, "diffusion": ignoring})
    prompt, expected = next(iter(alone.items()))
    assert grpc[0]({"0": {"prompt": prompt}}) == {"0": expected}


def test_the_readme_of_a_package_says_how_to_call_it(server):
    """Its commands run as they are, but for the port."""
    readme = (server[2] / "README.md").read_text()
    commands = [one for one in re.findall(r"```sh\n(.*?)```", readme, re.S) if "curl" in one]
    assert len(commands) == 2
    for command in commands:
        line = command.replace("localhost:8000", server[0])
        shell = ["bash", "-ec", line]
        done = subprocess.run(shell, capture_output=True, text=True, timeout=WAIT, check=True)
        assert '"text_output"' in done.stdout, done
        assert '"error"' not in done.stdout, done
