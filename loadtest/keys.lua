-- Random keys for wrk: the requests are made ready before the clock starts, so that wrk's core is spent on the wire.
--
--   wrk -t1 -c128 -d8s -s loadtest/keys.lua http://127.0.0.1:8080 -- DEPTS [PIPELINE [SEED [TAGS]]]
--
-- Draws from /depts/1 to /depts/DEPTS, PIPELINE requests (1) sent at once. TAGS is a file whose line n is the entity tag
-- of document n, to be sent as If-None-Match. Ends with one line of JSON; times in it are microseconds.
local threads, requests, drawn = 0, {}, 0

function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

function init(args)
  local depts, pipeline, seed = tonumber(args[1]), tonumber(args[2] or 1), tonumber(args[3] or 42)
  local tags
  if args[4] then
    tags = {}
    for line in io.lines(args[4]) do tags[#tags + 1] = line end
  end
  math.randomseed(seed * 1000 + number)
  local count = math.ceil(math.min(math.max(depts, 100000), 1000000) / pipeline)
  for place = 1, count do
    local batch = {}
    for request = 1, pipeline do
      local key = math.random(1, depts)
      if tags then wrk.headers["If-None-Match"] = tags[key] end
      batch[request] = wrk.format("GET", "/depts/" .. key)
    end
    requests[place] = table.concat(batch)
  end
end

function request()
  drawn = drawn % #requests + 1
  return requests[drawn]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"requests":%d,"duration":%d,"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d,'
      .. '"mean":%.1f,"p50":%d,"p90":%d,"p99":%d,"max":%d}\n',
    summary.requests, summary.duration, errors.connect, errors.read, errors.write, errors.status, errors.timeout,
    latency.mean, latency:percentile(50), latency:percentile(90), latency:percentile(99), latency.max))
end
