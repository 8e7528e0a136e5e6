from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from unsmooth.errors import UnsmoothError
from unsmooth.models import weight_hash
from unsmooth.models.fingerprint import add_tensor, hashing


def digest(tensor: Tensor) -> str:
    made = hashlib.sha256()
    add_tensor(made, "name", tensor)
    return made.hexdigest()


def written_out(model: nn.Module) -> str:
    """The hash as its definition has it."""
    made = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        made.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        made.update(hashlib.sha256(bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())).digest())
    return made.hexdigest()


class Tied(nn.Module):
    """Weights below and above the size at which threads take them; two share their memory, one has an odd layout."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(300, 200, dtype=torch.bfloat16)
        self.other = nn.Linear(200, 300, bias=False)
        self.other.weight = nn.Parameter(torch.randn(200, 300).t())
        self.tied = nn.Linear(200, 300, bias=False)
        self.tied.weight = self.other.weight
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("empty", torch.zeros(0, 4))


def test_hash_is_the_one_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Tied()
    expected = written_out(model)
    assert weight_hash(model) == expected
    monkeypatch.setattr("unsmooth.models.fingerprint._CHUNK", 1000)
    assert weight_hash(model) == expected


def test_every_change_shows() -> None:
    plain = torch.randn(700, 384, generator=torch.Generator().manual_seed(0))
    swapped, negated, moved, far, turned = (plain.clone() for _ in range(5))
    swapped[[3, 4]] = plain[[4, 3]]
    negated[699, 383] *= -1
    moved[0, :2] = plain[0, [1, 0]]
    # Words 1,021 apart, and the rows of groups of 64, which sums of such words would not tell apart.
    far.view(-1)[[0, 2 * 1021]] = plain.view(-1)[[2 * 1021, 0]]
    turned[:64] = plain[:64].flip(0)
    different = (plain, swapped, negated, moved, far, turned, plain.T, plain.flatten(), plain.view(torch.int32))
    assert len({digest(one) for one in different}) == len(different)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.bool])
def test_how_a_tensor_lies_in_memory_does_not_show(dtype: torch.dtype) -> None:
    plain = torch.randn(90, 102, generator=torch.Generator().manual_seed(0)).to(dtype)
    beside = torch.cat([plain.new_zeros(1), plain.flatten()])[1:].view_as(plain)
    spread = plain.repeat_interleave(2, dim=1)[:, ::2]
    assert digest(plain) == digest(beside) == digest(plain.T.contiguous().T) == digest(spread)


def test_names_and_shapes_count() -> None:
    one, other = nn.Sequential(nn.Linear(2, 1)), nn.ModuleDict({"a": nn.Linear(2, 1)})
    other["a"].load_state_dict(one[0].state_dict())
    assert weight_hash(one) != weight_hash(other)
    assert weight_hash(one) == weight_hash(torch.compile(one))  # type: ignore[arg-type]


def test_what_changes_meanwhile_does_not_show() -> None:
    model = Tied()
    before = weight_hash(model)
    with hashing(model) as result:
        model.count += 1  # a buffer of a few bytes, as a pass may
        model.to(torch.float64)  # new tensors, as after a scan on another device
        assert result() == before


def test_a_scan_and_its_files_have_the_hash_and_say_of_what_it_is(tmp_path: Path) -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 2, 512, batch_first=True), 2)
    found = unsmooth.scan(encoder, torch.randn(2, 6, 64)[:, ::2], progress=False)
    assert found.manifest["model"]["weights_sha256"] == written_out(encoder)
    found.save(tmp_path)
    assert "SHA-256 of each tensor" in unsmooth.load_scan(tmp_path).manifest["model"]["weights_sha256_of"]


def test_a_model_on_meta_is_refused() -> None:
    with pytest.raises(UnsmoothError, match=r"^Expected a model with weights but got bias on the meta device"):
        weight_hash(nn.Linear(2, 2, device="meta"))


class Holding(nn.Module):
    """One tensor, however it is kept."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.register_buffer("kept", tensor)


_NUMBERS = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
_COMPLEX = torch.view_as_complex(_NUMBERS.view(6, 4, 2))


@pytest.mark.parametrize(
    ("odd", "plain"),
    [
        (_NUMBERS.relu().to_sparse(), _NUMBERS.relu()),
        (_NUMBERS.to_mkldnn(), _NUMBERS),
        (_COMPLEX.conj(), _COMPLEX.conj().resolve_conj()),
        (_COMPLEX.conj().imag, -_NUMBERS.view(6, 4, 2)[..., 1]),
    ],
    ids=["coo", "mkldnn", "conjugate", "negative"],
)
def test_tensors_that_have_no_plain_memory_are_hashed_by_their_numbers(odd: Tensor, plain: Tensor) -> None:
    assert weight_hash(Holding(odd)) == weight_hash(Holding(plain))
    # A conjugate has the memory of what it is the conjugate of.
    both, twice = nn.ModuleList([Holding(_COMPLEX), Holding(_COMPLEX.conj())]), nn.ModuleList([Holding(_COMPLEX)] * 2)
    assert weight_hash(both) != weight_hash(twice)


@pytest.mark.filterwarnings("ignore")  # torch has called them deprecated, and has them
def test_weights_that_torch_itself_quantised_count() -> None:
    def quantised(scale: float, channels: bool) -> Tensor:
        if channels:
            rows = (torch.full((6,), scale), torch.zeros(6), 0)
            return torch.quantize_per_channel(_NUMBERS * scale, *rows, torch.qint8)
        return torch.quantize_per_tensor(_NUMBERS * scale, scale, 0, torch.qint8)

    def mapped(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8)), {nn.Linear}, dtype=torch.qint8)

    # The first four have the same whole numbers: scales tell them apart.
    models = [Holding(quantised(scale, channels)) for scale in (0.1, 0.2) for channels in (False, True)]
    models += [mapped(seed) for seed in range(2)]
    assert len({weight_hash(model) for model in models}) == len(models)
    assert weight_hash(mapped(0)) == weight_hash(mapped(0))
