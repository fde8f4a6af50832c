# Shared by the scripts: the root folder, help, and build folders that are reused while they are usable.
# Sourced, not run.
# shellcheck shell=bash
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# A script's help is the comment at its head.
show_help() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

usage_error() {
  echo "$(basename "$0"): $* (--help explains)" >&2
  exit 2
}

# usable DIR: succeeds if this version of meson configured DIR for this path without an error.
usable() {
  [[ -f $1/build.ninja && -s $1/meson-private/coredata.dat ]] &&
    python3 - "$1" "$root" "$(meson --version)" <<'PYTHON'
import json, pathlib, sys
folder, root, version = sys.argv[1:]
try:
    info = json.loads(pathlib.Path(folder, "meson-info", "meson-info.json").read_text())
    known = info["meson_version"]["full"], info["directories"]["source"], info["directories"]["build"], info["error"]
except (OSError, ValueError, KeyError):
    sys.exit(1)
sys.exit(known != (version, root, folder, False))
PYTHON
}

# configure DIR OPTION...: quiet unless it fails. The options only count where DIR is configured from scratch, as it is if
# meson can no longer update it. An error in meson.build is no reason to discard a build.
configure() {
  local dir=$1 log
  shift
  log=$(mktemp)
  if usable "$dir"; then
    if ninja -C "$dir" build.ninja >"$log" 2>&1; then
      rm -f "$log"
      return
    elif grep -q 'meson\(.build\|_options.txt\):.*ERROR' "$log"; then
      cat "$log"
      rm -f "$log"
      return 1
    fi
  fi
  echo "configuring ${dir#"$root"/}"
  rm -rf "$dir"
  if ! meson setup "$dir" "$root" "$@" >"$log" 2>&1; then
    cat "$log"
    rm -f "$log"
    return 1
  fi
  mv "$log" "$dir/configure.log"
}

# The value of -Dcuda for programs that only run here: nvcc takes minutes, which are wasted without a device.
cuda_if_here() {
  if compgen -G '/dev/nvidia[0-9]*' >/dev/null || [[ -e /dev/dxg ]]; then echo auto; else echo disabled; fi
}

# Compiles what files share once for sixteen. (Meson 1.0 cannot link a layer with exactly sixteen files, or a multiple.)
unity=(--unity=on --unity-size=16)

# compile DIR TARGET...: one job per core, since an Eigen file takes about a GB.
compile() { ninja -C "$1" -j "$(nproc)" "${@:2}"; }
