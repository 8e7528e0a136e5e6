from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from tests.remedies.distributed import distributed_cases, run_distributed
from tests.remedies.harness import Case, outputs
from tests.remedies.hosts import BY_NAME
from tests.remedies.settings import SETTINGS
from tests.remedies.test_bad_input import refused
from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.models import find_anatomy
from unsmooth.remedies.verbs import applied


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_steps_under_ddp_and_fsdp2(tmp_path: Path, half: int) -> None:
    # One setting of every other remedy, on an encoder and on a decoder by turns; the matrix has them all.
    able: dict[str, list[Case]] = {}
    for case in distributed_cases(own=False):
        able.setdefault(case.remedy, []).append(case)
    chosen = [cases[turn // 2 % 2 if len(cases) > 1 else 0] for turn, cases in enumerate(able.values())]
    for remedy, host in (("deescalate", "own_encoder_peri"), ("sharpen", "own_decoder_relative")):
        chosen.append(Case(remedy, next(iter(SETTINGS[remedy])), BY_NAME[host]))
    chosen = chosen[half::2]
    found = run_distributed(tmp_path, chosen)
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


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(("remedy", "host"), [("sharpen", "own_decoder_relative"), ("residual_scaling", "own_vit")])
def test_a_sharded_model_is_undone_and_folded_by_way_of_a_whole_one(remedy: str, host: str) -> None:
    case = Case(remedy, next(iter(SETTINGS[remedy])), BY_NAME[host])
    model, whole = case.remedied(), case.remedied(trained=False, seed=1)
    remedies.apply(model, "deescalate", layers=[0], tau=0.5)
    for block in find_anatomy(model).blocks.values():
        torch.distributed.fsdp.fully_shard(block)
    torch.distributed.fsdp.fully_shard(model)
    wanted = outputs(case, model)
    for change in (remedies.undo, remedies.fold):
        with pytest.raises(UnsmoothError, match=r"got sharded ones\. Try a model that is not sharded"):
            change(model)
        assert len(applied(model)) == 2  # though the one applied last could have gone
        assert torch.equal(outputs(case, model), wanted)
    remedies.apply(whole, "deescalate", layers=[0], tau=0.5)
    gathered = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    whole.load_state_dict(gathered, strict=True)
    torch.testing.assert_close(outputs(case, whole), wanted, atol=1e-5, rtol=1e-5)
    assert applied(remedies.undo(whole)) == []
