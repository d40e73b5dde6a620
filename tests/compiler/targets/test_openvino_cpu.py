import handmade
import openvino
import pytest

from dlmc.targets import openvino_cpu
from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.options import BuildOptions
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime.generate import Generator


def planned(root, **options):
    return plan_build(root, "openvino-cpu", ProfileRequest(), BuildOptions(**options))


def test_the_bundle_s_own_graph_is_the_plan(tmp_path):
    plan = planned(handmade.write(tmp_path / "bundle"))
    built = openvino_cpu.build(plan, tmp_path / "engine")
    assert built.plan is None  # there is one copy of everything
    assert (built.device, built.cache_dtype, built.options) == ("cpu", "float32", {})
    assert built.requires.library == "openvino"
    assert built.requires.match == "any"
    assert openvino.__version__.startswith(built.versions["openvino"])
    assert not (tmp_path / "engine").exists()


def test_a_model_cache_is_an_option_of_the_engine(tmp_path):
    plan = planned(handmade.write(tmp_path / "bundle"), model_cache=True)
    assert openvino_cpu.build(plan, tmp_path / "engine").options == {"model_cache": "true"}


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", ["tiny-llada", "tiny-sdar"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_every_choice_adds_up(tiny_bundle, checkpoint, precision, quantization):
    """The shipped checkpoints still know what they were trained for."""
    root = tiny_bundle(checkpoint)
    plan = planned(root, precision=precision, quantization=quantization)
    record = build_engine(plan)
    assert (record.precision, record.quantization) == (precision, quantization)
    with Generator.load(root, plan.name) as generator:
        assert generator.text is not None
        chat = generator.text.chat([{"role": "user", "content": "458+386=?"}])
        assert generator.generate(chat).text.endswith("844")
