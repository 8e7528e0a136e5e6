"""Remedied models on disk: they come back as they were, and other libraries read the plain model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, BertModel, GPT2Config, GPT2LMHeadModel

import unsmooth
from tests.remedies.hosts import BY_NAME, HOSTS, TestHost
from tests.remedies.settings import SETTINGS
from unsmooth import UnsmoothError, remedies
from unsmooth.models import origin_of

IDS = torch.tensor([[2, 5, 6, 7, 3], [2, 9, 8, 3, 0]])
FILES = {"config.json", "model.safetensors", "remedies.json", "tokenizer.json", "tokenizer_config.json"}


def bert(folder: Path) -> nn.Module:
    return unsmooth.load(folder)


def aligned(model: nn.Module) -> nn.Module:
    """With its weights where torch would put them: a product with weights mapped from a file may round otherwise."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model.eval()


def said(model: nn.Module, ids: Tensor = IDS) -> Tensor:
    with torch.no_grad():
        return aligned(model)(ids)[0]


def trained(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter moved a little, as training does, those of remedies more."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            size = 0.1 if ".unsmooth." in name else 0.01
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return model


def hosts_of(name: str) -> list[TestHost]:
    """Those that can have a remedy in its first setting."""
    setting = next(iter(SETTINGS[name].values()))
    return [host for host in HOSTS if host.name not in setting.refused_by]


@pytest.mark.parametrize("name", [name for name in sorted(SETTINGS) if hosts_of(name)[0].name == "bert"])
def test_a_trained_remedy_comes_back(name: str, bert_folder: Path, tmp_path: Path) -> None:
    layers = (1, 2) if name == "registers" else (0, 2)  # tokens cannot leave in between
    model = trained(unsmooth.apply(bert(bert_folder), name, layers=layers))
    expected = said(model)
    assert remedies.save(model, tmp_path / "new" / "out") == tmp_path / "new" / "out"
    loaded = unsmooth.load(tmp_path / "new" / "out")
    assert torch.equal(said(loaded), expected)
    assert remedies.applied(loaded)[0].layers == layers
    assert remedies.applied(loaded)[0].options == remedies.applied(model)[0].options
    assert torch.equal(said(model), expected)  # saving changed nothing
    assert torch.equal(said(unsmooth.undo(loaded)), said(unsmooth.undo(model)))


@pytest.mark.parametrize("name", [name for name in sorted(SETTINGS) if hosts_of(name)[0].name != "bert"])
def test_a_trained_remedy_that_bert_cannot_have_comes_back(name: str, tmp_path: Path) -> None:
    host, setting = hosts_of(name)[0], next(iter(SETTINGS[name].values()))
    model = trained(unsmooth.apply(host.model(), name, **setting.options))
    remedies.save(model, tmp_path / "out")
    loaded = remedies.restore(host.model(seed=1), tmp_path / "out")
    call = host.call(host.inputs())
    with torch.no_grad():
        assert torch.equal(host.output(loaded, call), host.output(model, call))
        assert torch.equal(host.output(unsmooth.undo(loaded), call), host.output(unsmooth.undo(model), call))


@pytest.mark.parametrize("name", ["bert", "vit", "swin", "neox_parallel", "gpt2", "llama"])
def test_what_transformers_names_otherwise_on_disk_comes_back(name: str, tmp_path: Path) -> None:
    host = BY_NAME[name]
    model = trained(unsmooth.apply(host.model(), "deescalate", learn="channel"))
    remedies.save(model, tmp_path / "out")
    drawn = torch.get_rng_state()
    fresh = host.model(seed=1).train()
    torch.set_rng_state(drawn)
    loaded = remedies.restore(fresh, tmp_path / "out")
    assert loaded is fresh
    assert loaded.training
    assert torch.equal(torch.get_rng_state(), drawn)
    state = model.state_dict()
    assert loaded.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[key]) for key, value in loaded.state_dict().items())


def test_a_transformers_model_in_several_files_comes_back(tmp_path: Path) -> None:
    host = BY_NAME["vit"]
    model = trained(unsmooth.apply(host.model(), "sharpen"))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    call = host.call(host.inputs())
    with torch.no_grad():
        for loaded in (remedies.restore(host.model(seed=1), tmp_path), unsmooth.load(tmp_path)):
            torch.testing.assert_close(host.output(loaded, call), host.output(model, call))


def test_weights_of_another_model_of_transformers_are_refused(tmp_path: Path) -> None:
    model = unsmooth.apply(BY_NAME["vit"].model(), "deescalate")
    remedies.save(model, tmp_path / "out")
    with pytest.raises(UnsmoothError, match=r"fit BertModel but got no embeddings\..* and \d+ more"):
        remedies.restore(BY_NAME["bert"].model(), tmp_path / "out")
    (tmp_path / "out" / "model.safetensors").write_bytes(b"no such thing")
    with pytest.raises(UnsmoothError, match="a complete safetensors file"):
        remedies.restore(BY_NAME["vit"].model(), tmp_path / "out")
    (tmp_path / "out" / "model.safetensors").unlink()
    with pytest.raises(UnsmoothError, match=r"model\.safetensors in"):
        remedies.restore(BY_NAME["vit"].model(), tmp_path / "out")


def test_remedies_stack_in_the_order_they_were_applied(bert_folder: Path, tmp_path: Path) -> None:
    model = bert(bert_folder)
    for name, layers in (("deescalate", [1]), ("residual_scaling", None), ("deescalate", [0])):
        unsmooth.apply(model, name, layers=layers)
    remedies.save(model, tmp_path / "out")
    loaded = unsmooth.load(tmp_path / "out")
    found = [(one.name, one.layers) for one in remedies.applied(loaded)]
    assert found == [("deescalate", (1,)), ("residual_scaling", (0, 1, 2)), ("deescalate", (0,))]
    assert torch.equal(said(loaded), said(model))


def test_files_of_the_tokenizer_are_the_models_own(bert_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    source = tmp_path / "source" / "model"
    shutil.copytree(bert_folder, source)
    (source / "LICENSE").write_text("mine")
    (source / "pytorch_model.bin.index.json").write_text("{}")
    (source / "notes.md").write_text("not for sharing")
    (tmp_path / "key").write_text("not of the model")
    (source / "vocab.txt").symlink_to(tmp_path / "key")
    remedies.save(unsmooth.apply(bert(source), "deescalate"), tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == FILES | {"LICENSE"}
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert len({file.stat().st_mode for file in (tmp_path / "out").iterdir()}) == 1


@pytest.mark.parametrize(
    ("modules", "kept"),
    [
        ('[{"path": ""}, {"path": "1_Pooling"}]', {"modules.json", "1_Pooling"}),
        ('[{"path": ""}, {"path": "2_Dense"}]', set()),
        ('[{"path": "../diary"}]', set()),
        ('[{"path": ".."}]', set()),
        ('[{"path": "3_Linked"}]', set()),
        ('[{"path": "4_Device"}]', set()),
        ('[{"path": "5_Elsewhere"}]', set()),
        ("not json", set()),
    ],
)
def test_sentence_transformers_keep_their_pooling(
    bert_folder: Path, tmp_path: Path, modules: str, kept: set[str]
) -> None:
    source = tmp_path / "source"
    shutil.copytree(bert_folder, source)
    (tmp_path / "diary").mkdir()
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    (source / "3_Linked").symlink_to(tmp_path / "diary")
    (source / "4_Device").mkdir()
    (source / "4_Device" / "config.json").symlink_to("/dev/zero")
    (source / "5_Elsewhere").mkdir()
    (source / "5_Elsewhere" / "config.json").symlink_to(bert_folder / "config.json")
    (source / "modules.json").write_text(modules)
    remedies.save(unsmooth.apply(bert(source), "deescalate"), tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == FILES | kept
    if kept:
        assert (tmp_path / "out" / "1_Pooling" / "config.json").read_text() == "{}"
    assert unsmooth.load(tmp_path / "out") is not None


def test_a_model_that_was_not_loaded_by_us_keeps_its_tokenizer(bert_folder: Path, tmp_path: Path) -> None:
    model = BertModel.from_pretrained(bert_folder)
    remedies.save(unsmooth.apply(model, "deescalate"), tmp_path / "out")
    text = "the cat sat"
    known = AutoTokenizer.from_pretrained(bert_folder)(text)["input_ids"]
    assert AutoTokenizer.from_pretrained(tmp_path / "out")(text)["input_ids"] == known


def test_folded_weights_are_told_but_not_applied_again(bert_folder: Path, tmp_path: Path) -> None:
    model = unsmooth.apply(bert(bert_folder), "residual_scaling")
    expected, done = said(model), remedies.applied(model)
    remedies.save(unsmooth.fold(model), tmp_path / "out", folded=done)
    assert {file.name for file in (tmp_path / "out").iterdir()} == FILES
    torch.testing.assert_close(said(AutoModel.from_pretrained(tmp_path / "out")), expected, rtol=1e-5, atol=1e-5)
    loaded = unsmooth.load(tmp_path / "out")
    assert remedies.applied(loaded) == []
    assert origin_of(loaded).notes == ("Folded into the weights: residual_scaling.",)  # type: ignore[union-attr]


def test_only_what_remedies_change_is_beside_the_weights(tmp_path: Path) -> None:
    model = unsmooth.apply(stack(), "deescalate", learn="layer", layers=[1])
    remedies.save(model, tmp_path / "out")
    beside = load_file(tmp_path / "out" / "remedies.safetensors")
    home = "layers.1.unsmooth"
    assert {key: value.item() for key, value in beside.items()} == {f"{home}.deescalate.tau": 1.0, f"{home}.applied": 1}


def test_tied_embeddings(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=2, n_head=2)).eval()
    unsmooth.apply(model, "deescalate", learn="channel")
    remedies.save(model, tmp_path / "out")
    loaded = unsmooth.load(tmp_path / "out")
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    assert torch.equal(said(loaded), said(model))


def stack() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


@pytest.mark.parametrize("name", ["deescalate", "sharpen"])
def test_any_module_is_restored_into_one_built_anew(name: str, tmp_path: Path) -> None:
    model = trained(unsmooth.apply(stack(), name))
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))
    remedies.save(model, tmp_path / "out")
    again = remedies.restore(stack(), tmp_path / "out")
    assert torch.equal(again(x), model(x))
    layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
    wider = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with pytest.raises(UnsmoothError, match=r"that fit TransformerEncoder but got .*size mismatch"):
        remedies.restore(wider, tmp_path / "out")


def test_loading_draws_nothing_from_the_users_generator(bert_folder: Path, tmp_path: Path) -> None:
    remedies.save(unsmooth.apply(bert(bert_folder), "sharpen", start="fresh"), tmp_path / "out")
    state = torch.get_rng_state()
    unsmooth.load(tmp_path / "out")
    assert torch.equal(torch.get_rng_state(), state)


def test_another_dtype(bert_folder: Path, tmp_path: Path) -> None:
    model = trained(unsmooth.apply(bert(bert_folder), "deescalate", learn="channel"))
    remedies.save(model, tmp_path / "out")
    loaded = unsmooth.load(tmp_path / "out", dtype="float64")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float64}
    torch.testing.assert_close(said(loaded), said(model).double(), rtol=1e-4, atol=1e-4)


# What must not be written over, and what must not be half written.


def test_a_plain_model_is_refused(bert_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"with remedies applied but got a plain one. Try unsmooth.apply"):
        remedies.save(bert(bert_folder), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_other_peoples_files_are_never_replaced(bert_folder: Path, tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "diary.txt").write_text("mine")
    model = unsmooth.apply(bert(bert_folder), "deescalate")
    with pytest.raises(UnsmoothError, match="a new or empty folder"):
        remedies.save(model, tmp_path, overwrite=overwrite)
    assert [file.name for file in tmp_path.iterdir()] == ["diary.txt"]


def test_our_own_folder_is_replaced_only_when_asked_to(bert_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    remedies.save(unsmooth.apply(bert(bert_folder), "deescalate", tau=0.5), out)
    second = unsmooth.apply(bert(bert_folder), "deescalate", tau=0.25)
    with pytest.raises(UnsmoothError, match="--force"):
        remedies.save(second, out)
    assert remedies.applied(unsmooth.load(out))[0].options["tau"] == 0.5
    remedies.save(second, out, overwrite=True)
    assert remedies.applied(unsmooth.load(out))[0].options["tau"] == 0.25
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("before", [False, True])
def test_a_full_disk_leaves_what_was_there(
    bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    model, out = unsmooth.apply(bert(bert_folder), "deescalate", tau=0.5), tmp_path / "out"
    if before:
        remedies.save(model, out)

    def full(*given: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transformers.modeling_utils, "safe_save_file", full)
    with pytest.raises(UnsmoothError, match="No space left on device"):
        remedies.save(model, out, overwrite=True)
    assert [item.name for item in tmp_path.iterdir()] == (["out"] if before else [])
    if before:
        assert remedies.applied(unsmooth.load(out))[0].options["tau"] == 0.5


def test_an_empty_folder_is_filled_and_a_file_refused(bert_folder: Path, tmp_path: Path) -> None:
    model = unsmooth.apply(bert(bert_folder), "deescalate")
    (tmp_path / "empty").mkdir()
    remedies.save(model, tmp_path / "empty")
    assert (tmp_path / "empty" / "remedies.json").is_file()
    (tmp_path / "file").write_text("mine")
    for taken in ("file", "file/below"):
        with pytest.raises(UnsmoothError, match="a writable folder but got Not a directory"):
            remedies.save(model, tmp_path / taken)
    assert (tmp_path / "file").read_text() == "mine"


# Folders that are not whole.


@pytest.fixture
def saved(bert_folder: Path, tmp_path: Path) -> Path:
    return remedies.save(unsmooth.apply(bert(bert_folder), "deescalate", learn="channel"), tmp_path / "out")


def changed(folder: Path, **entries: object) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["unsmooth"] |= entries
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def test_a_record_that_is_no_record(saved: Path, tmp_path: Path) -> None:
    changed(saved, format=99)
    with pytest.raises(UnsmoothError, match=r"remedies format 2 but got 99"):
        unsmooth.load(saved)
    own = remedies.save(unsmooth.apply(stack(), "deescalate"), tmp_path / "own")
    (own / "remedies.json").write_text("[]")
    with pytest.raises(UnsmoothError, match=r"a whole remedies.json in .* Try saving the model again"):
        remedies.restore(stack(), own)


@pytest.mark.parametrize(
    "entries",
    [
        {"applied": [{"name": "deescalate", "options": {}, "layers": [0.5]}]},
        {"applied": [{"name": "deescalate", "options": {}, "layers": [True]}]},
        {"applied": [{"name": "deescalate", "options": {}, "layers": 3}]},
        {"applied": [{"name": "deescalate", "options": [], "layers": [0]}]},
        {"applied": [{"name": 7, "options": {}, "layers": [0]}]},
        {"applied": [{"name": "deescalate", "options": {}, "layers": [0], "blocks": 5}]},
        {"applied": [{"options": {}, "layers": [0]}]},
        {"applied": {"name": "deescalate"}},
        {"applied": None},
        {"knows_plain": 1},
        {"unsmooth": None},
    ],
)
def test_a_record_of_the_wrong_kinds(saved: Path, entries: dict[str, object]) -> None:
    changed(saved, **entries)
    with pytest.raises(
        UnsmoothError, match=r"^Expected remedies in the config\.json of .* Try saving the model again\.$"
    ):
        unsmooth.load(saved)


@pytest.mark.parametrize("option", ["layers", "model", "name", "blocks", "stack", "allow_leak"])
def test_options_named_as_the_arguments_of_apply_are(saved: Path, option: str) -> None:
    changed(saved, applied=[{"name": "deescalate", "options": {option: True}, "layers": [0]}])
    with pytest.raises(UnsmoothError, match=f"a known option of deescalate but got '{option}'"):
        unsmooth.load(saved)


@pytest.mark.parametrize("tau", [float("inf"), float("nan"), "a", None, [1], {}, 10**9])
def test_options_out_of_range(saved: Path, tau: object) -> None:
    changed(saved, applied=[{"name": "deescalate", "options": {"tau": tau}, "layers": [0]}])
    with pytest.raises(UnsmoothError, match="Expected tau between"):
        unsmooth.load(saved)


def test_a_remedy_that_is_not_installed(saved: Path) -> None:
    changed(saved, applied=[{"name": "deescalat", "options": {}, "layers": [0]}])
    with pytest.raises(UnsmoothError, match=r"a known remedy but got 'deescalat'. Did you mean 'deescalate'"):
        unsmooth.load(saved)


def test_layers_that_the_model_has_not(saved: Path) -> None:
    changed(saved, applied=[{"name": "deescalate", "options": {}, "layers": [7]}])
    with pytest.raises(UnsmoothError, match="layers from 0 to 2"):
        unsmooth.load(saved)


def test_tensors_that_are_missing_damaged_or_anothers(saved: Path, tmp_path: Path) -> None:
    weights = saved / "model.safetensors"
    whole = load_file(weights)
    save_file(
        {key: value for key, value in whole.items() if "1.unsmooth.deescalate" not in key}, weights, {"format": "pt"}
    )
    with pytest.raises(UnsmoothError, match=r"fit BertModel but got no encoder\.layer\.1\.unsmooth\.deescalate\.tau"):
        unsmooth.load(saved)
    save_file(whole, weights, {"format": "pt"})
    changed(saved, applied=[{"name": "deescalate", "options": {}, "layers": [0, 1, 2]}])
    with pytest.raises(UnsmoothError, match=r"Unexpected key.*deescalate\.tau"):
        unsmooth.load(saved)
    own = remedies.save(unsmooth.apply(stack(), "deescalate", learn="channel"), tmp_path / "own")
    tensors = own / "remedies.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:50])
    with pytest.raises(UnsmoothError, match="a complete safetensors file"):
        remedies.restore(stack(), own)
    tensors.unlink()
    with pytest.raises(UnsmoothError, match="fit TransformerEncoder but got"):
        remedies.restore(stack(), own)
