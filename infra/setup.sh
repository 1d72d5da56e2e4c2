#!/usr/bin/env bash
# Sets up what is missing and nothing else. Used by the Makefile; safe to repeat and to interrupt.
#   infra/setup.sh main     .venv, Debian's prometheus
#   infra/setup.sh engine   the engine's own environment, the embedded model, the knob catalogue
set -euo pipefail
cd "$(dirname "$0")/.."

find_python() {
  local candidate
  for candidate in "${RATCHET_PYTHON:-}" python3.13 python3.12 python3.11 python3; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo "$candidate"; return; fi
  done
  echo "Python 3.11 or newer is needed and was not found. Install it (Debian: apt-get install python3 python3-venv) or set RATCHET_PYTHON." >&2
  exit 2
}

main_environment() {
  local want have python
  want=$(cat requirements/main.txt pyproject.toml | sha256sum | cut -c1-16)
  have=$(cat .venv/.ratchet-complete 2>/dev/null || true)
  [ "$want" = "$have" ] && return
  python=$(find_python)
  echo "setup: main environment (.venv) with $("$python" --version)"
  if [ ! -x .venv/bin/python ]; then
    "$python" -m venv .venv || { echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 2; }
  fi
  [ -x .venv/bin/pip ] || .venv/bin/python -m ensurepip >/dev/null
  .venv/bin/python -m pip install -q --disable-pip-version-check 'uv>=0.13,<1'
  .venv/bin/uv pip install -q --compile-bytecode -p .venv/bin/python --require-hashes -r requirements/main.txt
  .venv/bin/uv pip install -q -p .venv/bin/python --no-deps -e .
  echo "$want" > .venv/.ratchet-complete
}

prometheus_binary() {
  command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1 && return
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then as_root=(sudo -n)
    else echo "prometheus is missing and neither root nor password-less sudo is there. Install it: apt-get install prometheus" >&2; exit 2; fi
  fi
  echo "setup: installing Debian's prometheus"
  # The package's own service is not wanted: Ratchet starts its own on loopback.
  { "${as_root[@]}" apt-get update -q && "${as_root[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
      apt-get install -q -y --no-install-recommends prometheus; } >/tmp/ratchet-apt.$$.log 2>&1 \
    || { tail -5 /tmp/ratchet-apt.$$.log >&2; echo "apt-get could not install prometheus; install it by hand and run this again" >&2; exit 2; }
  rm -f /tmp/ratchet-apt.$$.log
}

case "${1:-main}" in
  main) main_environment; prometheus_binary ;;
  engine) .venv/bin/python infra/engine/environment.py ensure ;;
  *) echo "usage: infra/setup.sh main|engine" >&2; exit 2 ;;
esac
