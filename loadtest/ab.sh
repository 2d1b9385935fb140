#!/usr/bin/env bash
# Prints ab's own report for each tier: larder with one worker on core 0, ab on core 1.
#
#   loadtest/ab.sh [DEPTS] [CONNECTIONS] [REQUESTS]      default: 100000 128 500000
#
# ab requests one document all the time, since it takes only one URL: the CPU caches are always warm, and without a tier
# all requests that wait share one statement. For random keys see oha.sh.
# shellcheck source=loadtest/larder.sh
. "$(dirname "$0")/larder.sh"
need 'on Debian: apt-get install apache2-utils' ab
depts=${1:-100000} connections=${2:-128} requests=${3:-500000}

"$larder" seed --depts "$depts" --log-level warn
each_tier ab -q -k -n "$requests" -c "$connections" "$url/depts/$(((depts + 1) / 2))"
