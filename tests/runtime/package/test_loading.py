import pytest

from dlmc_runtime.errors import BundleError
from dlmc_runtime.package import loading
from dlmc_runtime.scheduler import Limits
from dlmc_runtime.serve.settings import Settings


def test_a_bundle_becomes_an_application(tiny_built):
    settings = Settings(request_seconds=7.0)
    app = loading.load_app(tiny_built, "tiny", "onnxruntime-cpu", Limits(queue=3), settings)
    (served,) = loading.loaded(app)
    assert served.name == "tiny"
    assert served.generator.manifest.family == "sdar"
    assert app.state.site.settings is settings
    loading.close(app)


def test_a_bundle_without_the_engine_is_refused(tiny_built):
    with pytest.raises(BundleError, match="dlmc build"):
        loading.load_app(tiny_built, "tiny", "tensorrt", Limits(), Settings())
