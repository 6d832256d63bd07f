#!/usr/bin/env bash
# On the machine with the GPU, in the folder of all parts: unpack.sh FOLDER
#
# Puts all into /tmp/tf_cuda; `. /tmp/tf_cuda/env.sh` is what a shell then needs. CUDA's libraries are that machine's,
# of CUDA 12 or 13: TensorFlow asks for functions by name, and both have the ones that it uses.
set -euo pipefail
cd "$1"
to=/tmp/tf_cuda
mkdir -p $to/site $to/lib
cat part.* | tar -C $to -xf -
cd $to
find / -xdev \( -path /proc -o -path /sys -o -path /tmp \) -prune -o -name 'lib*.so*' -print >libs 2>/dev/null &
finding=$!
LD_LIBRARY_PATH=$to ./zstd -d --long=27 -q -c tf.tar.zst | tar -C site -xf - &
unpacking=$!
for wheel in deps/*.whl tf_ti*.whl; do python3 -m zipfile -e "$wheel" site; done
wait $finding || true
find $to/site -name libcudart.so.12 >>libs
link() { # link NAME OTHER_NAME...: the first that is there
  local name=$1 other file
  for other; do
    file=$(grep -m 1 -E "/$other\$" libs || true)
    if [ -n "$file" ]; then
      ln -sf "$file" "lib/$name"
      return
    fi
  done
  echo "$name: none"
}
link libcudart.so.12
link libcublas.so.12 libcublas.so.13
link libcublasLt.so.12 libcublasLt.so.13
link libcufft.so.11 libcufft.so.12
link libcusolver.so.11 libcusolver.so.12
link libcusparse.so.12
link libcudnn.so.9
link libnccl.so.2
link libcupti.so.12 libcupti.so.13
link libnvJitLink.so.12 libnvJitLink.so.13
link libcurand.so.10
link libnvrtc.so.12 libnvrtc.so.13
folders=$(for file in lib/*; do dirname "$(readlink -f "$file")"; done | sort -u | paste -sd:)
cat >env.sh <<F
export PYTHONPATH=$to/site LD_LIBRARY_PATH=$to/lib:$folders PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export XLA_FLAGS=--xla_gpu_cuda_data_dir=\$(dirname "\$(dirname "\$(readlink -f "\$(command -v nvcc)")")")
export TF_FORCE_GPU_ALLOW_GROWTH=true TF_CPP_MIN_LOG_LEVEL=2
F
wait $unpacking
