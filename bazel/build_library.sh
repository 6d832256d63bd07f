#!/usr/bin/env bash
# Builds the libraries, with the given Bazel flags, and puts them into a copy of the package:
#   build_library.sh PACKAGE_DIRECTORY [BAZEL_FLAG...]
set -euo pipefail

package=$(realpath "$1")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bazel/bazel.sh build "$@" //:libraries //:build_info
# Not bazel-bin, the link: a build of another configuration beside this one changes it.
built=$(bazel/bazel.sh info "$@" bazel-bin)
files=(_tf_ti.so _build_info.py)
if grep -q "XLA = True" "$built/_build_info.py"; then
  files+=(_tf_ti_xla.so)
else
  rm -f "$package/_tf_ti_xla.so"
fi
for file in "${files[@]}"; do
  cmp -s "$built/$file" "$package/$file" || install -m 644 "$built/$file" "$package/$file"
done
