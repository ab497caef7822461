"""Perplexity after quantization by lutlab, beside public implementations on the same model and calibration tokens.

    python benchmarks/bench_accuracy.py [--models llama-embedded-s opt-embedded-s --q 4 3 --g 32 64 128 --seeds 0 1 2]
        [--out a.json] --peer-python <python of an environment that has llmcompressor>

Each peer quantizes end to end, through its public entry point, in a process of its own, and saves the whole model with
dequantized weights, in float32. Those are loaded into the plain model here, and all perplexities are of one evaluator
in one process, on held-out text. A peer that fails at a setting is a row with its reason.

Like is set beside like (PAIRS): asymmetric grids, damping 0.01 of the mean diagonal, no act order unless named, H of
the model quantized so far and of whole blocks at a time. llm-compressor's GPTQ knows only grids of the original
weights, our static_groups; its AWQ does not clip, and has no mapping for OPT: it is given the AWQ repository's. Scales
are float16 in ours unless named, float32 in llm-compressor.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

# row name -> method and options
OURS = {
    "rtn": ("rtn", {}),
    "rtn fp32 scales": ("rtn", {"scale_dtype": "fp32"}),
    "gptq": ("gptq", {}),
    "gptq static_groups": ("gptq", {"static_groups": True}),
    "gptq static_groups fp32 scales": ("gptq", {"static_groups": True, "scale_dtype": "fp32"}),
    "gptq act_order": ("gptq", {"act_order": True}),
    "gptq act_order static_groups": ("gptq", {"act_order": True, "static_groups": True}),
    "gptq_bcq": ("gptq_bcq", {}),
    "awq": ("awq", {}),
    "awq clip=false": ("awq", {"clip": False}),
}
# peer -> row name of what it runs -> our row of the same settings
PAIRS = {
    "llmcompressor": {
        "rtn": "rtn fp32 scales",
        "gptq": "gptq static_groups fp32 scales",
        "gptq actorder=static": "gptq act_order static_groups",
        "awq": "awq clip=false",
    },
}


def settings(args: argparse.Namespace) -> Iterator[tuple[int, int]]:
    for q in args.q:
        for g in args.g:
            yield q, g


def llmcompressor(
    folder: str, method: str, q: int, g: int, ids: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Call oneshot on a float32 model; ids [samples, S] -> state dict."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQMapping, AWQModifier
    from transformers import AutoModelForCausalLM

    # 0.14 pins memory without asking whether there is an accelerator, which raises where there is none.
    if not torch.accelerator.is_available():
        torch.Tensor.pin_memory = lambda tensor, *_: tensor
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    options = QuantizationArgs(num_bits=q, group_size=g, symmetric=False, strategy="group")
    scheme = {
        "config_groups": {"all": QuantizationScheme(targets=["Linear"], weights=options)},
        "ignore": ["lm_head"],
    }
    mappings = None
    if model.config.model_type == "opt":
        mappings = [
            AWQMapping("re:.*self_attn_layer_norm$", [f"re:.*{x}_proj$" for x in "qkv"]),
            AWQMapping("re:.*v_proj$", ["re:.*out_proj$"]),
            AWQMapping("re:.*layers.*final_layer_norm$", ["re:.*fc1$"]),
            AWQMapping("re:.*fc1$", ["re:.*fc2$"]),
        ]
    order = "static" if "actorder" in method else None
    recipe = {
        "rtn": lambda: [QuantizationModifier(**scheme)],
        "gptq": lambda: [GPTQModifier(**scheme, dampening_frac=0.01, actorder=order)],
        "awq": lambda: [AWQModifier(mappings=mappings), QuantizationModifier(**scheme)],
    }[method.split()[0]]()
    ones = torch.ones_like(ids)
    rows = Dataset.from_dict({"input_ids": ids.tolist(), "attention_mask": ones.tolist()})
    calibration = {} if method == "rtn" else {"dataset": rows}
    oneshot(
        model=model,
        recipe=recipe,
        num_calibration_samples=len(ids),
        max_seq_length=ids.shape[1],
        shuffle_calibration_samples=False,
        **calibration,
    )
    dense = {name: value.detach() for name, value in model.state_dict().items()}
    for name, layer in model.named_modules():
        if hasattr(layer, "weight_scale"):
            dense[f"{name}.weight"] = fake_quantize(
                layer.weight.detach(), layer.weight_scale, layer.weight_zero_point, options
            ).detach()
    return dense


PEERS: dict[str, Callable] = {"llmcompressor": llmcompressor}


def be_peer(args: argparse.Namespace) -> None:
    """Write <method>-<q>-<g>.safetensors, or .txt with the reason why not, into args.answers."""
    ids = load_file(args.answers / "calibration.safetensors")["ids"]
    for q, g in settings(args):
        for method in args.methods:
            path = args.answers / f"{method}-{q}-{g}.safetensors"
            try:
                dense = PEERS[args.as_peer](args.models[0], method, q, g, ids)
            except Exception as error:  # whatever it raises is the result at this setting
                traceback.print_exc()
                reason = str(error).strip().partition("\n")[0]
                path.with_suffix(".txt").write_text(f"{type(error).__name__}: {reason}")
                continue
            save_file({k: v.float().contiguous().clone() for k, v in dense.items()}, path)


def ask_peer(
    peer: str, folder: Path, ids: torch.Tensor, args: argparse.Namespace
) -> Iterator[tuple[str, int, int, dict[str, torch.Tensor] | str]]:
    """Yield method, q, g and a state dict or the reason why there is none; the peer need not have lutlab."""
    methods = [method for method in PAIRS[peer] if method not in args.without]
    with tempfile.TemporaryDirectory() as answers:
        save_file({"ids": ids}, Path(answers) / "calibration.safetensors")
        command = [args.peer_python, __file__, "--as-peer", peer, "--answers", answers]
        command += ["--models", str(folder), "--threads", str(args.threads), "--methods", *methods]
        command += ["--q", *map(str, args.q), "--g", *map(str, args.g)]
        code = subprocess.run(command, check=False, stdout=sys.stderr).returncode
        for q, g in settings(args):
            for method in methods:
                path = Path(answers) / f"{method}-{q}-{g}.safetensors"
                if path.exists():
                    yield method, q, g, load_file(path)
                elif path.with_suffix(".txt").exists():
                    yield method, q, g, path.with_suffix(".txt").read_text()
                else:
                    yield method, q, g, f"its process ended with status {code}"


def measure_model(name: str, seed: int, args: argparse.Namespace) -> dict:
    """Rows of one model, an embedded one's name or a folder, on the calibration windows of one seed."""
    import lutlab
    from lutlab.data import load_text
    from lutlab.data.calibration import calibration_windows
    from lutlab.data.tokens import token_sha256, token_stream
    from lutlab.evaluators.perplexity import window_nll
    from lutlab.models.load import embedded_names, folder_of, load_model
    from lutlab.specs import ModelSpec, TextSpec

    source = "embedded" if name in embedded_names() else "folder"
    spec = ModelSpec(name, source, name)
    loaded = load_model(spec, torch.float32, "cpu", 0)
    tokenizer = loaded.tokenizer
    text = load_text(TextSpec("pydocs-train", "embedded"))
    ids = calibration_windows(text, tokenizer, args.samples, args.seqlen, seed)
    held_out = token_stream(load_text(TextSpec("topics", "embedded")), tokenizer, args.seqlen)

    def fresh() -> torch.nn.Module:
        return copy.deepcopy(loaded.model)

    def perplexity(model: torch.nn.Module) -> float:
        nll = window_nll(model, held_out, args.seqlen)
        return math.exp(sum(nll) / (len(nll) * args.seqlen))

    full, rows = perplexity(fresh()), []

    def add(who: str, method: str, q: int, g: int, found: dict) -> None:
        row = {"implementation": who, "method": method, "q": q, "g": g, **found}
        rows.append(row)
        print(name, row, file=sys.stderr, flush=True)

    for q, g in settings(args):
        for method, (registered, options) in OURS.items():
            if method in args.without:
                continue
            model = lutlab.quantize(fresh(), registered, q, g, calibration=ids, **options)
            add("lutlab", method, q, g, {"ppl": perplexity(model)})
    for peer in args.peers if args.peer_python else ():
        for method, q, g, dense in ask_peer(peer, folder_of(spec), ids, args):
            if isinstance(dense, str):
                add(peer, method, q, g, {"not_run": dense})
                continue
            add(peer, method, q, g, {"ppl": perplexity(with_weights(fresh(), dense))})
    return {
        "model": name if source == "embedded" else Path(name).name,
        "seed": seed,
        "full_precision_ppl": full,
        "calibration_sha256": token_sha256(ids.flatten()),
        "held_out_sha256": token_sha256(held_out),
        "rows": rows,
    }


def with_weights(model: torch.nn.Module, dense: dict[str, torch.Tensor]) -> torch.nn.Module:
    """The model with a peer's tensors; all of its own must be there, those of codes and scales are left out."""
    own = model.state_dict()
    if missing := [name for name in own if name not in dense]:
        raise KeyError(f"the peer saved no {missing[0]} and {len(missing) - 1} more")
    model.load_state_dict({key: dense[key] for key in own})
    return model


def comparisons(models: list[dict]) -> Iterator[tuple[str, str, str, list[float]]]:
    """Peer, its method, our method and log(our ppl / its ppl) of every model, seed, q and g that it finished."""
    for peer, pairs in PAIRS.items():
        for theirs, ours in pairs.items():
            logs = []
            for model in models:
                ppl = {
                    (r["implementation"], r["method"], r["q"], r["g"]): r.get("ppl")
                    for r in model["rows"]
                }
                for (who, method, q, g), value in ppl.items():
                    own = ppl.get(("lutlab", ours, q, g))
                    if (who, method) == (peer, theirs) and value and own:
                        logs.append(math.log(own / value))
            if logs:
                yield peer, theirs, ours, logs


def table(result: dict) -> str:
    """A block a model, a line an implementation and method, a column a (q, g); then ours over theirs."""
    lines = []
    for model in result["models"]:
        columns = list(dict.fromkeys((row["q"], row["g"]) for row in model["rows"]))
        lines += [
            f"{model['model']}, seed {model['seed']}: full precision {model['full_precision_ppl']:.4f}, perplexity"
        ]
        lines += [" " * 44 + "".join(f"{f'q{q} g{g}':>10}" for q, g in columns)]
        for who, method in dict.fromkeys((r["implementation"], r["method"]) for r in model["rows"]):
            own = [r for r in model["rows"] if (r["implementation"], r["method"]) == (who, method)]
            cells = [f"{r['ppl']:10.4f}" if "ppl" in r else f"{'not run':>10}" for r in own]
            lines += [f"  {who:14} {method:28}" + "".join(cells)]
            lines += [f"    not run: {why}" for why in {r.get("not_run") for r in own} - {None}]
    lines += [
        "ours / its perplexity: geometric mean over all columns, standard error, ours lower in"
    ]
    for peer, theirs, ours, logs in comparisons(result["models"]):
        spread = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
        lines += [
            f"  {ours:28} / {peer + ' ' + theirs:36} {math.exp(statistics.mean(logs)):.4f} +- {spread:.4f}"
            f"  {sum(x < 0 for x in logs)} of {len(logs)}"
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models",
        nargs="+",
        default=["llama-embedded-s", "opt-embedded-s"],
        help="embedded names or folders",
    )
    parser.add_argument("--q", type=int, nargs="+", default=[4, 3])
    parser.add_argument("--g", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--samples", type=int, default=32, help="calibration windows")
    parser.add_argument("--seqlen", type=int, default=512)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the calibration windows"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--peer-python", help="python of the environment that has the peers")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--without", nargs="+", default=[], help="rows to leave out")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    parser.add_argument("--as-peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--methods", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--answers", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.as_peer:
        be_peer(args)
        return
    import origin  # imports lutlab, which the peer's environment need not have

    result = {key: getattr(args, key) for key in ("samples", "seqlen", "threads")}
    result |= {"torch": torch.__version__, "ours": {k: v[1] for k, v in OURS.items()}}
    result["models"] = []
    for name, seed in itertools.product(args.models, args.seeds):
        result["models"].append(measure_model(name, seed, args))
        if args.out:  # after each model: a run of hours may be cut short
            origin.write(args.out, result)
    print(table(result))


if __name__ == "__main__":
    main()
