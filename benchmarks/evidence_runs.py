"""Train everything that claims still wait for on one GPU, in pieces where time is short.

    python -m benchmarks.evidence_runs                             # every study that is not complete, at scale full
    python -m benchmarks.evidence_runs --total-budget 9m --mps     # exit code 3 while something is left: call it again
    python -m benchmarks.evidence_runs less_data bases             # these alone

Up to four runs of a seed are a job of `unsmooth evidence train`, and several jobs go side by side: building and
compiling some models keeps a processor busy while the steps of others keep the GPU busy. ``--mps`` has NVIDIA's
Multi-Process Service run their kernels beside each other, not in turns; it is started for the time of this command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from benchmarks.multi_process_service import multi_process_service
from unsmooth.cli.app import EXIT_NOT_FINISHED, run
from unsmooth.errors import UnsmoothError
from unsmooth.evidence import STUDIES


def main(words: Sequence[str] | None = None) -> int:
    """Study by study; other words go to `unsmooth evidence train`."""
    reader = argparse.ArgumentParser(description="Train what claims still wait for.", allow_abbrev=False)
    reader.add_argument("studies", nargs="*", metavar="STUDY", help="of `unsmooth ls studies`; by default all")
    reader.add_argument("--mps", action="store_true", help="run kernels of several processes beside each other")
    given, more = reader.parse_known_args(words)
    wanted = [STUDIES[name].name for name in given.studies] or list(STUDIES)
    with multi_process_service() if given.mps else nullcontext():
        codes = [run(["evidence", "train", name, "--scale", "full", "--processes", "4", *more]) for name in wanted]
    worst = [code for code in codes if code not in (0, EXIT_NOT_FINISHED)]
    return worst[0] if worst else max(codes)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UnsmoothError as error:
        sys.exit(f"{error}")
