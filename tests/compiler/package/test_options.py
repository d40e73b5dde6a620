import string
from pathlib import Path

import pytest
from hypothesis import given, strategies

from dlmc.package.options import FORMATS, PackageOptions, model_name, parse_format
from dlmc_runtime.errors import UsageError


def options(bundle="bundles/tiny", **given):
    return PackageOptions(Path(bundle), "ray", Path("out"), "onnxruntime-cpu", **given)


def test_a_model_is_called_like_its_bundle():
    assert model_name(options()) == "tiny"
    assert model_name(options(name="Large-1.0_x")) == "Large-1.0_x"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", 'a"b', "a\nb", "a\n", "-a", "é", "x" * 65, "a{b"]
)
def test_other_names_are_refused(name):
    with pytest.raises(UsageError, match="cannot name a model: give --name"):
        model_name(options(name=name))


@given(strategies.text(min_size=1))
def test_a_name_has_nothing_that_could_steer_a_file(name):
    try:
        found = model_name(options(name=name))
    except UsageError:
        return
    assert set(found) <= set(string.ascii_letters + string.digits + "._-")
    assert found[0] not in "._-"


def test_formats_are_parsed():
    assert [parse_format(name) for name in FORMATS] == list(FORMATS)
    with pytest.raises(UsageError, match="choose one of triton, ray"):
        parse_format("torch")
