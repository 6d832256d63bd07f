#!/usr/bin/env bash
# Puts a compiler of CUDA sources for drivers of CUDA 12 into FOLDER, and installs nothing:
#   cuda_toolkit.sh FOLDER
# PyPI's packages of CUDA 12 have only ptxas and a library of nvcc. Debian 13 has all of nvcc, which
# runs on other releases too.
set -euo pipefail

folder=$(realpath -m "${1:?usage: cuda_toolkit.sh FOLDER}")
python=${PYTHON_BIN_PATH:-python3}
requirements=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../requirements/cuda.txt")

# apt's own mirror, which has every release.
if ! mirrors=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' |
  grep '/debian/$'); then
  echo "cuda_toolkit.sh: apt knows no mirror of Debian: set CUDA_HOME to a CUDA 12 toolkit" >&2
  exit 1
fi

mirror=${mirrors%%$'\n'*}

rm -rf "$folder"
mkdir -p "$folder"/{bin,lib64,download/{lists,cache/archives}/partial}
cd "$folder/download"

echo "deb $mirror trixie non-free" >sources.list
apt=(apt-get -qq -o APT::Sandbox::User= -o Dir::Cache="$PWD/cache" -o Dir::State::lists="$PWD/lists"
  -o Dir::Etc::sourcelist="$PWD/sources.list" -o Dir::Etc::sourceparts=-)
"${apt[@]}" update
"${apt[@]}" download 'nvidia-cuda-toolkit=12.4.*'
dpkg-deb --extract nvidia-cuda-toolkit_*.deb .
"$python" -m pip install --quiet --no-compile --no-deps --target . -r "$requirements"

nvcc=usr/lib/nvidia-cuda-toolkit
mv "$nvcc"/bin/{cicc,crt,nvcc} usr/bin/{cudafe++,fatbinary,nvlink,ptxas} ../bin
mv "$nvcc/libdevice" ..
for package in cccl nvcc runtime; do
  cp -r "nvidia/cuda_$package/include" ..
done
mv nvidia/cuda_runtime/lib/*.a ../lib64
# Debian's has absolute paths.
cat >../bin/nvcc.profile <<'PROFILE'
TOP = $(_HERE_)/..
CICC_PATH = $(_HERE_)
NVVMIR_LIBRARY_DIR = $(TOP)/libdevice
PATH += $(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64"
PROFILE
cd ..
rm -r download
