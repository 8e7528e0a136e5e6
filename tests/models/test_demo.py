"""The models that come with the package: stand-ins for how they load, the real ones for what they say of themselves."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

import unsmooth
from unsmooth.errors import UnsmoothError
from unsmooth.models import demo, origin_of

needs_models = pytest.mark.skipif(not demo.built(), reason="the demo models are not in this checkout")
needs_images = pytest.mark.skipif(
    not (demo.HOME / demo.IMAGES_FILE).is_file(), reason="the demo images are not in this checkout"
)


# how they load


def test_weights_of_float16_come_in_float32(standins: Path) -> None:
    from safetensors.torch import load_file

    stored = load_file(standins / "plain" / "model.safetensors")
    model = unsmooth.load("demo:plain")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    assert not model.training
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, stored[name].float())
    assert {one.dtype for one in unsmooth.load("demo:plain", dtype="float16").parameters()} == {torch.float16}


def test_remedies_are_in_the_weights(standins: Path) -> None:
    """Eigenvalues of H = W_V W_O: below zero for sharpen, above for smooth, up to the rounding of float16.

    An orthonormal V makes H triangular, so they are on the diagonal.
    """
    for name, sign in (("sharpen", -1), ("smooth", 1)):
        model = unsmooth.load(f"demo:{name}")
        assert unsmooth.remedies.applied(model) == []
        assert not (standins / name / "remedies.json").exists()
        for block in range(3):
            found = unsmooth.models.value_projection(model, block)
            v = found.w_v.double().detach().transpose(0, 1).flatten(1).numpy()
            triangle = v.T @ found.summed().double().detach().numpy() @ v
            assert numpy.abs(v.T @ v - numpy.eye(v.shape[1])).max() < 1e-2
            assert numpy.abs(numpy.tril(triangle, -1)).max() < 1e-3
            eigenvalues = sign * triangle.diagonal()
            assert eigenvalues.max() > 5e-3
            assert eigenvalues.min() > -1e-3


def test_origin_says_what_it_is(standins: Path) -> None:
    origin = origin_of(unsmooth.load("demo:sharpen"))
    assert origin is not None
    assert origin.id == "demo:sharpen"
    assert origin.revision == f"unsmooth {unsmooth.__version__}"
    assert "CIFAR-100 with sharpen, 2 epochs, seed 0" in origin.notes[0]
    assert f"{demo.manifest('sharpen')['accuracy']:.1%} of 100 test images right" in origin.notes[0]


def test_nothing_of_transformers_is_needed(standins: Path) -> None:
    program = (
        "import sys; from pathlib import Path; sys.modules['transformers'] = None\n"
        "import unsmooth; from unsmooth.models import demo; demo.HOME = Path(sys.argv[1])\n"
        "model = unsmooth.load('demo:smooth')\n"
        "print(*model(demo.shown(model, 8)).shape)"
    )
    words = [sys.executable, "-c", program, str(standins)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "8 100", done.stderr


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("demo:plane", {}, "Did you mean 'demo:plain'? Known: demo:plain, demo:sharpen, demo:smooth"),
        ("demo:", {}, "Known: demo:plain"),
        ("demo:plain", {"revision": "main"}, "a revision only with a hub name"),
        ("demo:plain", {"dtype": "float31"}, "float31"),
    ],
)
def test_bad_names_are_told_in_one_line(standins: Path, name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(UnsmoothError) as told:
        unsmooth.load(name, **options)
    assert message in str(told.value)
    assert "\n" not in str(told.value)


def test_absent_files_are_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "HOME", tmp_path)
    assert not demo.built()
    for ask in (lambda: unsmooth.load("demo:plain"), demo.images, demo.classes, lambda: demo.manifest("plain")):
        with pytest.raises(UnsmoothError, match="which the package unsmooth-demo brings but got no such files"):
            ask()


def test_a_remedied_copy_does_not_claim_to_be_the_trained_one(standins: Path, tmp_path: Path) -> None:
    model = unsmooth.apply(unsmooth.load("demo:plain"), "deescalate")
    folder = unsmooth.remedies.save(model, tmp_path / "out")
    assert (folder / "pixels.json").is_file()
    assert not (folder / "manifest.json").exists()


# what they are shown


@needs_images
def test_images_are_spread_over_the_classes() -> None:
    pictures, labels = demo.images()
    assert pictures.shape == (300, 3, 32, 32)
    assert pictures.dtype == torch.uint8
    assert labels.bincount().tolist() == [3] * 100
    assert demo.images(100)[1].unique().numel() == 100
    assert len({picture.numpy().tobytes() for picture in pictures}) == 300
    assert demo.classes()[0] == "apple"
    assert demo.classes()[99] == "worm"
    with pytest.raises(UnsmoothError, match="between 1 and 300"):
        demo.images(301)


def test_shown_is_what_pillow_and_pixels_make_of_them(standins: Path) -> None:
    from PIL import Image

    pictures = demo.images(5)[0]
    model = unsmooth.load("demo:plain")
    origin = origin_of(model)
    assert origin is not None
    drawn = [Image.fromarray(one.permute(1, 2, 0).numpy()) for one in pictures]
    reference = origin.image_processor(drawn)["pixel_values"]
    assert torch.allclose(demo.shown(model, 5), reference, atol=1e-6)
    assert torch.equal(demo.shown("demo:plain", 5), demo.shown(model, 5))
    assert demo.shown(model.half(), 5).dtype == torch.float16
    assert [len(batch) for batch in demo.batches("plain", 5, 2)] == [2, 2, 1]


def test_a_model_that_sees_no_images_is_refused(standins: Path) -> None:
    with pytest.raises(UnsmoothError, match="how it sees images"):
        demo.batches(torch.nn.Linear(2, 2), 4)


# the real ones


@needs_models
@pytest.mark.parametrize("name", demo.NAMES)
def test_shipped_models_are_what_their_manifests_say(name: str) -> None:
    facts, folder = demo.manifest(name), demo.folder(name)
    assert facts["sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert facts["remedies"] == ([] if name == "plain" else [name])
    assert facts["data"]["name"] == "cifar100"
    assert not facts["data"]["synthetic"]
    model = unsmooth.load(f"demo:{name}")
    assert facts["parameters"] == sum(one.numel() for one in model.parameters())
    with torch.no_grad():
        found = torch.cat([model(batch) for batch in demo.batches(model, None, 50)]).argmax(1)
    right = int((found == demo.images()[1]).sum())
    # Another processor may round a tie the other way.
    assert abs(right - facts["shipped_images"]["right"]) <= 1
    assert right > 100


@needs_models
@pytest.mark.parametrize("name", demo.NAMES)
def test_shipped_models_are_as_smooth_as_their_manifests_say(name: str) -> None:
    """Measured on other images than by the run, so not to the digit."""
    model = unsmooth.load(f"demo:{name}")
    curve = unsmooth.scan(model, demo.batches(model, 64), progress=False).curve()
    measured = demo.manifest(name)["similarity"]["layers"]
    assert [row.mean for row in curve] == pytest.approx(measured, abs=0.08)
