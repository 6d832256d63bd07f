#!/usr/bin/env bash
# Puts the sources of GoogleTest, from the package of Debian or Ubuntu, into FOLDER, and installs
# nothing:
#   googletest.sh FOLDER
set -euo pipefail

folder=$(realpath -m "${1:?usage: googletest.sh FOLDER}")

rm -rf "$folder"
mkdir -p "$folder"/download/{lists,cache/archives}/partial
cd "$folder/download"

# Lists of its own, as root may have cleaned the system's away.
apt=(apt-get -qq -o APT::Sandbox::User= -o Dir::Cache="$PWD/cache" -o Dir::State::lists="$PWD/lists")
if ! { command -v apt-get >/dev/null && "${apt[@]}" update && "${apt[@]}" download googletest; }; then
  echo "googletest.sh: apt-get does not reach the package googletest: set GOOGLETEST_HOME to a" \
    "checkout of GoogleTest" >&2
  exit 1
fi
dpkg-deb --extract googletest_*.deb .
mv usr/src/googletest/* ..
cd ..
rm -r download
