# Shared by the scripts beside it; to be read with `.`, from the repository's root.

# need PROGRAM:PACKAGE...: makes sure that programs are there, installing their Debian packages where this user may.
need() {
  local pair missing=()
  for pair in "$@"; do command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}"); done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get install -y -q --no-install-recommends "${missing[@]}" >&2 && return
  fi
  echo "$0: install ${missing[*]} and run again" >&2
  exit 1
}

# The release binary, built now; FOREBAY_BIN names another one.
forebay_binary() {
  if [ -n "${FOREBAY_BIN:-}" ]; then echo "$FOREBAY_BIN"; return; fi
  cargo build --release -q -p forebay-cli >&2
  echo "${CARGO_TARGET_DIR:-target}/release/forebay"
}

# versions 'COMMAND'...: what is about to be measured, and on what.
versions() {
  local command
  echo "machine: $(uname -srm), $(nproc) x $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
  echo "date: $(date -u +%Y-%m-%dT%H:%MZ), commit: $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  for command in "$@"; do echo "version: $($command 2>&1 | head -n 1)"; done
  echo
}
