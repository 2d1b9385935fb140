#!/usr/bin/env bash
# ab's own page for each tier: larder's one worker on core 0, ab on core 1.
#
#   loadtest/ab.sh [DEPTS] [CONNECTIONS] [REQUESTS]      default: 100000 128 500000
#
# ab asks for one document all the time, since it takes one address: no cache of the machine is ever cold, and without a
# tier all requests that wait share one statement. For random keys see oha.sh.
# shellcheck source=loadtest/larder.sh
. "$(dirname "$0")/larder.sh"
need 'on Debian: apt-get install apache2-utils' ab
depts=${1:-100000} connections=${2:-128} requests=${3:-500000}

"$larder" seed --depts "$depts" --log-level warn
each_tier ab -q -k -n "$requests" -c "$connections" "$url/depts/$(((depts + 1) / 2))"
