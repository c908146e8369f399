# Functions for scripts that need packages of Python or npm. They are installed once, into a folder, and again when the
# list of their versions changes. The script ends with 3 if they cannot be had.

# python_packages FOLDER REQUIREMENTS: makes an environment with the packages of a file.
python_packages() {
  cmp --silent "$2" "$1/installed" && return
  python3 -m venv "$1" 2>/dev/null || { echo "Python with venv is not here" >&2; exit 3; }
  "$1/bin/pip" install --quiet --disable-pip-version-check -r "$2" >"$1/pip.log" 2>&1 ||
    { tail -n 1 "$1/pip.log" >&2; exit 3; }
  cp "$2" "$1/installed"
}

# npm_packages FOLDER SOURCE: installs what the lock file in a folder says.
npm_packages() {
  mkdir -p "$1"
  if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
    echo "npm or node is not here" >&2
    exit 3
  fi
  cmp --silent "$2/package-lock.json" "$1/installed" && return
  cp "$2/package.json" "$2/package-lock.json" "$1/"
  if ! npm ci --prefix "$1" --ignore-scripts --no-audit --no-fund --fetch-retries=1 --fetch-timeout=60000 \
    >"$1/npm.log" 2>&1; then
    grep --max-count=3 "^npm error" "$1/npm.log" >&2 || true
    # A lock file that does not fit is our mistake; anything else is taken for a network that is not there.
    ! grep --quiet --extended-regexp 'EUSAGE|EINTEGRITY' "$1/npm.log" || exit 1
    exit 3
  fi
  cp "$2/package-lock.json" "$1/installed"
}
