"""Measure the export of the full LLaDA-8B shape from its configuration alone.

    python benchmarks/export_memory.py

Runs `dlmc export --no-weights` in a process of its own and reports its wall time, its peak
resident memory and the bytes of the bundle.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import Table, parser, report

# config.json of GSAI-ML/LLaDA-8B-Instruct, as far as it describes the network.
LLADA_8B = {
    "architectures": ["LLaDAModelLM"],
    "model_type": "llada",
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 32,
    "mlp_hidden_size": 12288,
    "vocab_size": 126464,
    "embedding_size": 126464,
    "max_sequence_length": 4096,
    "rope": True,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "block_type": "llama",
    "include_bias": False,
    "include_qkv_bias": False,
    "weight_tying": False,
    "scale_logits": False,
    "alibi": False,
    "attention_layer_norm": False,
    "mask_token_id": 126336,
    "eos_token_id": 126081,
    "pad_token_id": 126081,
}


def export(checkpoint: Path, bundle: Path) -> tuple[float, int]:
    """Export in a child process; return its wall time in seconds and peak memory in bytes."""
    program = str(Path(sys.executable).with_name("dlmc"))
    command = [program, "export", str(checkpoint), "-o", str(bundle)]
    command += ["--no-weights", "--no-tokenizer"]
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"dlmc export exited with {child.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - began, usage.ru_maxrss * unit


def main() -> None:
    """Export once and print the table."""
    arguments = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, bundle = Path(folder, "llada-8b"), Path(folder, "bundle")
        checkpoint.mkdir()
        (checkpoint / "config.json").write_text(json.dumps(LLADA_8B), encoding="utf-8")
        seconds, peak = export(checkpoint, bundle)
        written = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    columns = ("shape", "seconds", "peak memory MB", "written MB")
    row = ("LLaDA-8B", seconds, peak / 1e6, written / 1e6)
    report(Table("export_memory", columns, (row,)), arguments.json)


if __name__ == "__main__":
    main()
