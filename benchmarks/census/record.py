"""What the census keeps: one row for each architecture, and the counts that are told of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
VERDICTS = ("right", "left out", "refused", "wrong", "crashed", "not judged")
REMEDIES = ("sharpen", "deescalate", "layerscale")
# Of a reason, in letters.
LONGEST = 200
ASPECTS = ("sites", "weights", "explain", *REMEDIES)

# What people train, serve and fine-tune most in 2026, chosen before the first count and fixed since.
MOST_USED = (
    "bert", "roberta", "distilbert", "albert", "electra", "deberta-v2", "xlm-roberta", "mpnet", "modernbert",
    "camembert", "longformer", "esm", "layoutlmv3", "bart", "t5", "mt5", "pegasus", "marian", "m2m_100", "mbart",
    "gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "falcon", "phi", "phi3", "llama", "mistral", "mixtral",
    "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "gemma", "gemma2", "gemma3_text", "gemma3", "cohere2",
    "olmo2", "smollm3", "granite", "glm4", "gpt_oss", "deepseek_v3", "llama4_text", "starcoder2", "stablelm",
    "whisper", "wav2vec2", "hubert", "wavlm", "vit", "deit", "beit", "dinov2", "dinov3_vit", "swin", "siglip",
    "siglip2", "clip", "blip", "llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "sam", "detr", "vit_mae",
)  # fmt: skip


def row(found: Mapping[str, Any]) -> Row:
    """One architecture, from what its process wrote: how each thing asked came out, and why where it did not."""
    name = found["name"]
    kept: Row = {"name": name, "library": name.split("/")[0] if "/" in name else "transformers"}
    kept |= {key: found[key] for key in ("class", "parameters", "batch") if key in found}
    if "not built" in found or (not found.get("verdict") and not found.get("stacks")):
        return {**kept, "scan": "not built", "why": found.get("not built") or found.get("broke", "")}
    if found.get("verdict") == "no stack":
        return {**kept, "scan": "no stack", "attends": found["attends"], "why": found["scan"]}
    kept["stacks"] = [{key: value for key, value in stack.items() if key != "curve"} for stack in found["stacks"]]
    kept["scan"] = found.get("verdict", "crashed")
    if kept["scan"] == "right" and any(stack["layout"] is None for stack in found["stacks"]):
        kept["scan"] = "not judged"
    kept["why"] = found.get("reason", found.get("broke", "") if "verdict" not in found else "")
    kept["notes"] = found.get("notes", [])
    for key in ("padding", "static", "broke"):
        if key in found:
            kept[key] = found[key]
    kept |= {"sites": _sites(found), "weights": _weights(found), "explain": _explain(found)}
    remedies = found.get("remedies", {})
    kept |= {name: _remedy(remedies.get(name, {})) for name in REMEDIES}
    kept["causal"] = remedies.get("causal", [])
    return {key: value[:LONGEST] if isinstance(value, str) else value for key, value in kept.items()}


def _sites(found: Mapping[str, Any]) -> str:
    if found.get("verdict") not in ("right", "left out"):
        return "no scan"
    sites = found.get("sites", {})
    if sites.get("said") != "done":
        return sites.get("said", "not reached")
    judged = {
        f"{stack}:{site}".lstrip(":"): verdict for stack, of in sites["stacks"].items() for site, verdict in of.items()
    }
    if not judged:
        return "none"
    bad = [f"{verdict}: {site}" for site, verdict in judged.items() if verdict != "proved"]
    return ", ".join(bad) or "proved"


def _weights(found: Mapping[str, Any]) -> str:
    weights = found.get("weights")
    if not weights:
        return "not reached" if weights is None else "none"
    bad = [said for said in weights.values() if said != "proved"]
    return "proved" if not bad else ("partly: " if len(bad) < len(weights) else "") + bad[0]


def _explain(found: Mapping[str, Any]) -> str:
    said = list(found.get("explain", {}).values())
    bad = [one for one in said if not one.startswith("done")]
    return (bad[0] if bad else "runs") if said else "not reached"


def _remedy(asked: Mapping[str, Any]) -> str:
    """Whether it holds: applied, neutral where it should be, no leak, undone to the bit."""
    said = asked.get("said", "not reached")
    if said != "done":
        return str(said)
    broken = [asked[key] for key in ("neutral", "changes") if isinstance(asked.get(key), str)]
    if broken and all(one.startswith("refused") for one in broken):
        return broken[0].replace("refused:", "refused: in the call,", 1)
    if broken:
        return f"fails: with it the model raises, {broken[0]}"
    checks = (
        (float(asked.get("neutral", 0.0)) <= 1e-6, "not neutral"),
        (float(asked.get("changes", 0.0)) > 0, "changes nothing"),
        (asked.get("leak") != "leaks", "leaks the future"),
        (asked.get("undone") is True, "not undone"),
        (_inside(asked.get("eigenvalues")), "eigenvalues outside [-1, 0]"),
    )
    bad = [word for holds, word in checks if not holds]
    left = asked.get("left", [])
    return "fails: " + ", ".join(bad) if bad else f"partly: holds, but not in {left[0]}" if left else "holds"


def _inside(eigenvalues: Sequence[float] | None) -> bool:
    """Within [-1, 0] up to what float32 does to eigenvalues that are nearly all zero and far from symmetric."""
    return eigenvalues is None or (eigenvalues[0] >= -1.1 and eigenvalues[1] <= 0.1)


def has_stack(one: Mapping[str, Any]) -> bool:
    """Whether there is something to be right about."""
    return one["scan"] in VERDICTS


def kind_of(said: str) -> str:
    """The first word of what came out, such as "proved", "refused" or "crashed"."""
    return said.split(":")[0].split(",")[0]


def counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """How many rows came out how, for scan and for each aspect, of those with a stack."""
    rows = list(rows)
    stacked = [one for one in rows if has_stack(one)]
    told: dict[str, Any] = {
        "all": len(rows),
        "with a stack": len(stacked),
        "no stack": sum(one["scan"] == "no stack" for one in rows),
        "not built": sum(one["scan"] == "not built" for one in rows),
        "scan": dict(Counter(one["scan"] for one in stacked)),
    }
    for aspect in ASPECTS:
        told[aspect] = dict(Counter(kind_of(one[aspect]) for one in stacked))
    told["padding"] = dict(Counter(kind_of(one.get("padding", "no scan")) for one in stacked))
    agreed = {
        rule: sum(one.get("static", {}).get(rule, False) for one in stacked)
        for rule in ("checkpointed", "recorded", "unsplit")
    }
    told["static"] = {**agreed, "any": sum(any(one.get("static", {}).values()) for one in stacked)}
    return told


def reasons(rows: Iterable[Mapping[str, Any]], aspect: str = "scan", most: int = 12) -> list[tuple[str, int]]:
    """Why rows were refused, names and numbers left out, by how often."""
    import re

    def general(text: str) -> str:
        text = re.sub(r"'[^']*'|\b\w*[A-Z]\w*[A-Z]\w*\b|\d+", "…", text)
        return text.split(" but ")[0][:100]

    found: Counter[str] = Counter()
    for one in rows:
        said = one["why"] if aspect == "scan" else one.get(aspect, "")
        if (aspect == "scan" and one["scan"] == "refused") or (aspect != "scan" and kind_of(said) == "refused"):
            found[general(said)] += 1
    return found.most_common(most)


def whole(results: Iterable[Mapping[str, Any]], versions: Mapping[str, str], created: str) -> dict[str, Any]:
    """The file of results."""
    rows = sorted((row(found) for found in results), key=lambda one: (one["library"] != "transformers", one["name"]))
    ours = [one for one in rows if one["library"] == "transformers"]
    return {
        "created": created,
        "versions": dict(versions),
        "counts": {
            "transformers": counts(ours),
            "most used": counts([one for one in ours if one["name"] in MOST_USED]),
            **{
                library: counts([one for one in rows if one["library"] == library])
                for library in dict.fromkeys(one["library"] for one in rows)
                if library != "transformers"
            },
        },
        "rows": rows,
    }


def write(census: Mapping[str, Any], file: Path) -> None:
    """One line for each row, so that changes are seen."""
    head = {key: value for key, value in census.items() if key != "rows"}
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in census["rows"])
    text = json.dumps(head, ensure_ascii=False, indent=1)[:-2]
    file.write_text(f'{text},\n "rows": [\n{lines}\n]}}\n')


def extract(census: Mapping[str, Any]) -> dict[str, Any]:
    """The small part of it that comes with the package, for `unsmooth ls models`."""
    rows = []
    for one in census["rows"]:
        if not has_stack(one):
            continue
        rows.append(
            {
                "name": one["name"],
                "class": one.get("class", ""),
                "stacks": len(one["stacks"]),
                "scan": one["scan"],
                **{aspect: kind_of(one[aspect]) for aspect in ASPECTS},
                "why": one["why"][:80] if one["scan"] != "right" else "",
            }
        )
    return {"created": census["created"], "versions": census["versions"], "rows": rows}
