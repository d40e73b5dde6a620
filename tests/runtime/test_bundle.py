"""Opening bundles, and what hostile ones end in: one `DlmcError`, whatever was done to them."""

import json
import os
import shutil
from contextlib import suppress

import handmade
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealing import reseal

from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime.bundle import Bundle, check_files, sha256_of
from dlmc_runtime.errors import BundleError, DlmcError
from dlmc_runtime.generate import Generator
from dlmc_runtime.record import FileRecord

TARGET = "onnxruntime-cpu"
ENGINE = f"engines/{TARGET}/engine.json"
LISTED = ("config.json", "denoiser.onnx", handmade.WEIGHTS)
FILES = (*LISTED, "manifest.json", ENGINE)


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    return handmade.bind(handmade.write(tmp_path_factory.mktemp("original") / "bundle"))


@pytest.fixture
def root(original, tmp_path):
    """A copy to be damaged."""
    return shutil.copytree(original, tmp_path / "bundle")


def generate(root):
    with Generator.load(root, TARGET) as generator:
        return generator.run([generator.request([1, 2, 3], max_new_tokens=4)])[0].tokens


def refusal(root):
    """Load a damaged bundle; return the one sentence it ends in."""
    with pytest.raises(DlmcError) as caught:
        generate(root)
    assert caught.value.exit_code == 1
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_whole_bundle_loads(root):
    bundle = Bundle.open(root)
    assert bundle.manifest.family == "handmade"
    assert bundle.manifest_sha256 == sha256_of(root / "manifest.json")
    assert bundle.engine_names() == [TARGET]
    assert bundle.engine(TARGET).profiles == handmade.PROFILES
    assert generate(root) == tuple(handmade.TABLE[3:7])


def test_hashes_can_be_left_for_later_but_sizes_and_paths_cannot(root):
    weights = root / handmade.WEIGHTS
    weights.write_bytes(bytes(len(weights.read_bytes())))
    assert Bundle.open(root, hashes=False).manifest.weights == (handmade.WEIGHTS,)
    with pytest.raises(BundleError, match="another hash"):
        Bundle.open(root)
    weights.write_bytes(b"")
    with pytest.raises(BundleError, match="has 0 bytes, the manifest says 512"):
        Bundle.open(root, hashes=False)


def test_a_bundle_without_weights_opens_but_does_not_run(root):
    handmade.rebind(handmade.seal(root, weights=()))
    assert Bundle.open(root).manifest.weights == ()
    assert "has no weights: export it without --no-weights" in refusal(root)


def test_an_engine_that_was_not_built_names_the_command_and_what_there_is(root):
    with pytest.raises(BundleError, match=rf"dlmc build .* --target other \(built here: {TARGET}"):
        Bundle.open(root).engine("other")
    shutil.rmtree(root / "engines")
    assert f"run dlmc build {root} --target {TARGET} (built here: none)" in refusal(root)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(root, name):
    (root / name).unlink()
    assert name in refusal(root)


@pytest.mark.parametrize("name", FILES)
def test_a_file_may_not_be_something_else(root, name):
    (root / name).unlink()
    (root / name).mkdir()
    assert name in refusal(root)


@pytest.mark.parametrize("name", LISTED)
def test_a_pipe_is_not_waited_for(root, name):
    (root / name).unlink()
    os.mkfifo(root / name)
    assert f"{name} is missing" in refusal(root)


@pytest.mark.parametrize("name", LISTED)
def test_a_link_may_not_lead_out_of_the_bundle(root, tmp_path, name):
    outside = tmp_path / "outside"
    (root / name).rename(outside)  # the very same bytes
    (root / name).symlink_to(outside)
    assert f"{name} leads out of the bundle" in refusal(root)


def test_a_folder_may_not_lead_out_of_the_bundle(root, tmp_path):
    (root / "weights").rename(tmp_path / "outside")
    (root / "weights").symlink_to(tmp_path / "outside")
    assert "leads out of the bundle" in refusal(root)


def test_links_inside_the_bundle_are_fine(root, tmp_path):
    (root / "config.json").rename(root / "other.json")
    (root / "config.json").symlink_to("other.json")
    (tmp_path / "elsewhere").symlink_to(root)
    assert generate(tmp_path / "elsewhere") == tuple(handmade.TABLE[3:7])


@pytest.mark.parametrize("name", FILES)
def test_links_in_a_circle_are_refused(root, name):
    (root / name).unlink()
    (root / name).symlink_to((root / name).name)
    assert name.rpartition("/")[2] in refusal(root)


def test_a_path_no_file_system_takes_is_refused(root):
    files = Bundle.open(root).manifest.files
    with pytest.raises(BundleError, match="cannot be read"):
        check_files(root, {"x" * 5000: next(iter(files.values()))})


def test_a_file_that_cannot_be_read_is_refused(root, monkeypatch):
    def fail(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("dlmc_runtime.bundle.sha256_of", fail)
    assert "cannot be read" in refusal(root)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_refused(root, name, keep):
    data = (root / name).read_bytes()
    (root / name).write_bytes(data[: int(len(data) * keep)])
    assert name in refusal(root)


@settings(max_examples=60, derandomize=True)
@given(st.data())
def test_a_flipped_bit_is_found(original, tmp_path_factory, data):
    name = data.draw(st.sampled_from(FILES))
    content = bytearray((original / name).read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    root = tmp_path_factory.mktemp("flipped") / "bundle"
    shutil.copytree(original, root)
    (root / name).write_bytes(content)
    # Nothing vouches for an engine record: it may have changed where nobody looks.
    with suppress(DlmcError) if name == ENGINE else pytest.raises(DlmcError):
        generate(root)
    shutil.rmtree(root)


@pytest.mark.parametrize("name", ["manifest.json", ENGINE])
def test_a_newer_schema_says_what_to_do(root, name):
    path = root / name
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 3}))
    assert "schema version 3, this dlmc reads 2: upgrade dlmc" in refusal(root)


def test_the_engine_of_another_bundle_is_refused(root, tmp_path):
    other = handmade.bind(handmade.write(tmp_path / "other", max_new_tokens=17))
    shutil.copy(other / ENGINE, root / ENGINE)
    assert "was built from another bundle: run dlmc build" in refusal(root)


def test_the_engine_of_another_target_is_refused(root):
    record = root / ENGINE
    record.write_text(record.read_text().replace(TARGET, "tensorrt"))
    assert "was built from another bundle" in refusal(root)


def test_a_bundle_exported_again_needs_a_new_engine(root):
    handmade.seal(root, max_new_tokens=17)
    assert "was built from another bundle" in refusal(root)
    build_engine(plan_build(root, TARGET, ProfileRequest()))
    assert generate(root) == tuple(handmade.TABLE[3:7])


def test_a_plan_nobody_vouches_for_is_refused(root):
    shutil.copy(root / "denoiser.onnx", root / "evil.onnx")
    handmade.rebind(root, plan="evil.onnx")
    assert "states no size and hash of evil.onnx" in refusal(root)


def test_a_plan_of_its_own_is_checked(root):
    shutil.copy(root / "denoiser.onnx", root / "plan.onnx")
    data = (root / "plan.onnx").read_bytes()
    record = {"size": len(data), "sha256": sha256_of(root / "plan.onnx")}
    handmade.rebind(root, plan="plan.onnx", files={"plan.onnx": record})
    assert generate(root) == tuple(handmade.TABLE[3:7])
    (root / "plan.onnx").write_bytes(data[::-1])
    assert "plan.onnx" in refusal(root)
    assert "another hash" in refusal(root)


def test_a_record_of_a_huge_profile_ends_in_one_sentence(root):
    for batch, cache in ((1 << 40, 24), (1, 1 << 40), (1 << 40, 1 << 40)):
        profile = {"batch": batch, "block": 8, "cache": cache, "rows": 8}
        handmade.rebind(root, profiles=[profile])
        assert "no memory" in refusal(root)


@pytest.mark.parametrize(
    "location", ["../outside", "/outside", "weights/../../outside", "unlisted", "config.json"]
)
def test_a_graph_reads_only_the_weights_of_its_manifest(root, tmp_path, location):
    """A bundle consistent in itself whose graph reads a file that is none of its business."""
    for folder in (root, tmp_path):
        (folder / "outside").write_bytes(handmade.TABLE[::-1].tobytes())
        (folder / "unlisted").write_bytes(handmade.TABLE[::-1].tobytes())
    location = str(tmp_path / "outside") if location == "/outside" else location
    (root / "denoiser.onnx").write_bytes(handmade.graph(location).SerializeToString())
    handmade.rebind(handmade.seal(root))
    assert f"reads {location!r}, which is not listed as weights" in refusal(root)


def test_an_interrupted_export_is_refused_although_it_is_whole(root):
    partial = root.rename(root.with_name(".bundle.partial-x1y2"))
    assert "was interrupted" in refusal(partial)


def test_weights_behind_a_link_stay_inside_the_bundle(root, tmp_path):
    (root / handmade.WEIGHTS).rename(tmp_path / "outside")
    (root / handmade.WEIGHTS).symlink_to(tmp_path / "outside")
    handmade.rebind(handmade.seal(root))
    assert "leads out of the bundle" in refusal(root)


def damage_graph(root, change):
    data = (root / "denoiser.onnx").read_bytes()
    (root / "denoiser.onnx").write_bytes(change(data))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda root: damage_graph(root, lambda data: b""), "ONNX Runtime"),
        (lambda root: damage_graph(root, lambda data: data[:-40]), "cut off"),
        (lambda root: damage_graph(root, lambda data: data[: len(data) // 2]), "cut off"),
        (lambda root: damage_graph(root, lambda data: data[::-1]), "cut off"),
        (lambda root: damage_graph(root, lambda data: b"\x80\x04K\x01."), "cut off"),
        (lambda root: (root / handmade.WEIGHTS).write_bytes(b""), "ONNX Runtime"),
        (
            lambda root: (root / handmade.WEIGHTS).write_bytes(handmade.TABLE.tobytes()[:-8]),
            "ONNX Runtime",
        ),
    ],
    ids=["empty", "cut", "halved", "reversed", "pickle", "no weights", "cut weights"],
)
def test_damage_with_a_manifest_to_match_ends_in_one_sentence(root, damage, words):
    damage(root)
    handmade.rebind(handmade.seal(root))
    assert words in refusal(root)


@settings(max_examples=40, derandomize=True)
@given(st.data())
def test_any_bytes_with_a_manifest_to_match_end_in_one_sentence(original, tmp_path_factory, data):
    """Whatever the graph says, the runtime answers or refuses."""
    content = bytearray((original / "denoiser.onnx").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    root = tmp_path_factory.mktemp("bytes") / "bundle"
    shutil.copytree(original, root)
    (root / "denoiser.onnx").write_bytes(content)
    handmade.rebind(handmade.seal(root))
    with suppress(DlmcError):
        generate(root)
    shutil.rmtree(root)


def test_files_are_checked_against_their_records(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    good = FileRecord(size=3, sha256=sha256_of(tmp_path / "a"))
    check_files(tmp_path, {"a": good})
    with pytest.raises(BundleError, match="has 3 bytes, the manifest says 4"):
        check_files(tmp_path, {"a": FileRecord(size=4, sha256=good.sha256)})
    with pytest.raises(BundleError, match="another hash"):
        check_files(tmp_path, {"a": FileRecord(size=3, sha256="0" * 64)})
    with pytest.raises(BundleError, match="b is missing"):
        check_files(tmp_path, {"a": good, "b": good})


@pytest.mark.parametrize("name", ["denoiser.onnx", handmade.WEIGHTS])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "link out"])
def test_damage_to_an_engine_s_own_files_is_found(tmp_path, name, damage):
    """`dlmc build` gives an engine files of its own, beside those of the bundle."""
    root = handmade.write(tmp_path / "bundle")
    record = build_engine(plan_build(root, TARGET, ProfileRequest()))
    path = root / "engines" / TARGET / name
    assert path.relative_to(root).as_posix() in record.files
    assert generate(root) == tuple(handmade.TABLE[3:7])
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "link out":
        (tmp_path / "outside").write_bytes(data)
        path.symlink_to(tmp_path / "outside")
    words = {"flip": "another hash", "cut": "bytes, the", "remove": "missing", "link out": "out of"}
    assert words[damage] in refusal(root)


def test_an_engine_s_graph_reads_only_files_of_its_record(tmp_path):
    root = handmade.write(tmp_path / "bundle")
    build_engine(plan_build(root, TARGET, ProfileRequest()))
    plan = root / "engines" / TARGET / "denoiser.onnx"
    plan.write_bytes(handmade.graph("../../config.json").SerializeToString())
    reseal(root)
    assert "reads 'engines/onnxruntime-cpu/../../config.json', which is not listed" in refusal(root)


def test_a_short_name_means_the_only_engine_of_its_target(root):
    other = root / "engines" / f"{TARGET}-int8"
    (root / "engines" / TARGET).rename(other)
    assert Bundle.open(root).engine_name(TARGET) == other.name
    assert generate(root) == tuple(handmade.TABLE[3:7])
    shutil.copytree(other, other.with_name(f"{TARGET}-int4"))
    assert f"several engines for {TARGET}: name one of {TARGET}-int4, " in refusal(root)
    shutil.copytree(other, other.with_name(TARGET))
    assert Bundle.open(root).engine_name(TARGET) == TARGET
    assert Bundle.open(root).engine_name("nothing") == "nothing"
