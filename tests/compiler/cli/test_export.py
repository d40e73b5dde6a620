"""Flags, sentences and exit codes. One export is real; the rest stop before the trace."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dlmc.export.options import ExportOptions
from dlmc.export.pipeline import plan_export
from dlmc_runtime.bundle import Bundle


@pytest.fixture
def source(goldens: Path) -> str:
    return str(goldens / "sdar")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "bundle"


@pytest.fixture
def asked(monkeypatch) -> list[ExportOptions]:
    """The options of every export; plans are made, bundles are not."""
    seen: list[ExportOptions] = []

    def export(options, announce):
        seen.append(options)
        announce(plan_export(options))
        return options.output

    monkeypatch.setattr("dlmc.export.pipeline.export_checkpoint", export)
    return seen


def test_makes_a_bundle(dlmc, source, output):
    done = dlmc("export", source, "-o", str(output), "--no-tokenizer")
    assert done.status == 0
    assert done.out == f"exported; next: dlmc build {output}\n"
    assert "family      sdar (SDARForCausalLM)" in done.err
    assert Bundle.open(output).manifest.family == "sdar"


def test_every_flag_reaches_the_export(dlmc, source, output, asked):
    flags = "--mask-id 3 --block-length 8 --shift 1 --candidates 9 --suppress 4 --suppress 5"
    more = "--family sdar --attention context --emit-logits --no-weights --no-tokenizer --force"
    done = dlmc("export", source, "-o", str(output), *flags.split(), *more.split())
    assert done.status == 0
    assert asked == [
        ExportOptions(
            source=source,
            output=output,
            family="sdar",
            mask_id=3,
            block_length=8,
            attention="context",
            shift=1,
            candidates=9,
            variant="logits",
            suppress=(4, 5),
            weights=False,
            tokenizer=False,
            force=True,
        )
    ]
    assert done.out == f"exported without weights: {output}\n"


def test_a_head_can_be_guided(dlmc, source, output, asked):
    done = dlmc("export", source, "-o", str(output), "--no-tokenizer", "--guided")
    assert done.status == 0
    assert asked[0].variant == "guided"
    assert "guided, " in done.err


def test_a_guided_head_emits_no_logits(dlmc, source, output, asked):
    done = dlmc("export", source, "-o", str(output), "--guided", "--emit-logits")
    assert done.status == 2
    assert "--guided does not --emit-logits: export two bundles" in done.err
    assert asked == []


def test_shows_the_effective_configuration_first(dlmc, source, output, asked):
    done = dlmc("export", source, "-o", str(output), "--no-tokenizer", "--suppress", "4")
    rows = dict(line.split(None, 1) for line in done.err.splitlines())
    assert rows["source"] == "sdar"
    assert rows["regime"] == "block, blocks of 4, shift 0"
    assert rows["parameters"] == "102,784"
    assert rows["tokens"] == "mask 316, stop 313+311, pad 311, suppressed 4+316"
    assert rows["profiles"] == "1x4 over 512, 4 rows; 1x256 over 512, 1 rows"
    assert rows["weights"].startswith("411 kB of F32 in 1 file")
    assert rows["output"] == str(output)


def test_an_adapter(dlmc, goldens, output, asked):
    source = str(goldens / "nemotron_labs_diffusion")
    line = ("export", source, "-o", str(output), "--no-tokenizer", "--adapter", "linear_spec_lora")
    done = dlmc(*line, "--json")
    assert "adapter     rank 128, scale 4" in done.err
    assert done.json["adapter_rank"] == 128
    assert "weights/adapter_model.safetensors" in done.json["weights"]
    assert asked[0].adapter == "linear_spec_lora"
    assert "there is no adapter lora" in dlmc(*line[:-1], "lora").err


def test_warnings_are_shown(dlmc, source, output, asked):
    line = ("export", source, "-o", str(output), "--no-tokenizer", "--suppress", "311")
    done = dlmc(*line, "--suppress", "313")
    assert "dlmc: warning: the stop ids [311, 313] are suppressed" in done.err
    assert dlmc(*line, "--json").json["warnings"]


def test_a_dry_run_writes_nothing(dlmc, source, output):
    done = dlmc("export", source, "-o", str(output), "--no-tokenizer", "--dry-run")
    assert done.status == 0
    assert done.out == f"would export to {output}\n"
    assert list(output.parent.iterdir()) == []


def test_json(dlmc, source, output):
    done = dlmc("export", source, "-o", str(output), "--no-tokenizer", "--dry-run", "--json")
    assert done.json["exported"] is False
    assert done.json["profiles"][0] == {"batch": 1, "block": 4, "cache": 512, "rows": 4}
    assert done.json["weights"] == ["weights/model.safetensors"]
    assert done.json["parameters"] == 102_784


def test_a_recipe_without_a_checkpoint(dlmc, output):
    bare = ("--no-weights", "--no-tokenizer", "--dry-run", "--json")
    done = dlmc("export", "--recipe", "llada-8b-instruct", "-o", str(output), *bare)
    assert done.status == 0
    assert done.json["parameters"] == 8_015_581_184
    assert done.json["source"] == "GSAI-ML/LLaDA-8B-Instruct"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("{source}",), 2, "missing option"),
        (("-o", "{output}"), 2, "nothing to export: give a checkpoint or a --recipe"),
        (("{source}", "-o", "{output}"), 1, "no tokenizer.json"),
        (("nowhere", "-o", "{output}"), 2, "neither a folder nor a hub id"),
        (("{source}", "-o", "{output}", "--no-tokenizer", "--mask-id", "320"), 2, "--mask-id 320"),
        (("{source}", "-o", "{output}", "--no-tokenizer", "--suppress", "x"), 2, "valid integer"),
        (("{source}", "-o", "{output}", "--no-tokenizer", "--shift", "2"), 2, "--shift 2"),
        (("{source}", "-o", "{parent}", "--no-tokenizer"), 2, "exists"),
        (("{parent}", "-o", "{output}"), 1, "no config.json"),
        (("{source}", "-o", "{output}", "--recipe", "llada-8b"), 2, "no recipe"),
        (("{source}", "-o", "{output}", "--no-tokenizer", "--recipe", "llada-1.5"), 2, "is for"),
    ],
)
def test_mistakes_are_one_sentence(dlmc, source, output, arguments, status, words):
    places = {"source": source, "output": output, "parent": output.parent}
    done = dlmc("export", *(one.format(**places) for one in arguments))
    assert done.status == status
    assert done.err.startswith("dlmc: error: ")
    assert done.err.count("\n") == 1
    assert words in done.err
    assert not output.exists()


def test_damaged_weights_are_one_sentence(dlmc, source, output, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("config.json", "model.safetensors"):
        (broken / name).write_bytes((Path(source) / name).read_bytes()[:5000])
    done = dlmc("export", str(broken), "-o", str(output), "--no-tokenizer")
    assert done.status == 1
    assert "truncated" in done.err
    assert not output.exists()


def test_an_unknown_architecture_is_one_sentence(dlmc, source, output, tmp_path):
    config = json.loads((Path(source) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2"]}))
    done = dlmc("export", str(tmp_path), "-o", str(output), "--no-weights", "--no-tokenizer")
    assert done.status == 1
    assert "unknown architecture 'GPT2'" in done.err


def test_the_verb_imports_nothing_heavy():
    code = (
        "import sys, dlmc.cli.export;"
        "sys.exit(bool({'torch', 'onnx', 'onnx_ir', 'numpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
