"""Oracles of the fuzzed calls: what a result must be near to, computed another way. Each says what is wrong, or ''."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lutlab.evaluators.lambada import LambadaResult
from lutlab.formats.contract import Format
from lutlab.models.families import kinds, weight_of
from lutlab.modules import QuantLinear
from lutlab.specs import Tuning

HALF = 2.0**-9  # a relative error that float16 coefficients may add
CODED = 2.0**-4  # scales that are codes of 4 bits themselves


def naive(weight: torch.Tensor, q: float, g: int) -> torch.Tensor:
    """Round to nearest on min-max grids, 0 in each range, float64, group by group: [N, K] -> [N, K]."""
    out, columns = weight.double().clone(), weight.shape[1]
    step = columns if g == -1 else min(g, columns)
    for first in range(0, columns, step):
        part = out[:, first : first + step]
        low, high = part.amin(1, keepdim=True).clamp(max=0), part.amax(1, keepdim=True).clamp(min=0)
        scale = (high - low) / (2 ** int(q) - 1)
        scale[scale == 0] = 1
        part.copy_((part / scale).round() * scale)
    return out


def signs(weight: torch.Tensor, q: float, g: int) -> torch.Tensor:
    """The best code of one bit, alpha sign(w) with alpha = mean |w|, group by group: [N, K] -> [N, K] float64."""
    parts = weight.double().split(weight.shape[1] if g == -1 else g, dim=1)
    return torch.cat([part.sign() * part.abs().mean(1, keepdim=True) for part in parts], dim=1)


def _straddles(weight: torch.Tensor, g: int) -> bool:
    """Whether every group has weights on both sides of 0."""
    step = weight.shape[1] if g == -1 else min(g, weight.shape[1])
    parts = weight.detach().float().split(step, dim=1)
    return all(bool(((part.amin(1) <= 0) & (part.amax(1) >= 0)).all()) for part in parts)


def nearness(
    weight: torch.Tensor, found: torch.Tensor, method: str, q: Any, g: Any, inputs: Any
) -> str:
    """Whether a quantized weight is as near as a few times round-to-nearest; of calibrated ones, their outputs."""
    weight, found = weight.detach().double(), found.double()
    if found.shape != weight.shape or not torch.isfinite(found).all():
        return f"{list(found.shape)}, finite: {bool(torch.isfinite(found).all())}"
    size = float(weight.abs().max()) or 1.0
    error, weight = (found - weight) / size, weight / size
    one_bit = int(q) == 1 and method in ("bcq", "gptq_bcq", "hessian_bcq")
    reference = weight if method == "none" else (signs if one_bit else naive)(weight, q, g)
    expected = reference - weight
    if isinstance(inputs, torch.Tensor) and method not in ("none", "rtn", "bcq"):
        x = inputs.detach().double()
        x = x / (float(x.abs().max()) or 1.0)
        error, weight, expected = error @ x.T, weight @ x.T, expected @ x.T
    stored = CODED if method in ("mixed_2_4_16", "group_widths") else HALF
    allowed = 4 * expected.norm() + stored * weight.norm() + 1e-12
    return "" if error.norm() <= allowed else f"error {error.norm():.3g}, at most {allowed:.3g}"


def of_tensor(given: Mapping[str, Any], found: Any) -> str:
    """A packed weight is near its weight."""
    if not isinstance(found, Format):
        return f"returned {type(found).__name__}"
    rule = given.get("variant", "awq" if given["method"] == "awq" else "")
    if rule == "awq" and not _straddles(given["weight"], given["g"]):
        return ""  # AWQ's rule keeps 0 on its grid, and none of a group on one side of it
    if {"rounds", "solver"} & given.keys():
        return ""  # fewer rounds than it takes were asked for
    said = (given[name] for name in ("method", "q", "g", "inputs"))
    return nearness(given["weight"], found.dequantize(), *said)


def of_model(before: Any, given: Mapping[str, Any], found: Any) -> str:
    """Every linear layer is near what it was, where no inputs moved it."""
    if found is not given["model"]:
        return "another model"
    for name in kinds(before.config):
        was, now = before.get_submodule(name), found.get_submodule(name)
        packed = now.packed.dequantize() if isinstance(now, QuantLinear) else weight_of(now)
        if not torch.isfinite(packed).all():
            return f"{name} is not finite"
        if given["method"] not in ("none", "rtn", "bcq") or given.get("budget"):
            continue
        q, g = 16, -1
        if isinstance(now, QuantLinear):
            q, g = now.layout()["q"], now.layout()["g"]
        if said := nearness(weight_of(was), packed, given["method"], q, g, None):
            return f"{name}: {said}"
    return ""


def of_perplexity(given: Mapping[str, Any], found: Any) -> str:
    """The mean loss of each window, by transformers' own loss."""
    ids = torch.tensor(given["tokenizer"](given["text"]).input_ids)
    seqlen, model = given["seqlen"], given["model"].eval()
    windows = ids[: len(ids) // seqlen * seqlen].view(-1, seqlen)
    with torch.no_grad():
        loss = torch.stack([model(input_ids=w[None], labels=w[None]).loss.float() for w in windows])
    expected = math.exp(float(loss.mean()))
    near = 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.1
    return "" if math.isclose(found, expected, rel_tol=near) else f"{found}, not {expected}"


def of_lambada(given: Mapping[str, Any], found: Any) -> str:
    """Of as many examples as were given."""
    right = isinstance(found, LambadaResult) and found.n + len(found.left_out) == len(
        given["examples"]
    )
    return "" if right and math.isfinite(found.perplexity) else f"{found}"


def of_folder(given: Mapping[str, Any], found: Any) -> str:
    """The folder is complete."""
    folder = Path(given["folder"]).expanduser()
    there = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    return "" if found is None and there else f"{found}, complete: {there}"


def of_loaded(model: torch.nn.Module, given: Mapping[str, Any], found: Any) -> str:
    """Packed weights are those that were saved."""
    for name, module in model.named_modules():
        if isinstance(module, QuantLinear):
            again = found.get_submodule(name).packed.dequantize()
            if not again.is_meta and not torch.equal(again.cpu(), module.packed.dequantize()):
                return f"{name} has other weights"
    return "" if found.device == torch.device("cpu") else f"on {found.device}"


def of_results(_: Mapping[str, Any], found: Any) -> str:
    """There is nothing to be read in any folder of a case."""
    return f"{len(found)} rows of nothing"


def of_tuning(given: Mapping[str, Any], found: Any) -> str:
    """The values given, in range."""
    whole = all(type(v) is int for v in (found.steps, found.batch, found.seed))
    right = isinstance(found, Tuning) and whole and min(found.steps, found.batch) > 0
    return "" if right and type(found.loss) in (str, type(given.get("loss", ""))) else f"{found}"


def of_product(given: Mapping[str, Any], made: tuple[Format, Any]) -> str:
    """The dense product in float64, within what x's dtype rounds."""
    x, bias, (packed, found) = given["x"], given["bias"], made
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return f"a product of {type(x).__name__}"
    if x.is_meta:
        return "" if found.is_meta and found.shape[:-1] == x.shape[:-1] else "no meta tensor"
    weight = packed.dequantize().double()
    dense = torch.nn.functional.linear(
        x.detach().double(), weight, None if bias is None else bias.double()
    )
    size = x.detach().double().abs() @ weight.abs().T + (0 if bias is None else bias.double().abs())
    near = {torch.float16: 2.0**-8, torch.bfloat16: 2.0**-5}.get(x.dtype, 2.0**-14)
    if found.dtype != x.dtype or found.shape != dense.shape:
        return f"{found.dtype} {list(found.shape)}"
    fits = dense.abs() <= 0.99 * torch.finfo(x.dtype).max
    same = (found.detach().double() - dense).abs() <= near * size + 2 * torch.finfo(
        x.dtype
    ).smallest_normal
    wrong = int((~same & fits & torch.isfinite(dense)).sum())
    return f"{wrong} of {found.numel()} are not the dense product" if wrong else ""


def of_nothing(_: Mapping[str, Any], found: Any) -> str:
    """Such a call returns nothing."""
    return f"returned {type(found).__name__}"
