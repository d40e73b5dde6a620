"""What the processor that runs the tests can do."""

from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
HAS_BFLOAT16 = _CPUINFO.exists() and "_bf16" in _CPUINFO.read_text(encoding="utf-8")
"""Whether it multiplies bfloat16 (AVX512_BF16 or AMX): OpenVINO computes otherwise without."""
