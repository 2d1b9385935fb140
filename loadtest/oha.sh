#!/usr/bin/env bash
# Prints oha's own report for each tier: larder with one worker on core 0, oha on core 1, random keys.
#
#   loadtest/oha.sh [DEPTS] [CONNECTIONS] [REQUESTS]      default: 100000 128 500000
#
# `cargo run --release -p loadtest -- sweep` does the same for several numbers of connections and keeps the figures.
# shellcheck source=loadtest/larder.sh
. "$(dirname "$0")/larder.sh"
need 'cargo install oha --locked' oha
depts=${1:-100000} connections=${2:-128} requests=${3:-500000}

"$larder" seed --depts "$depts" --log-level warn
seq 1 "$depts" | sed "s|^|$url/depts/|" > "$work/urls.txt"
each_tier oha --no-tui -n "$requests" -c "$connections" --urls-from-file "$work/urls.txt"
