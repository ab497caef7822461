"""A warning before a small model is quantized in a way that our records show to be beyond use."""

from __future__ import annotations

import logging
import math

from lutlab.base.specs import ModelRun
from lutlab.models.shape import linear_shapes

log = logging.getLogger(__name__)
SMALL = 1_000_000_000  # weights of linear layers; larger models lose less
FULL_PRECISION = 24.1  # perplexity of SmolLM2-135M on the first four windows of WikiText-2
# (method, q) -> its perplexity there, of lutlab/gguf_types and lutlab/binary_and_uniform at g=64
BEYOND_USE: dict[tuple[str, float], float] = {
    ("rtn", 3): 84.8,
    ("rtn", 2): 1.09e6,
    ("bcq", 3): 438.5,
    ("bcq", 2): 2.44e5,
    ("gptq", 3): 84.1,
    ("gptq", 2): 3.95e4,
}
# of the first eight windows, over full precision's
CURE = "method=hessian_uniform raises it by 38 % at q=3 g=32, by 10 % at q=4 g=48"


def warn(run: ModelRun) -> None:
    """Warn where a method gave a small real model several times its perplexity, and name better ones.

    Models that ship with lutlab lose less, as their weights have no outliers.
    """
    if run.model.source in ("embedded", "synthetic"):
        return
    if run.budget is not None or run.tuning or dict(run.options).get("target") == "stream":
        return
    perplexity = BEYOND_USE.get((run.method, run.q))
    if perplexity is None or sum(map(math.prod, linear_shapes(run.model).values())) >= SMALL:
        return
    log.warning(
        "method=%s at q=%s is beyond use on models this small: with it SmolLM2-135M has perplexity %.3g on WikiText-2, "
        "and %.3g in full precision; %s",
        *(run.method, run.q, perplexity, FULL_PRECISION, CURE),
    )
