#!/usr/bin/env bash
# Builds the wheel for the TensorFlow of $PYTHON_BIN_PATH (default: python3) and puts it into DEST:
#   ./build_pip_pkg.sh DEST [BAZEL_FLAG...]        for instance: ./build_pip_pkg.sh dist --config=cuda
# What that Python lacks of requirements/build.txt is fetched into .cache.
set -euo pipefail

dest=$(realpath -m "${1:?usage: ./build_pip_pkg.sh DEST [BAZEL_FLAG...]}")
shift
cd "$(dirname "${BASH_SOURCE[0]}")"
export PYTHON_BIN_PATH=${PYTHON_BIN_PATH:-python3}
pip() { "$PYTHON_BIN_PATH" -m pip --disable-pip-version-check "$@"; }

if ! pip install --quiet --dry-run --no-index -r requirements/build.txt &>/dev/null; then
  tools=$PWD/.cache/build-tools
  pip install --quiet --upgrade --target "$tools" -r requirements/build.txt
  export PYTHONPATH=$tools${PYTHONPATH:+:$PYTHONPATH} PATH=$tools/bin:$PATH
fi
# pip shows nothing of what it builds: this does, and is nothing to do again for pip.
bazel/build_library.sh tf_ti "$@"
# pip's cache would answer with an older wheel of some checkouts, depending on the folder's name.
pip wheel . --wheel-dir "$dest" --no-deps --no-cache-dir \
  --no-build-isolation --check-build-dependencies --config-settings "bazel-flags=$*"
