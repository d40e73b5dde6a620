import json

import pytest

TARGET = "onnxruntime-cpu"


@pytest.mark.parametrize("form", ["triton", "ray"])
def test_a_package_is_made(dlmc, tiny_built, tmp_path, form):
    output = tmp_path / "out"
    outcome = dlmc("package", str(tiny_built), "--format", form, "-o", str(output))
    assert (outcome.status, outcome.err) == (0, "")
    first, second = outcome.out.splitlines()
    assert first.startswith(f"packaged {TARGET} for {form}, ")
    assert second == f"next: {output / 'README.md'}"
    assert json.loads((output / "package.json").read_text())["format"] == form


def test_json_says_what_was_made(dlmc, tiny_built, tmp_path):
    output = tmp_path / "out"
    arguments = ("--format", "ray", "-o", str(output), "--name", "small", "--json")
    report = dlmc("package", str(tiny_built), *arguments).json
    total = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    assert report == {
        "format": "ray",
        "name": "small",
        "target": TARGET,
        "output": str(output),
        "bytes": total,
    }


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (("--format", "torch"), 2, "choose one of triton, ray"),
        (("--format", "ray", "--name", "a/b"), 2, "cannot name a model"),
        (("--format", "ray", "--environment", "x"), 2, "says nothing to ray"),
        (("--format", "ray", "--target", "tensorrt"), 1, "dlmc build"),
        ((), 2, "--format"),
    ],
)
def test_what_cannot_be_packaged_is_one_sentence(
    dlmc, tiny_built, tmp_path, arguments, status, sentence
):
    outcome = dlmc("package", str(tiny_built), "-o", str(tmp_path / "out"), *arguments)
    assert outcome.status == status
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
