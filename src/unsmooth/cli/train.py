"""``unsmooth train RECIPE``: one of the papers' runs, or a small copy of it, with any remedy switched on by name."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unsmooth.cli.console import say
from unsmooth.cli.options import Debug
from unsmooth.errors import expected
from unsmooth.registry import check_names
from unsmooth.spec import read_settings

if TYPE_CHECKING:
    from unsmooth.training import Config, RunFolder


def train(
    recipe: Annotated[str | None, typer.Argument(metavar="RECIPE", help="One of `unsmooth ls recipes`.")] = None,
    size: Annotated[str, typer.Option(help="base as published, tiny for a minute on two CPU cores.")] = "base",
    data: Annotated[str | None, typer.Option(metavar="PATH", help="Data; default data/NAME, else synthetic.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the run; default runs/RECIPE.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Take up a run where its last checkpoint is.")
    ] = None,
    remedies: Annotated[
        list[str] | None, typer.Option("--with", metavar="REMEDY", help='Such as "sharpen" or "deescalate(tau=0.5)".')
    ] = None,
    losses: Annotated[
        list[str] | None,
        typer.Option("--loss", metavar="LOSS", help='Added to the task\'s own, such as "cosine(weight=0.1)".'),
    ] = None,
    variants: Annotated[
        list[str] | None,
        typer.Option("--variant", metavar="REMEDY", help='Several runs beside each other: "plain", "sharpen", …'),
    ] = None,
    depth: Annotated[int | None, typer.Option(help="Blocks.")] = None,
    norm: Annotated[str | None, typer.Option(help="pre, post or peri.")] = None,
    init: Annotated[str | None, typer.Option(help="truncated_normal, xavier or mimetic.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order and everything random.")] = None,
    seeds: Annotated[int, typer.Option(help="So many runs from that seed on; side by side on a GPU.")] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as optimiser.lr=1e-3; may be repeated."),
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Save and stop after so many; --resume goes on.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Print all settings as JSON and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
    debug: Debug = False,
) -> int:
    """Train a recipe and write everything about it to a folder: log, measurements, weights, report."""
    check_names("remedy", [*(remedies or ()), *(text for text in variants or () if text != "plain")])
    from unsmooth import training
    from unsmooth.cli.train_progress import shown_progress
    from unsmooth.stopping import ended_as_interrupted

    if recipe is None and resume is None:
        raise expected("a recipe or --resume DIR", "neither", "`unsmooth ls recipes`")
    changes = changes_of(settings or [], data=data, depth=depth, norm=norm, init=init, seed=seed)
    _check_given_once(changes, {"losses": losses, "remedies": remedies})
    changes |= {"losses": tuple(losses)} if losses else {}
    config = None if recipe is None else config_of(recipe, size, changes, tuple(remedies or ()))
    if resume is not None and (variants or seeds > 1 or (config is None and (changes or remedies))):
        raise expected("--resume alone, with the settings of the run", "other settings too", "leaving them out")
    if show and config is not None:
        typer.echo(json.dumps(_plain(config), indent=1))
        return 0
    if seeds < 1:
        raise expected("at least one seed", seeds, "--seeds 1")
    with ended_as_interrupted(), shown_progress(quiet=quiet or as_json) as tell:
        if resume is not None:
            folders = training.resume(resume, config=config, minutes=minutes, tell=tell)
        else:
            assert config is not None
            where = out or Path("runs") / config.recipe
            wanted = _variants(config, variants or [])
            folders = training.train_all(wanted, where, seeds=seeds, minutes=minutes, tell=tell)
    _finish(folders, as_json, quiet)
    return 0


def _check_given_once(changes: dict[str, Any], by_option: dict[str, list[str] | None]) -> None:
    """Losses and remedies may be given by --set too, but not twice."""
    options = {"losses": "--loss", "remedies": "--with"}
    for name, given in by_option.items():
        if given and name in changes:
            what = f"{name} by {options[name]} or by --set {name}=…, one of the two"
            raise expected(what, "both", f"{options[name]} for all of them")


def config_of(name: str, size: str, changes: dict[str, Any], remedies: tuple[str, ...] = ()) -> Config:
    """A recipe with changes and remedies; remedies and losses that cannot be are told before anything is built."""
    from unsmooth.losses import parse_loss
    from unsmooth.remedies.specification import parse_remedies
    from unsmooth.training.plain import override
    from unsmooth.training.recipes import recipe

    changed = override(recipe(name, size), changes)  # type: ignore[arg-type]
    changed = replace(changed, remedies=remedies) if remedies else changed
    for text in changed.remedies:
        parse_remedies(text)
    for text in changed.losses:
        parse_loss(text).try_out()
    return changed


def _variants(config: Config, names: list[str]) -> dict[str, Config]:
    """A folder for each variant: the remedies of all, and its own on top; "plain" has none of its own."""
    from unsmooth.remedies.specification import parse_remedies

    found: dict[str, Config] = {}
    for text in names:
        own = () if text == "plain" else (text,)
        for one in own:
            parse_remedies(one)
        folder = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")
        if folder in found:
            raise expected("variants that differ", f"{text!r} twice", "each of them once")
        found[folder] = replace(config, remedies=(*config.remedies, *own))
    return found or {".": config}


def changes_of(
    settings: list[str], *, data: str | None = None, seed: int | None = None, **network: Any
) -> dict[str, Any]:
    """What options of the command change in a recipe."""
    changes: dict[str, Any] = {f"network.{name}": value for name, value in network.items() if value is not None}
    changes |= {} if data is None else {"data.path": data}
    changes |= {} if seed is None else {"seed": seed}
    return changes | read_settings(settings, "--set KEY=VALUE", "--set optimiser.lr=1e-3")


def _plain(config: Config) -> Any:
    from unsmooth.training.plain import to_plain

    return to_plain(config)


def _finish(folders: list[RunFolder], as_json: bool, quiet: bool) -> None:
    from unsmooth.training.place import is_first_process

    if not is_first_process():
        return
    pages = [_page([folder], folder.path, quiet or as_json) for folder in folders]
    if len(folders) > 1:
        together = Path(os.path.commonpath([folder.path for folder in folders]))
        pages = [_page(folders, together, quiet or as_json)]
    if as_json:
        typer.echo(json.dumps([{"folder": str(one.path), **one.manifest()} for one in folders]))
    elif not quiet:
        for folder in folders:
            left = f"{folder.path}: not finished, `unsmooth train --resume {folder.path}` goes on"
            done = f"{folder.final}: load it with unsmooth.load, scan it with `unsmooth scan`"
            say(done if folder.finished else left)
        for page in filter(None, pages):
            say(f"{page}: the {'run' if len(folders) == 1 else 'runs'} as a page")


def _page(folders: list[RunFolder], where: Path, quiet: bool) -> Path | None:
    """Runs as a page, where the report's extras are installed."""
    from unsmooth.errors import UnsmoothError
    from unsmooth.report.training import write_training_report
    from unsmooth.training import read_run

    try:
        return write_training_report([read_run(folder.path) for folder in folders], where / "report.html")
    except UnsmoothError as error:
        if not quiet:
            say(f"No page was written: {error}", err=True)
        return None
