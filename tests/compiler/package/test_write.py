import ast
import errno
import os
from dataclasses import replace

import pytest
import yaml
from google.protobuf import text_format

from dlmc.package.contents import Contents
from dlmc.package.options import PackageOptions
from dlmc.package.write import write_package
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import DlmcError, UsageError
from dlmc_runtime.package.ray_app import DEPLOYMENT
from dlmc_runtime.package.record import read_package
from dlmc_runtime.package.triton_model import INPUTS, OUTPUTS, read_options

TARGET = "onnxruntime-cpu"


@pytest.fixture
def write(tiny_built, tmp_path):
    def make(form="triton", **given):
        output = tmp_path / "out"
        write_package(PackageOptions(tiny_built, form, output, TARGET, "tiny", **given))
        return output

    return make


def parsed(root):
    config = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="it is not installed")
    text = (root / "tiny" / "config.pbtxt").read_text()
    return text_format.Parse(text, config.ModelConfig())


def test_a_package_for_triton_is_a_model_repository(write):
    root = write()
    assert {path.name for path in root.iterdir()} == {"README.md", "package.json", "tiny"}
    assert {path.name for path in (root / "tiny" / "1").iterdir()} == {"bundle", "model.py"}
    Bundle.open(root / "tiny" / "1" / "bundle")
    ast.parse((root / "tiny" / "1" / "model.py").read_text())


@pytest.mark.parametrize(
    ("library", "command"),
    [
        ("onnxruntime", None),
        ("onnxruntime-gpu", "'onnxruntime-gpu[cuda,cudnn]' cuda-python"),
        ("openvino", "pip install 'dlmc[openvino]'"),
        ("tensorrt-rtx-cu13", "pip install 'dlmc[tensorrt-rtx]'"),
    ],
)
@pytest.mark.parametrize("form", ["triton", "ray"])
def test_its_readme_installs_the_library_of_its_engine(write, monkeypatch, form, library, command):
    read = Contents.read

    def other(options):
        found = read(options)
        requires = found.record.requires.model_copy(update={"library": library})
        return replace(found, record=found.record.model_copy(update={"requires": requires}))

    monkeypatch.setattr(Contents, "read", other)
    begin, end = "```sh\n", "\n```"
    first, *more = (
        (write(form) / "README.md").read_text().partition(begin)[2].partition(end)[0].splitlines()
    )
    assert first.startswith("pip install --find-links dist 'dlmc[serve]'")
    assert len(more) == (command is not None)
    assert command is None or more[0].endswith(command)


def test_its_configuration_says_what_the_model_does(write):
    config = parsed(write())
    assert (config.name, config.backend, config.max_batch_size) == ("tiny", "python", 0)
    assert config.model_transaction_policy.decoupled
    assert tuple(one.name for one in config.input) == INPUTS
    assert tuple(one.name for one in config.output) == OUTPUTS
    assert all(one.optional for one in config.input)
    (group,) = config.instance_group
    assert group.count == 1
    assert group.kind == group.KIND_CPU
    given = {key: {"string_value": one.string_value} for key, one in config.parameters.items()}
    assert read_options(given)[0] == TARGET


def test_a_path_cannot_write_into_the_configuration(write):
    path = '/srv/"} }\nname: "other" # é'
    config = parsed(write(environment=path))
    assert config.name == "tiny"
    assert config.parameters["EXECUTION_ENV_PATH"].string_value == path


def test_a_package_for_ray_is_an_application(write):
    root = write("ray")
    assert {path.name for path in root.iterdir()} == {
        "README.md",
        "app.py",
        "bundle",
        "package.json",
        "serve.yaml",
    }
    config = yaml.safe_load((root / "serve.yaml").read_text())
    (application,) = config["applications"]
    assert (application["name"], application["import_path"]) == ("tiny", "app:app")
    (deployment,) = application["deployments"]
    assert deployment["name"] == DEPLOYMENT
    assert deployment["ray_actor_options"]["num_gpus"] == 0
    assert config["http_options"]["host"] == "127.0.0.1"
    assert read_package(root).format == "ray"


def test_replicas_have_the_environment_of_ray(write):
    with pytest.raises(UsageError, match="--environment says nothing to ray"):
        write("ray", environment="/env")


@pytest.mark.parametrize("form", ["triton", "ray"])
def test_what_is_there_is_replaced_only_if_asked_for(write, form):
    root = write(form)
    (root / "mine").write_text("")
    with pytest.raises(UsageError, match="--force"):
        write(form)
    assert (root / "mine").exists()
    write(form, force=True)
    assert not (root / "mine").exists()


def test_force_deletes_nothing_that_is_no_package(write, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years")
    with pytest.raises(UsageError, match="not a package"):
        write(force=True)
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years"


def test_a_full_disk_leaves_nothing(write, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(DlmcError, match=r"cannot write the package .*No space left"):
        write()
    assert list(tmp_path.iterdir()) == []
