"""The fifteen standard corruptions of CIFAR-10-C and CIFAR-100-C, generated at five severities.

Hendrycks and Dietterich 2019, "Benchmarking neural network robustness to common corruptions and perturbations" (arXiv
1903.12261). The constants of each severity are theirs, for images of 32 by 32 pixels, from
``ImageNet-C/create_c/make_cifar_c.py`` of https://github.com/hendrycks/robustness. The code is written anew on tensors,
with draws that depend on nothing but seed, corruption, severity and image number: the images are damaged in the same
ways as the published ones, but they are not those images. Frost differs in kind: see `frost`.

>>> images = torch.full((2, 3, 32, 32), 100, dtype=torch.uint8)
>>> corrupt(images, "brightness", 5).unique()
tensor([176], dtype=torch.uint8)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from io import BytesIO

import numpy
import torch
from torch import Tensor

from unsmooth import keyed
from unsmooth.errors import expected
from unsmooth.evidence.image_filters import (
    box_resized,
    correlate,
    disk,
    enlarged,
    gaussian,
    motion,
    sampled,
)
from unsmooth.registry import Registry

SEVERITIES = (1, 2, 3, 4, 5)


class Draws:
    """Random numbers of one corruption for a batch: functions of seed, name, severity and image number, nothing else.

    Args:
        seed: Of the whole set of damaged images.
        name: Of the corruption.
        severity: From 1 to 5; each has draws of its own.
        sample: Image numbers, int64 (batch,).

    >>> both = Draws(0, "fog", 1, torch.tensor([4, 9])).uniform("height", 3)
    >>> torch.equal(both[1:], Draws(0, "fog", 1, torch.tensor([9])).uniform("height", 3))
    True
    """

    def __init__(self, seed: int, name: str, severity: int, sample: Tensor) -> None:
        self._keys_B = keyed.keys(keyed.stream(seed, f"corruption/{name}/{severity}"), sample)

    def uniform(self, purpose: str, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """float64 in [low, high), (batch, *shape)."""
        return low + (high - low) * keyed.uniform(self._keys(purpose, shape)).double()

    def normal(self, purpose: str, *shape: int) -> Tensor:
        """float64 from the standard normal distribution, (batch, *shape)."""
        return keyed.normal(self._keys(purpose, shape)).double()

    def integers(self, purpose: str, *shape: int, below: int) -> Tensor:
        """int64 in [0, below), (batch, *shape)."""
        return keyed.integers(self._keys(purpose, shape), below)

    def zeros(self, *shape: int) -> Tensor:
        """float64 zeros, (batch, *shape), where the draws are."""
        return torch.zeros(len(self._keys_B), *shape, dtype=torch.float64, device=self._keys_B.device)

    def _keys(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        of_purpose_B = keyed.keys(self._keys_B, keyed.stream(0, purpose))
        return keyed.derive(of_purpose_B, math.prod(shape)).reshape(-1, *shape)


Change = Callable[[Tensor, Draws, int], Tensor]


CORRUPTIONS: Registry[Change] = Registry("corruption")
"""Name as in CIFAR-10-C to a function of images, draws and severity. Images are float64 (batch, 3, size, size) with
values from 0 to 1; what comes back may leave that range and is clipped."""


def corruption(change: Change) -> Change:
    """Register the function below under its own name."""
    CORRUPTIONS.add(change.__name__, change)
    return change


def whole_levels(images: Tensor) -> Tensor:
    """From values between 0 and 1 to whole levels from 0 to 255, cut off as the original's conversion to bytes does.

    The hair that is added keeps a value that is a whole number in exact arithmetic from falling a level through
    rounding, which differs between devices and batch sizes.

    >>> whole_levels(torch.tensor([-0.1, 0.5, 1 / 255, 2.0], dtype=torch.float64))
    tensor([  0., 127.,   1., 255.], dtype=torch.float64)
    """
    return torch.floor(images.clamp(0, 1) * 255 + 1e-6)


def plasma(draws: Draws, size: int, decay: float, purpose: str) -> Tensor:
    """Heights from 0 to 1 for each image, (batch, size, size), by the diamond-square algorithm on a torus.

    Fournier, Fussell, Carpenter 1982, "Computer rendering of stochastic models". From one point on, every round fills
    the middles of the squares and then the middles of their sides with the mean of four neighbours plus a draw from
    [−a², a²); a is divided by `decay` after each round (the square of a is the original's).

    Args:
        draws: Random numbers.
        size: Of the images; the landscape is made at the next power of two and cut.
        decay: The larger, the smoother.
        purpose: Names the draws.

    >>> height = plasma(Draws(0, "fog", 1, torch.arange(2)), 32, 2.0, "cloud")
    >>> height.shape, height.amin().item(), height.amax().item()
    (torch.Size([2, 32, 32]), 0.0, 1.0)
    """
    side = 1 << max(size - 1, 1).bit_length()
    height, amplitude = draws.zeros(1, 1), 1.0
    while height.shape[-1] < side:
        height = _refined(height, draws, amplitude**2, f"{purpose}/{height.shape[-1]}")
        amplitude /= decay
    low, high = height.amin(dim=(1, 2), keepdim=True), height.amax(dim=(1, 2), keepdim=True)
    return ((height - low) / (high - low))[:, :size, :size]


def _refined(corner: Tensor, draws: Draws, amplitude: float, purpose: str) -> Tensor:
    """Twice as many points on each side: the old ones, the middles of squares, and the middles of their sides."""
    batch, points, _ = corner.shape
    noise = draws.uniform(purpose, 3, points, points, low=-amplitude, high=amplitude)
    below, right = corner.roll(-1, 1), corner.roll(-1, 2)
    middle = (corner + below + right + below.roll(-1, 2)) / 4 + noise[:, 0]
    top = (corner + right + middle + middle.roll(1, 1)) / 4 + noise[:, 1]
    left = (corner + below + middle + middle.roll(1, 2)) / 4 + noise[:, 2]
    finer = torch.empty(batch, 2 * points, 2 * points, dtype=corner.dtype, device=corner.device)
    finer[:, ::2, ::2], finer[:, 1::2, 1::2] = corner, middle
    finer[:, ::2, 1::2], finer[:, 1::2, ::2] = top, left
    return finer


GAUSSIAN = (0.04, 0.06, 0.08, 0.09, 0.10)  # standard deviation
PHOTONS = (500, 250, 100, 75, 50)  # mean count at full brightness
IMPULSE = (0.01, 0.02, 0.03, 0.05, 0.07)  # share of values that are lost


@corruption
def gaussian_noise(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Adds to each value: x + σ·ε with ε from the standard normal distribution."""
    return images + GAUSSIAN[severity - 1] * draws.normal("noise", *images.shape[1:])


@corruption
def shot_noise(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Poisson(c·x) / c: the count of photons at a brightness. Counts above c are clipped anyway and not told apart.

    By the inverse of the distribution function. Only 256 means can occur, so their distribution functions lie one
    after the other in a single rising table, and one search finds the count of every value.
    """
    photons = PHOTONS[severity - 1]
    level = torch.round(images * 255)
    chance = draws.uniform("count", *images.shape[1:])
    position = torch.searchsorted(_poisson_table(photons).to(images.device), level + chance, right=True)
    return (position - level.long() * photons) / photons


@corruption
def impulse_noise(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Salt and pepper: a share of the values becomes 1 or 0, with even chances."""
    share = IMPULSE[severity - 1]
    chance = draws.uniform("impulse", *images.shape[1:])
    return images.masked_fill(chance < share, 0.0).masked_fill(chance < share / 2, 1.0)


@lru_cache(maxsize=8)
def _poisson_table(photons: int) -> Tensor:
    """Entry level·photons + k is level + P(count ≤ k), for the 256 levels and k below `photons`.

    P(count ≤ k) at mean λ is the regularised upper incomplete gamma function Q(k + 1, λ).
    """
    level = torch.arange(256, dtype=torch.float64)[:, None]
    below = torch.special.gammaincc(torch.arange(1, photons + 1, dtype=torch.float64), level * photons / 255)
    table: Tensor = (level + below).flatten()
    return table


DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))  # radius of the disk, its softness
GLASS = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))  # standard deviation of the blur, rounds of moves
MOTION = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))  # radius, standard deviation
ZOOM_ENDS = (1.06, 1.11, 1.16, 1.21, 1.26)  # of zooms from 1 in steps of 0.01


@corruption
def defocus_blur(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Correlation with a disk."""
    return correlate(images, disk(*DEFOCUS[severity - 1]))


@corruption
def glass_blur(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Blur, then pixels moved by up to one place, then blur again.

    The original means to exchange each pixel with a neighbour up or left of it, from the last row and column to the
    third. But it exchanges two views of one array, so the second assignment reads what the first has written: each
    pixel takes its neighbour's value, and the neighbour keeps it. What that code does is done here, not what it means
    to do. A neighbour up or left is visited later, so all pixels of a round can be moved at once.
    """
    sigma, rounds = GLASS[severity - 1]
    levels = whole_levels(gaussian(images, sigma))
    size = images.shape[-1]
    line = torch.arange(size, device=images.device)
    inside = (line[:, None] >= 2) & (line >= 2)
    for turn in range(rounds):
        up, left = draws.integers(f"move {turn}", 2, size, size, below=2).unbind(1)
        rows, columns = line[:, None] - up * inside, line - left * inside
        places = (rows * size + columns).flatten(1)[:, None].expand(-1, images.shape[1], -1)
        levels = levels.flatten(2).gather(2, places).view_as(levels)
    return gaussian(levels / 255, sigma)


@corruption
def motion_blur(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Blur along a line within 45 degrees of the rows. Rounded to whole levels, as the original's tool does."""
    blurred = motion(images, *MOTION[severity - 1], draws.uniform("angle", low=-45, high=45))
    return torch.round(blurred * 255) / 255


@corruption
def zoom_blur(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """The mean of the image and of its enlargements, the first of which is the image again."""
    # The original's own range: whether its end is in, and which way a half pixel goes, is decided by its last digits.
    factors = numpy.arange(1, ZOOM_ENDS[severity - 1], 0.01).tolist()
    total = images.clone()
    for factor in factors:
        total += enlarged(images, factor)
    return total / (len(factors) + 1)


# Mean and spread of the flakes, their enlargement, threshold, radius and spread of their motion, share of the image
# that is not whitened.
SNOW = (
    (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
    (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
)
FROST = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))  # shares of the image and of the frost
FOG = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))  # thickness, how fast its roughness decays
BRIGHTNESS = (0.05, 0.1, 0.15, 0.2, 0.3)  # added
_ICE = (0.78, 0.89, 1.0)  # red, green and blue of the procedural frost


@corruption
def snow(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Flakes that fall in a line, once as drawn and once turned by 180 degrees, on a whitened image."""
    mean, spread, enlargement, threshold, radius, sigma, kept = SNOW[severity - 1]
    size = images.shape[-1]
    flakes = enlarged(mean + spread * draws.normal("flakes", 1, size, size), enlargement)
    flakes = whole_levels(flakes.masked_fill(flakes < threshold, 0.0))
    falling = torch.round(motion(flakes, radius, sigma, draws.uniform("angle", low=-135, high=-45))) / 255
    luminance = torch.tensor([0.299, 0.587, 0.114], dtype=images.dtype, device=images.device)
    grey = (images * luminance[:, None, None]).sum(dim=1, keepdim=True)
    whitened = torch.maximum(images, 1.5 * grey + 0.5)
    return kept * images + (1 - kept) * whitened + falling + falling.flip(2, 3)


@corruption
def frost(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """a·x + b·frost, with a procedural frost.

    It is not the original's photographs, which are not shipped here, so accuracy on frost is not comparable.
    """
    of_image, of_frost = FROST[severity - 1]
    return of_image * images + of_frost * _ice(draws, images.shape[-1])


def _ice(draws: Draws, size: int) -> Tensor:
    """Ridges of a plasma and needles in three directions 60 degrees apart, (batch, 3, size, size) from 0 to 1."""
    ridges = 1 - (2 * plasma(draws, size, 2.0, "ridges") - 1).abs()
    film = plasma(draws, size, 2.5, "film")
    seeds = (draws.uniform("seeds", 1, size, size) < 0.04).to(film.dtype)
    turn = draws.uniform("turn", high=60)
    needles = torch.stack([motion(seeds, 5, 4.0, turn + 60 * side) for side in range(3)]).amax(dim=0)[:, 0]
    ice = (0.25 + 0.35 * film + 0.3 * ridges**2 + 2.5 * needles).clamp(max=1)
    return ice[:, None] * torch.tensor(_ICE, dtype=ice.dtype, device=ice.device)[:, None, None]


@corruption
def fog(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """A plasma is added and the whole scaled back to the brightest value v: (x + c·plasma)·v / (v + c)."""
    thickness, decay = FOG[severity - 1]
    brightest = images.amax(dim=(1, 2, 3), keepdim=True)
    cloud = plasma(draws, images.shape[-1], decay, "cloud")[:, None]
    return (images + thickness * cloud) * brightest / (brightest + thickness)


@corruption
def brightness(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """The value V = max(R, G, B) of hue, saturation and value is raised to min(V + c, 1).

    At the same hue and saturation the colours grow in proportion to V; black becomes grey.
    """
    value = images.amax(dim=1, keepdim=True)
    raised = (value + BRIGHTNESS[severity - 1]).clamp(max=1)
    return torch.where(value > 0, images / value.clamp(min=1e-9), 1.0) * raised


CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)  # what is left of it
# In sizes of the image: length of the displacements, their smoothness, reach of the corners that tilt the image.
ELASTIC = ((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))
PIXELATE = (0.95, 0.9, 0.85, 0.75, 0.65)  # size in between
JPEG = (80, 65, 58, 50, 40)  # quality


@corruption
def contrast(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Drawn to the mean of each channel: m + c·(x − m)."""
    mean = images.mean(dim=(2, 3), keepdim=True)
    return mean + CONTRAST[severity - 1] * (images - mean)


@corruption
def elastic_transform(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """A random tilt, then a smooth random displacement of every pixel.

    The tilt is the affine map that takes three corners of a square in the middle to corners moved at random. It is
    read with exact places; the original's tool rounds them to 1/32 of a pixel.
    """
    size = images.shape[-1]
    length, smoothness, reach = (size * part for part in ELASTIC[severity - 1])
    line = torch.arange(size, dtype=images.dtype, device=images.device)
    down_NN, right_NN = torch.meshgrid(line, line, indexing="ij")
    tilted = sampled(images, *_tilt(draws, size, reach, right_NN, down_NN), mirror_on_pixels=True)
    if not length:
        return tilted
    field = draws.uniform("displacement", 2, size, size, low=-1, high=1)
    shift = length * gaussian(field, smoothness, truncate=3, edge="reflect")
    return sampled(tilted, right_NN + shift[:, 0], down_NN + shift[:, 1], mirror_on_pixels=False)


def _tilt(draws: Draws, size: int, reach: float, right_NN: Tensor, down_NN: Tensor) -> tuple[Tensor, Tensor]:
    """Where each pixel of the tilted image is read: the map from the moved corners back to the corners."""
    middle, half = size // 2, size // 3
    corners = [[middle + half, middle + half], [middle + half, middle - half], [middle - half, middle - half]]
    before = torch.tensor(corners, dtype=right_NN.dtype, device=right_NN.device)
    after = before + draws.uniform("corners", 3, 2, low=-reach, high=reach)
    map_B32 = torch.linalg.solve(torch.cat((after, torch.ones_like(after[..., :1])), dim=-1), before.expand_as(after))
    right_B2, down_B2, start_B2 = (part[..., None, None] for part in map_B32.unbind(1))
    places = right_B2 * right_NN + down_B2 * down_NN + start_B2
    return places[:, 0], places[:, 1]


@corruption
def pixelate(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Made smaller over boxes and large again, bit by bit as Pillow does."""
    size = images.shape[-1]
    small = box_resized(torch.round(images * 255), int(size * PIXELATE[severity - 1]))
    return box_resized(small, size) / 255


@corruption
def jpeg_compression(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Written as a JPEG file and read again, by Pillow, image by image on the CPU."""
    import numpy
    from PIL import Image

    levels = torch.round(images * 255).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    damaged = numpy.empty_like(levels)
    for number, image in enumerate(levels):
        file = BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=JPEG[severity - 1])
        damaged[number] = numpy.asarray(Image.open(file))
    return torch.from_numpy(damaged).permute(0, 3, 1, 2).to(images) / 255


NAMES = tuple(CORRUPTIONS)
_AT_ONCE = 1024  # images in float64 that are worked on together


def corrupt(images: Tensor, name: str, severity: int, seed: int = 0, sample: Tensor | None = None) -> Tensor:
    """Damaged copies of images.

    Args:
        images: uint8 (batch, 3, size, size) on any device; the constants are made for size 32.
        name: One of `NAMES`.
        severity: From 1 to 5.
        seed: Of the draws.
        sample: Number of each image, by which its draws are keyed; 0, 1, … when not given. With it, the images of a
            set come out the same however they are split into batches.

    Returns:
        uint8, same shape and device.

    >>> images = torch.arange(3 * 32 * 32).remainder(256).to(torch.uint8).view(1, 3, 32, 32).repeat(2, 1, 1, 1)
    >>> both = corrupt(images, "snow", 3)
    >>> torch.equal(both[1:], corrupt(images[1:], "snow", 3, sample=torch.tensor([1])))
    True
    """
    change = CORRUPTIONS[name]
    sample = _checked(images, severity, sample)
    batches = zip(torch.split(images, _AT_ONCE), torch.split(sample, _AT_ONCE), strict=True)
    done = [
        whole_levels(change(part.double() / 255, Draws(seed, name, severity, numbers), severity)).to(torch.uint8)
        for part, numbers in batches
        if len(part)
    ]
    return torch.cat(done) if done else images.clone()


def _checked(images: Tensor, severity: int, sample: Tensor | None) -> Tensor:
    """The image numbers, on the images' device."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3 or images.shape[2] != images.shape[3]:
        got = f"{images.dtype} of shape {tuple(images.shape)}"
        raise expected("uint8 images (batch, 3, size, size)", got, "pixels from 0 to 255, channels first and square")
    if severity not in SEVERITIES:
        raise expected("a severity from 1 to 5", severity, "severity=5 for the strongest")
    if sample is None:
        return torch.arange(len(images), device=images.device)
    if sample.shape != images.shape[:1] or sample.is_floating_point() or sample.dtype == torch.bool:
        got = f"{sample.dtype} of shape {tuple(sample.shape)}"
        raise expected(f"{len(images)} whole numbers, one per image, as sample", got, "torch.arange(len(images))")
    return sample.to(images.device, torch.int64)
