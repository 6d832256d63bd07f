#!/usr/bin/env bash
# Builds the wheel for the TensorFlow of $PYTHON_BIN_PATH (default: python3) and puts it into DEST:
#   ./build_pip_pkg.sh DEST [BAZEL_FLAG...]        for instance: ./build_pip_pkg.sh dist --config=cuda
# That Python also needs what pyproject.toml lists under [build-system].
set -euo pipefail

dest=$(realpath -m "${1:?usage: ./build_pip_pkg.sh DEST [BAZEL_FLAG...]}")
shift
cd "$(dirname "${BASH_SOURCE[0]}")"
# pip's cache would answer with an older wheel of some checkouts, depending on the folder's name.
"${PYTHON_BIN_PATH:-python3}" -m pip wheel . --wheel-dir "$dest" --no-deps --no-cache-dir \
  --no-build-isolation --check-build-dependencies --config-settings "bazel-flags=$*"
