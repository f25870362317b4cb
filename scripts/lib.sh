# Shell functions shared by the scripts: where the caches are, which Python, which uv. Sourced, never run.
# Works with the bash 3.2 of macOS. Everything is kept outside the repository, in one folder that may be deleted.

NB_UV_VERSION=0.13.9
NB_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
NB_CACHE=${NIGHTBATCH_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set}/.cache}/nightbatch}
NB_OWN_UV=$NB_CACHE/uv-$NB_UV_VERSION-$(uname -s)-$(uname -m)/uv

nb_say() { printf 'nightbatch: %s\n' "$*" >&2; }
nb_die() { nb_say "$*"; exit 3; }

nb_sha256() { if command -v sha256sum >/dev/null 2>&1; then sha256sum; else shasum -a 256; fi; }

# nb_python: sets NB_PYTHON to a Python of 3.11 or later ("" when there is none).
nb_python() {
  local candidate path
  NB_PYTHON=
  for candidate in ${NIGHTBATCH_PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14 python; do
    path=$(command -v "$candidate" 2>/dev/null) || continue
    if "$path" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      NB_PYTHON=$path
      return 0
    fi
  done
}

# nb_scratch: sets NB_SCRATCH to a new folder in the cache that is removed when the script ends, however it ends.
# Folders whose script was killed are swept by the next one; the host is in the name because a home may be shared.
nb_scratch() {
  local host left pid
  if [ -n "${NB_SCRATCH:-}" ]; then return 0; fi
  host=$(uname -n)
  mkdir -p "$NB_CACHE" || nb_die "cannot create $NB_CACHE; set NIGHTBATCH_CACHE to a folder that you may write"
  for left in "$NB_CACHE"/.tmp-"$host"-*; do
    pid=${left##*-}
    if [ -d "$left" ] && ! kill -0 "$pid" 2>/dev/null; then rm -rf "$left"; fi
  done
  NB_SCRATCH=$NB_CACHE/.tmp-$host-$$
  rm -rf "$NB_SCRATCH"
  mkdir -p "$NB_SCRATCH" || nb_die "cannot create $NB_SCRATCH"
  trap 'rm -rf "$NB_SCRATCH"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
}

# nb_place FOLDER TARGET: moves a finished folder to its final name in one step. When another process was quicker, its
# folder stays and ours is dropped, so two installs at once are as good as one.
nb_place() {
  "${NB_PYTHON:-python3}" - "$1" "$2" <<'PY' || nb_die "could not move $1 to $2"
import os, shutil, sys
source, target = sys.argv[1:]
try:
    os.rename(source, target)
except OSError:
    if not os.path.exists(os.path.join(target, ".complete")):
        raise
    shutil.rmtree(source, ignore_errors=True)
PY
}

# nb_uv: sets NB_UV. From $UV, from PATH, from the cache, else installed into the cache by whatever this machine has.
nb_uv() {
  local home=${NB_OWN_UV%/uv} log
  # uv does not read pip's settings: carry over a mirror and a certificate file that are set for pip.
  if [ -n "${PIP_INDEX_URL:-}" ] && [ -z "${UV_INDEX_URL:-}${UV_DEFAULT_INDEX:-}" ]; then
    export UV_DEFAULT_INDEX=$PIP_INDEX_URL
  fi
  if [ -n "${PIP_CERT:-}" ] && [ -z "${SSL_CERT_FILE:-}" ]; then export SSL_CERT_FILE=$PIP_CERT; fi
  # Its downloads and its Pythons belong in the one folder, too. Beside the environments they are linked, not copied.
  export UV_CACHE_DIR=${UV_CACHE_DIR:-$NB_CACHE/uv-cache} UV_PYTHON_INSTALL_DIR=${UV_PYTHON_INSTALL_DIR:-$NB_CACHE/uv-python}
  if [ -n "${UV:-}" ]; then
    "$UV" --version >/dev/null 2>&1 || nb_die "UV=$UV does not run; unset it or point it at a uv program"
    NB_UV=$UV
    return 0
  fi
  if nb_uv_is_new_enough "$(command -v uv 2>/dev/null)"; then
    NB_UV=$(command -v uv)
    return 0
  fi
  NB_UV=$NB_OWN_UV
  if [ -f "$home/.complete" ] && [ -x "$NB_UV" ]; then return 0; fi

  nb_say "installing uv $NB_UV_VERSION into $home"
  nb_scratch
  log=$NB_SCRATCH/log
  mkdir "$NB_SCRATCH/uv"
  nb_uv_by_venv >"$log" 2>&1 || nb_uv_by_pip >>"$log" 2>&1 || nb_uv_by_installer >>"$log" 2>&1 ||
    nb_uv_by_debian >>"$log" 2>&1 || { nb_uv_failed "$log"; exit 3; }
  touch "$NB_SCRATCH/uv/.complete"
  rm -rf "$home"
  nb_place "$NB_SCRATCH/uv" "$home"
}

nb_uv_is_new_enough() { # a uv of 0.6 or later knows every option that these scripts use
  local version
  [ -n "$1" ] || return 1
  version=$("$1" --version 2>/dev/null | sed -n 's/^uv \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
  [ -n "$version" ] || return 1
  [ "${version% *}" -gt 0 ] || [ "${version#* }" -ge 6 ]
}

nb_uv_by_venv() {
  python3 -m venv "$NB_SCRATCH/pip" &&
    "$NB_SCRATCH/pip/bin/python" -m pip install --disable-pip-version-check --no-cache-dir -q "uv==$NB_UV_VERSION" &&
    cp "$NB_SCRATCH/pip/bin/uv" "$NB_SCRATCH/uv/uv" && "$NB_SCRATCH/uv/uv" --version
}

nb_uv_by_pip() {
  python3 -m pip install --disable-pip-version-check --no-cache-dir -q --target "$NB_SCRATCH/target" "uv==$NB_UV_VERSION" &&
    cp "$NB_SCRATCH/target/bin/uv" "$NB_SCRATCH/uv/uv" && "$NB_SCRATCH/uv/uv" --version
}

nb_uv_by_installer() { # the official script; it needs the open internet
  local url=https://astral.sh/uv/$NB_UV_VERSION/install.sh
  if command -v curl >/dev/null 2>&1; then
    curl --proto '=https' --connect-timeout 10 --max-time 60 -fsSL "$url" -o "$NB_SCRATCH/install.sh" || return 1
  elif command -v wget >/dev/null 2>&1; then
    wget -q --timeout=20 --tries=1 "$url" -O "$NB_SCRATCH/install.sh" || return 1
  else
    python3 -c 'import sys, urllib.request as u; open(sys.argv[2], "wb").write(u.urlopen(sys.argv[1], timeout=20).read())' \
      "$url" "$NB_SCRATCH/install.sh" || return 1
  fi
  UV_UNMANAGED_INSTALL=$NB_SCRATCH/uv sh "$NB_SCRATCH/install.sh" && "$NB_SCRATCH/uv/uv" --version
}

nb_uv_by_debian() { # Debian's and Ubuntu's python3 has neither venv nor pip: run pip out of their own package, unpacked
  local state=$NB_SCRATCH/apt wheel # here, so that nothing is installed on the machine and nobody needs to be root
  command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 || return 1
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
  set -- -qq -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state/cache" -o APT::Sandbox::User=root \
    -o Acquire::http::Timeout=20 -o Acquire::Languages=none
  (cd "$state" && apt-get "$@" update && apt-get "$@" download python3-pip-whl && dpkg-deb -x ./*.deb whl) || return 1
  wheel=$(ls "$state"/whl/usr/share/python-wheels/pip-*.whl) || return 1
  python3 "$wheel/pip" install --disable-pip-version-check -q --target "$NB_SCRATCH/target" "uv==$NB_UV_VERSION" &&
    cp "$NB_SCRATCH/target/bin/uv" "$NB_SCRATCH/uv/uv" && "$NB_SCRATCH/uv/uv" --version
}

nb_uv_failed() {
  nb_say "uv $NB_UV_VERSION could not be installed; what was tried:"
  sed 's/^/    /' "$1" | tail -25 >&2
  if ! command -v python3 >/dev/null 2>&1; then
    nb_say "there is no python3 here; on Debian or Ubuntu: sudo apt-get install python3 python3-venv"
  elif ! python3 -c 'import ensurepip, venv' 2>/dev/null && ! python3 -c 'import pip' 2>/dev/null; then
    nb_say "python3 has neither venv nor pip; on Debian or Ubuntu: sudo apt-get install python3-venv"
  else
    nb_say "check that this machine reaches its package index (for a mirror: PIP_INDEX_URL; for its certificate: PIP_CERT)"
  fi
  nb_say "or install uv yourself and set UV=/path/to/uv"
}

# nb_find_env NAME: sets NB_VENV to the place of the environment of locks/NAME.lock; succeeds if it is there, whole.
# Its name is made of what decides its content, so environments of different locks and Pythons live side by side.
nb_find_env() {
  local name=$1 lock=$NB_ROOT/locks/$1.lock pointer=$NB_ROOT/.work/$1.env key
  # Asking Python for its version costs more than all the rest: remember the answer while the lock has not changed.
  if [ -z "${NIGHTBATCH_PYTHON:-}" ] && [ "$pointer" -nt "$lock" ]; then
    IFS= read -r NB_VENV <"$pointer"
    case $NB_VENV in "$NB_CACHE"/*)
      if [ -f "$NB_VENV/.complete" ] && [ -x "$NB_VENV/bin/python" ]; then return 0; fi ;;
    esac
  fi
  if [ ! -f "$lock" ]; then return 1; fi
  nb_python
  key=$({ "${NB_PYTHON:-true}" -VV 2>&1; uname -sm; cat "$lock"; } | nb_sha256 | cut -c1-16)
  NB_VENV=$NB_CACHE/$name-$key
  [ -f "$NB_VENV/.complete" ] && [ -x "$NB_VENV/bin/python" ]
}

# nb_client_env NAME: sets NB_VENV to that environment, installed if it is not there yet, and notes that this clone uses it.
nb_client_env() {
  local name=$1 lock=$NB_ROOT/locks/$1.lock pointer=$NB_ROOT/.work/$1.env noted began
  [ -f "$lock" ] || nb_die "there is no $lock; git checkout should have brought it"
  if nb_find_env "$name"; then
    if [ "$pointer" -nt "$lock" ] && IFS= read -r noted <"$pointer" && [ "$noted" = "$NB_VENV" ]; then return 0; fi
  else
    nb_uv
    began=$(date +%s)
    nb_scratch
    if [ -z "$NB_PYTHON" ]; then
      nb_say "no Python 3.11 or later found; asking uv for 3.12"
    fi
    nb_say "installing the $name environment ($(grep -c '^[a-z]' "$lock") packages) into $NB_VENV"
    "$NB_UV" venv -q --no-project --relocatable --python "${NB_PYTHON:-3.12}" "$NB_SCRATCH/venv" ||
      nb_die "could not create a virtual environment with ${NB_PYTHON:-Python 3.12}; set NIGHTBATCH_PYTHON to a Python 3.11+"
    VIRTUAL_ENV=$NB_SCRATCH/venv "$NB_UV" pip sync -q --no-config --require-hashes --compile-bytecode "$lock" ||
      nb_die "the packages of $lock could not be installed; see the message above, then run the same command again"
    touch "$NB_SCRATCH/venv/.complete"
    rm -rf "$NB_VENV"
    NB_PYTHON=$NB_SCRATCH/venv/bin/python nb_place "$NB_SCRATCH/venv" "$NB_VENV"
    nb_say "installed in $(($(date +%s) - began)) s"
  fi
  mkdir -p "$NB_ROOT/.work" && printf '%s\n' "$NB_VENV" >"$pointer.$$" && mv -f "$pointer.$$" "$pointer"
}

# nb_noted NAME: whether this clone has used that environment, of whatever lock, and it is still there.
nb_noted() {
  local noted
  { IFS= read -r noted <"$NB_ROOT/.work/$1.env"; } 2>/dev/null || return 1
  case $noted in "$NB_CACHE"/*) [ -f "$noted/.complete" ] ;; *) return 1 ;; esac
}

# nb_which_env: sets NB_ENV to the environment that ./nightbatch runs in: the one that NIGHTBATCH_ENV names; else `submit` where
# this clone, or else this machine, has only that one; else `client`.
nb_which_env() {
  case ${NIGHTBATCH_ENV:-} in
    client | submit) NB_ENV=$NIGHTBATCH_ENV ;;
    '')
      NB_ENV=client
      if nb_noted client; then return 0; fi
      if nb_noted submit; then NB_ENV=submit; return 0; fi
      if [ -f "$NB_ROOT/.work/client.env" ]; then return 0; fi # both were deleted
      if [ -f "$NB_ROOT/.work/submit.env" ] || { ! nb_find_env client && nb_find_env submit; }; then NB_ENV=submit; fi ;;
    *) nb_say "NIGHTBATCH_ENV is '$NIGHTBATCH_ENV'; it must be client or submit, or not set"; exit 2 ;;
  esac
}
