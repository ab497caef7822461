#!/usr/bin/env bash
# The newest versions that pyproject.toml allows, as whoever installs without the lock has them (torch stays: [tool.uv]
# there): a row of README's table and a text, which must print no warning; how many published records are stale; and
# tests, in which a warning is no error (tests/conftest.py).
#     tests/newest.sh .venv [path ...]     a copy of that environment, renewed; README's tests, or some of them
set -euo pipefail
cd "$(dirname "$0")/.."

newest=$PWD/build/newest # beside .venv, whose files a copy shares
rm -rf "$newest"
trap 'rm -rf "$newest"' EXIT
mkdir -p "$newest"
cp -al "$1/." "$newest"
python=$newest/bin/python
"$1/bin/uv" pip install --python "$python" --upgrade -e '.[dev]' # prints what moved

echo "newest.sh: a row and a text"
row=(+exp=table4 'rows=[opt-30b/q3_g64]' data.limit=2 logger=none results="$newest/results")
text=(generate model=llama-embedded-m method=bcq q=3 g=128 tokens=8 prompt='The function returns')
{ "$python" run.py "${row[@]}" && "$python" run.py "${text[@]}"; } > "$newest/printed" 2>&1 || { cat "$newest/printed"; exit 1; }
if grep -i warning "$newest/printed"; then exit 1; fi

echo "newest.sh: published records that these versions would measure anew"
"$python" -m lutlab results stale --results results/published

"$python" -m pytest -q -n 2 --dist worksteal -W default "${@:2}"
