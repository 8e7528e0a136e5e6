from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.remedies.distributed import distributed_cases, run_distributed
from tests.remedies.hosts import BY_NAME
from tests.remedies.test_bad_input import refused
from unsmooth import remedies
from unsmooth.errors import UnsmoothError


def test_steps_under_ddp_and_fsdp2(tmp_path: Path) -> None:
    # One encoder setting and one decoder setting of every remedy; the matrix has them all.
    chosen = {(case.remedy, case.host.name): case for case in reversed(distributed_cases())}
    found = run_distributed(tmp_path, list(chosen.values()))
    failed = [
        f"{key}, {words}: {outcome.reason}"
        for key, outcomes in found.items()
        for words, outcome in outcomes.items()
        if outcome.status != "pass"
    ]
    assert not failed, "\n".join(failed)
    assert sum(map(len, found.values())) == 2 * len(chosen)


@pytest.fixture
def one_process(tmp_path: Path):
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_apply_comes_before_wrapping() -> None:
    wrapped = torch.nn.parallel.DistributedDataParallel(BY_NAME["bert"].model())
    refused(wrapped, "deescalate", "not wrapped yet but got DistributedDataParallel")
    sharded = BY_NAME["bert"].model()
    torch.distributed.fsdp.fully_shard(sharded)
    with pytest.raises(UnsmoothError, match="whole weights but got sharded ones"):
        remedies.apply(sharded, "deescalate")
    assert not any("unsmooth" in name for name, _ in sharded.named_modules())
