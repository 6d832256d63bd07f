#!/usr/bin/env bash
# Builds the library, with the given Bazel flags, and puts it into a copy of the package:
#   build_library.sh PACKAGE_DIRECTORY [BAZEL_FLAG...]
set -euo pipefail

package=$(realpath "$1")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bazel/bazel.sh build "$@" //:_tf_ti.so //:build_info
for file in _tf_ti.so _build_info.py; do
  cmp -s "bazel-bin/$file" "$package/$file" || install -m 644 "bazel-bin/$file" "$package/$file"
done
