#!/usr/bin/env bash
# Runs the first Bazel that works here, with all its files inside the checkout:
#   $BAZEL, bazelisk or bazel on PATH, npm's @bazel/bazelisk, Debian's bazel-bootstrap.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
cache=$PWD/.cache
choice=$cache/bazel-command # a Bazelisk without the internet takes its time to fail: ask once
npm_bazelisk=$cache/npm/node_modules/.bin/bazelisk
npm_version=1.28.1

say() { echo "bazel.sh: $*" >&2; }

# A Bazelisk needs the internet to fetch a Bazel, and Debian's `bazel` refuses the version in
# .bazelversion. Only a run shows if it works.
works() { timeout 300 "$1" --version >/dev/null 2>&1; }

install_from_npm() {
  command -v npm >/dev/null || return 1
  say "installing @bazel/bazelisk from npm into .cache"
  npm install --silent --no-save --prefix "$cache/npm" "@bazel/bazelisk@$npm_version" >&2
}

install_from_apt() {
  command -v apt-get >/dev/null || return 1
  local apt=(apt-get -y --no-install-recommends)
  [[ $(id -u) == 0 ]] || apt=(sudo -n "${apt[@]}")
  say "installing bazel-bootstrap with apt-get"
  "${apt[@]}" install bazel-bootstrap >&2 ||
    { "${apt[@]}" update && "${apt[@]}" install bazel-bootstrap; } >&2
}

find_bazel() {
  local candidate
  # bazel-4 is Debian's Bazel without the script that reads .bazelversion.
  for candidate in "$(cat "$choice" 2>/dev/null)" bazelisk bazel bazel-4 "$npm_bazelisk"; do
    if works "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  if install_from_npm && works "$npm_bazelisk"; then
    echo "$npm_bazelisk"
  elif install_from_apt && works bazel-4; then
    echo bazel-4
  else
    say "no Bazel works here. Do one of these: let Bazelisk reach the internet, install Debian's" \
      "package bazel-bootstrap, or set BAZEL to the path of a Bazel $(cat .bazelversion)."
    return 1
  fi
}

mkdir -p "$cache"
if ! [[ -d ${HOME:-} && -w $HOME ]]; then
  mkdir -p "$cache/home"
  export HOME=$cache/home
fi

if [[ -n ${BAZEL:-} ]]; then
  bazel=$BAZEL
else
  bazel=$(find_bazel)
  echo "$bazel" >"$choice"
fi

flags=()
if [[ $("$bazel" --version) == "bazel no_version" ]]; then
  # That is Debian's Bazel. The files that its own files load come from its package and from us, as
  # nothing can be downloaded.
  flags+=(--override_repository=platforms=/usr/share/bazel/platforms)
  for rules in remote_coverage_tools rules_cc rules_java rules_proto; do
    flags+=("--override_repository=$rules=$PWD/contrib/debian-bazel/$rules")
  done
fi

export PYTHON_BIN_PATH=${PYTHON_BIN_PATH:-python3}
TF_TI_TENSORFLOW=$("$PYTHON_BIN_PATH" bazel/installed_tensorflow.py)
export TF_TI_TENSORFLOW

command=$1
shift
exec "$bazel" --output_user_root="$cache/bazel" "$command" "${flags[@]}" "$@"
