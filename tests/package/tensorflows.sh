#!/usr/bin/env bash
# Tests each of some TensorFlows: tensorflows.sh MAKE VERSION...
# The contract tells what a TensorFlow moved, even where tf_ti does not build against that; then the
# wheel is built, and its self-check run.
set -uo pipefail

make=$1
shift
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
lines=()

passes() {
  if "${@:2}"; then result=passes; else result=fails; failed=1; fi
  lines+=("TensorFlow $version: $1 $result")
}

for version; do
  bin=$PWD/.venv-tf$version/bin
  passes contract eval '$make TF_VERSION=$version .venv-tf$version/.tests &&
    (cd tests && "$bin/pytest" --quiet package/test_tensorflow_contract.py)'
  passes self-check eval '$make TF_VERSION=$version .venv-tf$version/.installed &&
    (cd tests && "$bin/python" -m tf_ti)'
done
printf '%s\n' "${lines[@]}"
exit "${failed:-0}"
