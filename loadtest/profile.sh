#!/usr/bin/env bash
# Prints a table: which part of larder takes the CPU time of a hit in memory, next to the Go server of the original
# experiment.
#
#   loadtest/profile.sh [SECONDS] [CONNECTIONS]      default: 10 100
#
# perf samples larder's stacks on the clock of the CPU, so it needs no hardware counters, but the right to profile (root,
# or kernel.perf_event_paranoid at most 1). A sample counts for the system call that it is in; else for the innermost
# function with a part of its own, so what the compiler has inlined counts for its caller.
# shellcheck source=loadtest/larder.sh
. "$(dirname "$0")/larder.sh"
need 'on Debian: apt-get install linux-perf wrk' perf wrk
seconds=${1:-10} connections=${2:-100} depts=10000
export LARDER_WORKERS=1 LARDER_LIMITS__CONNECTIONS_PER_ADDRESS=$((connections + 100))

"$larder" seed --depts "$depts" --log-level warn
serve --tiers memory
fill "$depts"
taskset -ap -c 0 "$pid" > /dev/null
taskset -c 1 wrk -t1 -c"$connections" -d$((seconds + 3))s -s loadtest/keys.lua "$url" -- "$depts" > "$work/wrk" &
wrk=$!
trap 'kill "$wrk" 2> /dev/null || true; stop; rm -rf "$work"' EXIT
sleep 2
perf record --quiet --event cpu-clock --freq 499 --call-graph dwarf,16384 --pid "$pid" --output "$work/data" -- \
  sleep "$seconds"
wait "$wrk"
stop
perf script --no-inline --input "$work/data" --fields comm,ip,sym 2> /dev/null | awk '
  # Each sample is a line with the thread, the stack from the innermost function on, and an empty line.
  function part(   place, name) {
    if (stack ~ /__[a-z0-9]+_sys_(sendto|sendmsg|write|writev)\n/) return "write"
    if (stack ~ /__[a-z0-9]+_sys_(recvfrom|recvmsg|read|readv)\n/) return "read"
    if (stack ~ /__[a-z0-9]+_sys_epoll/) return "wait"
    if (stack ~ /entry_SYSCALL_64|asm_sysvec|asm_exc/) return "kernel"
    for (place = 1; place <= count; place++) {
      name = frames[place]
      if (name ~ /rjem_|malloc|calloc|realloc|^(c?free|sdallocx)|__rust_(alloc|dealloc|realloc)|alloc::alloc/) return "allocator"
      if (name ~ /dashmap|larder::cache|larder::documents/) return "cache"
      if (name ~ /serde_json/) return "json"
      if (name ~ /matchit|axum|larder::http::router/) return "routing"
      if (name ~ /httparse|http1::.*parse|Http1Transaction>::parse|poll_read|__recv/) return "request"
      if (name ~ /encode|poll_write|poll_flush|poll_drain|date::extend|__send/) return "response"
      if (name ~ /larder::|tower_service::Service/) return "handler"
      if (name ~ /tokio|mio::|hyper|clock_gettime|epoll/) return "runtime"
    }
    return "other"
  }
  function row(name, parts, original,   list, number, place, sum) {
    number = split(parts, list, " ")
    for (place = 1; place <= number; place++) sum += samples[list[place]]
    printf "| %s | %.2f | %s |\n", name, 100 * sum / all, original
  }
  NF == 0 { if (count) { samples[part()]++; all++ } count = 0; stack = ""; next }
  $1 ~ /^[0-9a-f]+$/ && NF > 1 { $1 = ""; frames[++count] = $0; sub(/^ /, "", frames[count]); stack = stack $0 "\n" }
  END {
    if (!all) { print "perf has no samples" > "/dev/stderr"; exit 1 }
    if (!samples["write"]) { print "perf names no system calls: run this as root" > "/dev/stderr"; exit 1 }
    printf "| %% of the CPU time, %d samples | larder | Go original |\n| --- | --- | --- |\n", all
    row("reading a request", "request", "9.29")
    row("background read", "", "7.04")
    row("writing the answer", "response", "21.74")
    row("handler", "handler routing json cache", "23.33")
    row("- routing", "routing", "2.29")
    row("- JSON", "json", "9.92")
    row("- cache", "cache", "4.53")
    row("allocator; Go: garbage collection", "allocator", "18.30")
    row("system calls", "read write wait kernel", "24.78")
    row("- reading", "read", "")
    row("- writing", "write", "")
    row("- waiting", "wait", "")
    row("runtime and timers", "runtime", "")
    row("other", "other", "")
  }'
tail -n 3 "$work/wrk"
