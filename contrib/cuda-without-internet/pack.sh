#!/usr/bin/env bash
# TensorFlow's own build for CUDA, what it needs, and tf_ti's wheel for it, in parts for a machine that has a GPU of
# compute capability 9.0, Python 3.12, CUDA 12 or 13 and pytest's needs, but no internet:
#
#   pack.sh WHEEL FOLDER [MIB]      FOLDER/part.1 to FOLDER/part.N, each of MIB (60) at most, and FOLDER/unpack.sh
#
# The wheel comes from `make wheel CONFIG=cuda TF_PACKAGE=tensorflow-cpu`. Needs pip, unzip, zstd, readelf and strip, and
# a quarter of an hour on two cores, most of it zstd's.
set -euo pipefail
wheel=$(realpath "$1") folder=$(realpath -m "$2") mib=${3:-60}
here=$(dirname "$(realpath "$0")") work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tf=$(basename "$wheel" | sed -E 's/.*\+tf([0-9]+\.[0-9]+).*/\1/')
download() { # download FOLDER NAME...
  local into=$1
  shift
  python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --platform any --dest "$into" "$@"
}
download "$work/tf" "tensorflow==$tf.*"
mkdir -p "$work/site" "$work/pack/deps"
unzip -q "$work"/tf/*.whl -x 'tensorflow/include/*' -d "$work/site"
find "$work/site" -name '*.so*' -size +1M | while read -r library; do
  python3 "$here/keep_sm90.py" "$library"
  strip --strip-all "$library"
done
tar -C "$work/site" -cf - . | zstd -q -17 --long=27 -T0 -o "$work/pack/tf.tar.zst"
download "$work/pack/deps" absl-py astunparse flatbuffers gast google_pasta opt_einsum packaging \
  'protobuf<8,>=6.31.1' requests urllib3 idna certifi charset-normalizer setuptools six termcolor typing_extensions \
  wrapt 'grpcio<2' keras 'numpy<2.4' 'h5py<3.15' 'ml_dtypes<1' wheel namex optree rich markdown-it-py mdurl pygments \
  pytest iniconfig pluggy pytest-xdist execnet defusedxml tqdm nvidia-cuda-runtime-cu12
cp "$wheel" /usr/bin/zstd "$work/pack/"
cp -L $(ldd /usr/bin/zstd | awk '/libz|lz4|lzma/ {print $3}') "$work/pack/"
mkdir -p "$folder"
rm -f "$folder"/part.*
tar -C "$work/pack" -cf - . |
  split --bytes="${mib}M" --numeric-suffixes=1 --suffix-length=1 - "$folder/part."
cp "$here/unpack.sh" "$folder/"
du -sm "$folder"/*
