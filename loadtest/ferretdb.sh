#!/bin/sh
# Starts FerretDB 1.24 with the given arguments; builds it first, out of the Go module. Needs Go once.
# `loadtest workers --stores ferretdb` runs it.
set -eu
version=v1.24.2
target=$(cd "${CARGO_TARGET_DIR:-$(dirname "$0")/../target}" && pwd)
program=$target/ferretdb-$version
if [ ! -x "$program" ]; then
  work=$(mktemp -d)
  trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
  module=$(cd "$work" && go mod download -json "github.com/FerretDB/FerretDB@$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  cp -r "$module" "$work/source"
  chmod -R u+w "$work/source"
  # A module has no tags, which it takes its version from.
  echo "$version" > "$work/source/build/version/version.txt"
  (cd "$work/source" && go build -o "$program" ./cmd/ferretdb) >&2
  chmod -R u+w "$work"
  rm -rf "$work"
fi
exec "$program" "$@"
