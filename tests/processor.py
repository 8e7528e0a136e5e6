"""What a processor announces and may not do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

_MULTIPLY = "import torch; one = torch.ones(64, 64, dtype=torch.bfloat16); one @ one"


def leave_out_what_is_only_announced() -> None:
    """Keep oneDNN from AMX on a virtual machine that announces it and does not allow it.

    Every product in bfloat16 would end the process with an illegal instruction. Processes started later inherit this.
    """
    processor = Path("/proc/cpuinfo")
    if "ONEDNN_MAX_CPU_ISA" in os.environ or not processor.exists() or "amx_tile" not in processor.read_text():
        return
    tried = subprocess.run([sys.executable, "-c", _MULTIPLY], capture_output=True)
    if tried.returncode == -signal.SIGILL:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"
