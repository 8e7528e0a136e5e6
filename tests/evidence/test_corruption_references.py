"""Each corruption against numpy, scipy, colorsys or Pillow, given the same draws."""

import colorsys
import io
import math

import numpy as np
import pytest
import torch
from scipy import ndimage, stats

from tests.evidence.pictures import as_numpy, pictures, same, to_bytes
from unsmooth.evidence.corruptions import CORRUPTIONS, SEVERITIES, Draws, corrupt, plasma
from unsmooth.evidence.image_filters import disk, gaussian


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_noise_has_its_spread(severity):
    images = torch.full((16, 3, 32, 32), 128, dtype=torch.uint8)
    sigma = 255 * (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    noise = corrupt(images, "gaussian_noise", severity).double() - 128
    # Cutting off decimals moves the mean by −1/2 and adds 1/12 to the variance; nothing is clipped within 4.9 σ.
    count = noise.numel()
    assert abs(noise.mean().item() + 0.5) < 5 * sigma / math.sqrt(count)
    assert abs(noise.std().item() / math.sqrt(sigma**2 + 1 / 12) - 1) < 5 / math.sqrt(2 * count)


@pytest.mark.parametrize(("severity", "photons"), [(1, 500), (2, 250), (3, 100), (4, 75), (5, 50)])
def test_shot_noise_counts_photons(severity, photons):
    images = torch.full((8, 3, 32, 32), 102, dtype=torch.uint8)  # 0.4
    mean = 0.4 * photons
    raw = CORRUPTIONS["shot_noise"](images.double() / 255, Draws(0, "shot_noise", severity, torch.arange(8)), severity)
    counts = (raw * photons).round()
    assert torch.allclose(raw * photons, counts, atol=1e-9)
    share = math.sqrt(mean / counts.numel())
    assert abs(counts.mean().item() - mean) < 5 * share
    # The variance of a sample variance of Poisson counts is (2 λ² + λ) / n.
    assert abs(counts.var().item() - mean) < 5 * math.sqrt((2 * mean**2 + mean) / counts.numel())


def test_shot_noise_is_the_inverse_of_the_distribution_function():
    images = pictures(2)
    chance = Draws(0, "shot_noise", 3, torch.arange(2)).uniform("count", 3, 32, 32).numpy()
    counts = stats.poisson.ppf(chance, images.numpy() / 255 * 100)
    assert same(corrupt(images, "shot_noise", 3).numpy(), to_bytes(counts / 100))
    dark = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    assert torch.equal(corrupt(dark, "shot_noise", 5), dark)


def test_impulse_noise_has_its_share():
    images = torch.full((32, 3, 32, 32), 77, dtype=torch.uint8)
    damaged = corrupt(images, "impulse_noise", 5)
    count = damaged.numel()
    for value, share in ((0, 0.035), (255, 0.035), (77, 0.93)):
        found = (damaged == value).double().mean().item()
        assert abs(found - share) < 5 * math.sqrt(share * (1 - share) / count)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_against_colorsys(severity):
    images = pictures(1)
    added = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    pixels = as_numpy(images)[0].reshape(-1, 3) / 255
    colours = [colorsys.rgb_to_hsv(*pixel) for pixel in pixels]
    brighter = np.array([colorsys.hsv_to_rgb(h, s, min(v + added, 1)) for h, s, v in colours])
    assert same(as_numpy(corrupt(images, "brightness", severity))[0].reshape(-1, 3), to_bytes(brighter))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_against_means(severity):
    images = pictures(2)
    values = as_numpy(images) / 255
    mean = values.mean(axis=(1, 2), keepdims=True)
    reference = mean + (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1] * (values - mean)
    assert same(as_numpy(corrupt(images, "contrast", severity)), to_bytes(reference))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_and_defocus_blur_against_scipy(severity):
    images = pictures(2)
    values = images.numpy() / 255
    sigma = (0.4, 0.6, 0.7, 0.8, 1)[severity - 1]
    smooth = ndimage.gaussian_filter(values, (0, 0, sigma, sigma), mode="nearest")
    assert np.allclose(gaussian(images.double() / 255, sigma).numpy(), smooth)
    radius, softness = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[severity - 1]
    y, x = np.mgrid[-8:9, -8:9]
    inside = (x**2 + y**2 <= radius**2) / (x**2 + y**2 <= radius**2).sum()
    bell = np.exp(-(np.array([-1.0, 0.0, 1.0]) ** 2) / (2 * softness**2))
    kernel = ndimage.correlate(inside, np.outer(bell, bell) / bell.sum() ** 2)
    reference = ndimage.correlate(values, kernel[None, None], mode="mirror")
    assert same(corrupt(images, "defocus_blur", severity).numpy(), to_bytes(reference))
    assert disk(radius, softness).sum().item() == pytest.approx(1)


def test_glass_blur_against_the_sequential_loop():
    images = pictures(1)
    draws = Draws(0, "glass_blur", 4, torch.arange(1))
    smooth = ndimage.gaussian_filter(as_numpy(images)[0] / 255, (0.25, 0.25, 0))
    pixels = np.uint8(smooth * 255 + 1e-6)
    for turn in range(2):
        up, left = draws.integers(f"move {turn}", 2, 32, 32, below=2)[0].numpy()
        for h in range(31, 1, -1):
            for w in range(31, 1, -1):
                there = h - up[h, w], w - left[h, w]
                pixels[h, w], pixels[there] = pixels[there], pixels[h, w]  # views, as in the original
    reference = to_bytes(ndimage.gaussian_filter(pixels / 255, (0.25, 0.25, 0), mode="nearest"))
    assert same(as_numpy(corrupt(images, "glass_blur", 4))[0], reference)


def test_motion_blur_against_a_loop():
    images = pictures(1)
    values = images[0].double().numpy()
    angle = math.radians(Draws(0, "motion_blur", 5, torch.arange(1)).uniform("angle", low=-45, high=45).item())
    weights = np.exp(-(np.arange(19) ** 2) / (2 * 2.5**2))
    total = np.zeros_like(values)
    for step, weight in enumerate(weights / weights.sum()):
        right, down = math.ceil(step * math.cos(angle) - 0.5), math.ceil(step * math.sin(angle) - 0.5)
        padded = np.pad(values, ((0, 0), (20, 20), (20, 20)), mode="edge")
        total += weight * padded[:, 20 + down : 52 + down, 20 + right : 52 + right]
    assert same(corrupt(images, "motion_blur", 5)[0].numpy(), np.rint(total))


@pytest.mark.parametrize("severity", [1, 5])
def test_zoom_blur_against_scipy(severity):
    images = pictures(1)
    values = images[0].numpy() / 255
    factors = np.arange(1, (1.06, 1.11, 1.16, 1.21, 1.26)[severity - 1], 0.01)
    total = values.copy()
    for factor in factors:
        kept = math.ceil(32 / factor)
        first = (32 - kept) // 2
        grown = ndimage.zoom(values[:, first : first + kept, first : first + kept], (1, factor, factor), order=1)
        cut = (grown.shape[1] - 32) // 2
        total += grown[:, cut : cut + 32, cut : cut + 32]
    assert same(corrupt(images, "zoom_blur", severity)[0].numpy(), to_bytes(total / (len(factors) + 1)))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_pixelate_and_jpeg_are_pillows(severity):
    image_module = pytest.importorskip("PIL.Image")
    images = pictures(2)
    for name in ("pixelate", "jpeg_compression"):
        damaged = as_numpy(corrupt(images, name, severity))
        for number, pixels in enumerate(as_numpy(images)):
            image = image_module.fromarray(np.ascontiguousarray(pixels))
            if name == "pixelate":
                small = int(32 * (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1])
                box = image_module.Resampling.BOX
                reference = image.resize((small, small), box).resize((32, 32), box)
            else:
                file = io.BytesIO()
                image.save(file, "JPEG", quality=(80, 65, 58, 50, 40)[severity - 1])
                reference = image_module.open(file)
            assert np.array_equal(damaged[number], np.asarray(reference))


@pytest.mark.parametrize("severity", [1, 2, 5])
def test_elastic_transform_against_scipy(severity):
    images = pictures(1)
    length, smoothness, reach = (
        np.array([[0, 0, 0.08], [0.05, 0.2, 0.07], [], [], [0.1, 0.03, 0.03]][severity - 1]) * 32
    )
    draws = Draws(0, "elastic_transform", severity, torch.arange(1))
    before = np.array([[26.0, 26.0], [26.0, 6.0], [6.0, 6.0]])
    after = before + draws.uniform("corners", 3, 2, low=-reach, high=reach)[0].numpy()
    edges_before, edges_after = before[1:] - before[0], after[1:] - after[0]
    turn = np.linalg.inv(edges_after) @ edges_before
    y, x = np.mgrid[:32, :32].astype(float)
    places = (np.stack([x, y], -1) - after[0]) @ turn + before[0]
    tilted = [
        ndimage.map_coordinates(c, [places[..., 1], places[..., 0]], order=1, mode="mirror")
        for c in images[0].numpy() / 255
    ]
    field = 2 * draws.uniform("displacement", 2, 32, 32)[0].numpy() - 1
    right, down = (length * ndimage.gaussian_filter(f, smoothness, mode="reflect", truncate=3) for f in field)
    moved = [ndimage.map_coordinates(c, [y + down, x + right], order=1, mode="reflect") for c in tilted]
    assert same(corrupt(images, "elastic_transform", severity)[0].numpy(), to_bytes(np.array(moved)))


def test_plasma_against_points_filled_one_by_one():
    draws, decay = Draws(3, "fog", 2, torch.tensor([7])), 2.5
    side, step, amplitude = 16, 16, 1.0
    height = np.zeros((side, side))
    while step >= 2:
        points, half = side // step, step // 2
        noise = draws.uniform(f"cloud/{points}", 3, points, points, low=-(amplitude**2), high=amplitude**2)[0].numpy()
        for kind, (down, right) in enumerate(((half, half), (0, half), (half, 0))):
            around = [(-1, -1), (-1, 1), (1, -1), (1, 1)] if kind == 0 else [(-1, 0), (1, 0), (0, -1), (0, 1)]
            for i in range(points):
                for j in range(points):
                    y, x = i * step + down, j * step + right
                    mean = sum(height[(y + a * half) % side, (x + b * half) % side] for a, b in around) / 4
                    height[y, x] = mean + noise[kind, i, j]
        step, amplitude = half, amplitude / decay
    height = (height - height.min()) / (height.max() - height.min())
    assert np.allclose(plasma(draws, side, decay, "cloud")[0].numpy(), height)
