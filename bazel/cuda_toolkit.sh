#!/usr/bin/env bash
# Puts what compiles CUDA sources for drivers of CUDA 12 into FOLDER, and installs nothing:
#   cuda_toolkit.sh FOLDER
# Of nvcc PyPI's packages of CUDA 12 have only ptxas; Debian 13 has all of it, which runs elsewhere.
set -euo pipefail

folder=$(realpath -m "${1:?usage: cuda_toolkit.sh FOLDER}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "cuda_toolkit.sh: $*" >&2; }

# Any release of Debian knows a mirror that has the others too.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/$') ||
  { say "apt knows no mirror of Debian: set CUDA_HOME to a CUDA 12 toolkit" && exit 1; }

rm -rf "$folder"
mkdir -p "$folder"/{bin,lib64,download/lists/partial,download/cache/archives/partial}
cd "$folder/download"
echo "deb $mirror trixie non-free" >sources.list
apt=(apt-get -qq -o APT::Sandbox::User= -o Dir::Etc::sourceparts=- -o Dir::Etc::sourcelist="$PWD/sources.list"
  -o Dir::State::lists="$PWD/lists" -o Dir::Cache="$PWD/cache")
"${apt[@]}" update
"${apt[@]}" download 'nvidia-cuda-toolkit=12.4.*'
dpkg-deb --extract nvidia-cuda-toolkit_*.deb .
"${PYTHON_BIN_PATH:-python3}" -m pip install --quiet --no-compile --no-deps --target . -r "$OLDPWD/requirements/cuda.txt"

nvcc=usr/lib/nvidia-cuda-toolkit
mv "$nvcc"/bin/{cicc,crt,nvcc} usr/bin/{cudafe++,fatbinary,nvlink,ptxas} ../bin
mv "$nvcc/libdevice" ..
for package in cccl nvcc runtime; do
  cp -r "nvidia/cuda_$package/include" ..
done
mv nvidia/cuda_runtime/lib/*.a ../lib64
# Debian's names its own folders.
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
