#!/usr/bin/env bash
# Build the wheel, install it alone into a bare environment, and use it where no checkout is.
#
#     tests/installed.sh [python]     a Python that has lutlab's dependencies and pip; .venv's otherwise
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:-.venv/bin/python}
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") # a link stays one: it names the environment
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m pip wheel -q --no-deps -w "$work" .
wheel=$(echo "$work"/lutlab-*.whl)

echo "installed.sh: the wheel carries what git tracks, and nothing else"
diff <(git ls-files --cached --others --exclude-standard src conf experiments kernels |
         sed -E 's,^(conf|experiments|kernels)/,lutlab/share/\1/,; s,^src/,,' | sort) \
     <("$python" -m zipfile -l "$wheel" | awk 'NR > 1 { print $1 }' | grep -v '\.dist-info/' | sort)

# The dependencies are those of $python, through a .pth file. Python reads none in a folder that another one adds, so
# an editable lutlab stays out of sight there.
"$python" -m venv --without-pip "$work/bare"
bare=$work/bare/bin
"$python" -m pip --python "$bare/python" install -q --no-deps --no-index "$wheel"
purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
"$python" -c "$purelib" > "$("$bare/python" -c "$purelib")/dependencies.pth"

cd "$work"
unset PYTHONPATH
export LUTLAB_CACHE=$work/cache HF_HUB_OFFLINE=1 # kernels are built from the wheel's sources
echo "installed.sh: a quantized forward"
"$bare/python" - "$work/bare" <<'PYTHON'
import sys

import torch
from transformers import AutoModelForCausalLM

import lutlab
from lutlab.models.load import EMBEDDED

assert lutlab.__file__.startswith(sys.argv[1]), lutlab.__file__
model = AutoModelForCausalLM.from_pretrained(EMBEDDED / "opt-embedded-s", dtype=torch.float32).eval()
ids = torch.arange(5, 37)[None]  # [1, 32]
with torch.no_grad():
    full = model(ids).logits
    lutlab.quantize(model, method="bcq", q=4, g=32)
    error = ((model(ids).logits - full).square().sum() / full.square().sum()).item()
print(f"relative squared error of the logits: {error:.1e}")
assert 0 < error < 0.05, error
PYTHON
find "$LUTLAB_CACHE" -name kernel.sealed | grep -q . || { echo "no kernel was built"; exit 1; }

echo "installed.sh: a table"
table=(+exp=table4 'rows=[opt-30b/q3_g64]' data.limit=2 logger=none)
"$bare/lutlab" "${table[@]}"
"$bare/python" -m lutlab "${table[@]}" mode=report > /dev/null
test -s results/lut-gemm-v3/table4/embedded-first2/table.md
