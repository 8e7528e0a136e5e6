"""``unsmooth apply NAME MODEL --out DIR``: a model with a remedy, in a folder of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from unsmooth.cli.console import Console
from unsmooth.cli.groups import grouped
from unsmooth.cli.options import AS_STORED, Blocks, Debug, Loading
from unsmooth.errors import expected
from unsmooth.files import finite
from unsmooth.registry import check_names

if TYPE_CHECKING:
    from torch import nn

    from unsmooth.remedies import Applied
    from unsmooth.remedies.specification import Wish


@grouped
def apply(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help='A remedy, such as "deescalate(tau=0.5)"; several: "a + b".')
    ],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub name, folder or .gguf file.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the model; loads like any other.")],
    layers: Annotated[
        str | None, typer.Option(help='Which: "5", "0,1,5", "4:8", "0.5" (first half), "-0.5" (last); default all.')
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the remedy; may be repeated.")
    ] = None,
    fold: Annotated[
        bool | None,
        typer.Option(
            "--fold/--no-fold",
            help="Write it into plain weights; --no-fold keeps its parameters, to be trained. Default where it folds.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="What MODEL takes, as for scan; a batch of it is run where MODEL does not say that itself."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder that this command wrote.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of what a remedy draws at random.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
    blocks: Blocks = None,
    loading: Loading = AS_STORED,
    debug: Debug = False,
) -> int:
    """Change MODEL by a remedy and write it to a new folder: as plain weights where the remedy folds into them."""
    check_names("remedy", [name])
    from unsmooth.remedies import save
    from unsmooth.remedies.saving import check_free
    from unsmooth.remedies.specification import apply_wishes

    wishes = _wishes(name, layers, settings or [])
    check_free(out, overwrite=force)
    if Path(model).exists() and out.exists() and out.samefile(model):
        raise expected("a folder beside the model", "the model's own", "--out another-folder")
    loaded = loading.open(model)
    known = {key for key, _ in loaded.named_parameters()}
    if data is not None:
        _show(loaded, data, blocks)
    apply_wishes(loaded, wishes, blocks=blocks, seed=seed)
    added = sum(one.numel() for key, one in loaded.named_parameters() if key not in known)
    done = _done(loaded, blocks, fold, added)
    save(loaded, out, folded=done.applied if done.folded else (), overwrite=force)
    if as_json:
        typer.echo(json.dumps(finite(_as_json(done, out)), ensure_ascii=False, allow_nan=False))
    elif not quiet:
        _print(done, out, loaded)
    return 0


def _show(model: nn.Module, data: str, blocks: str | None) -> None:
    """A pass on some data, which leaves known what blocks are called with."""
    from unsmooth.scanning import scan

    few: dict[str, Any] = {"metrics": ["token_similarity"], "confounds": False, "fingerprint": False}
    scan(model, data, blocks=blocks, max_batches=1, progress=False, **few)


@dataclass(frozen=True)
class Done:
    """What was done: the remedies, whether they were folded, why not, and how many parameters they bring."""

    applied: tuple[Applied, ...]
    folded: bool
    unfoldable: dict[str, str]
    added: int


def _wishes(text: str, layers: str | None, settings: list[str]) -> tuple[Wish, ...]:
    from dataclasses import replace

    from unsmooth.remedies.specification import parse_layers, parse_remedies, parse_settings

    wishes = parse_remedies(text)
    if settings and len(wishes) > 1:
        raise expected("--set beside one remedy", f"{len(wishes)} of them", 'options in brackets: "a(key=value) + b"')
    if settings:
        wishes = (parse_settings(wishes[0], settings),)
    if layers is not None:
        chosen = parse_layers(layers)
        wishes = tuple(replace(wish, layers=chosen) if wish.layers is None else wish for wish in wishes)
    return wishes


def _done(model: nn.Module, blocks: str | None, fold: bool | None, added: int) -> Done:
    """Fold where that was asked for, or where it can be and was not forbidden."""
    from unsmooth.remedies import applied
    from unsmooth.remedies import fold as fold_remedies
    from unsmooth.remedies.saving import unfoldable

    done = tuple(applied(model, blocks=blocks))
    reasons = unfoldable(model, blocks=blocks)
    folds = not reasons if fold is None else fold
    if folds:
        fold_remedies(model, blocks=blocks)
    return Done(done, folds, reasons, added)


def _as_json(done: Done, out: Path) -> dict[str, Any]:
    return {
        "out": str(out),
        "folded": done.folded,
        "does_not_fold": done.unfoldable,
        "new_parameters": done.added,
        "applied": [
            {
                "name": one.name,
                "options": dict(one.options),
                "layers": list(one.layers),
                **({"stack": one.stack} if one.stack else {}),
                "report": {str(layer): dict(numbers) for layer, numbers in one.report.items()},
            }
            for one in done.applied
        ],
    }


def _print(done: Done, out: Path, model: nn.Module) -> None:
    from unsmooth.models import origin_of

    console = Console()
    for one in done.applied:
        options = ", ".join(f"{key}={value!r}" for key, value in one.options.items())
        where = ", ".join(map(str, one.layers)) + (f" of its stack {one.stack!r}" if one.stack else "")
        console.print(f"[bold]{escape(one.name)}[/bold]({escape(options)}) in layers {where}", soft_wrap=True)
        for line in report_lines(one):
            console.print(f"    {escape(line)}", soft_wrap=True)
    origin = origin_of(model)
    for note in origin.notes if origin else ():
        console.print(f"[yellow]note:[/yellow] {escape(note)}")
    console.print(_ending(done), soft_wrap=True)
    console.print(f"saved in {escape(str(out))}: try `unsmooth scan {escape(str(out))}`", soft_wrap=True)


def report_lines(one: Applied) -> list[str]:
    """The numbers that a remedy gives about itself: each over its layers."""
    names = dict.fromkeys(name for numbers in one.report.values() for name in numbers)
    lines = []
    for name in names:
        values = [numbers[name] for numbers in one.report.values() if name in numbers]
        low, high, mean = min(values), max(values), sum(values) / len(values)
        lines.append(f"{name}: {low:.4g} to {high:.4g}, mean {mean:.4g}" if low != high else f"{name}: {low:.4g}")
    return lines


def _ending(done: Done) -> str:
    if done.folded:
        note = " (--no-fold keeps them, to be trained)" if done.added else ""
        return f"Folded into plain weights: any library loads them, at no cost{note}."
    kept = f"{done.added:,} new parameters" if done.added else "no new parameters"
    why = "; ".join(f"{name}: {reason}" for name, reason in done.unfoldable.items())
    return (
        f"Saved with the weights, {kept}: unsmooth.load has them; what does not know unsmooth refuses the folder"
        + (f". Not folded: {why}" if why else "")
        + "."
    )
