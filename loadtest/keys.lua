-- Random keys for wrk: the requests are made ready before the clock starts, so that wrk's core is spent on the wire.
--
--   wrk -t1 -c128 -d8s -s loadtest/keys.lua http://127.0.0.1:8080 -- DEPTS [PIPELINE [SEED [PATH [KEY [TAGS]]]]]
--
-- Draws from /depts/1 to /depts/DEPTS, or with another PATH than /depts/, PIPELINE requests (1) sent at once. KEY is sent as
-- X-API-Key unless it is "-". TAGS is a file whose line n is the entity tag of document n, to be sent as If-None-Match.
-- Ends with one line of JSON; times in it are microseconds.
--
-- wrk opens all connections before it sends anything, within its duration: 16,384 of them take seconds. The duration that
-- is told begins with the first request. -d must be long enough for both.
local ffi = require("ffi")
ffi.cdef("struct timeval { long sec; long usec; }; int gettimeofday(struct timeval *, void *);")

local threads, requests, drawn = {}, {}, 0

local function micros()
  local now = ffi.new("struct timeval")
  ffi.C.gettimeofday(now, nil)
  return tonumber(now.sec) * 1e6 + tonumber(now.usec)
end

function setup(thread)
  thread:set("number", #threads)
  threads[#threads + 1] = thread
end

function init(args)
  local depts, pipeline, seed = tonumber(args[1]), tonumber(args[2] or 1), tonumber(args[3] or 42)
  local path, tags = args[4] or "/depts/", nil
  if args[5] and args[5] ~= "-" then wrk.headers["X-API-Key"] = args[5] end
  if args[6] then
    tags = {}
    for line in io.lines(args[6]) do tags[#tags + 1] = line end
  end
  math.randomseed(seed * 1000 + number)
  local count = math.ceil(math.min(math.max(depts, 100000), 1000000) / pipeline)
  for place = 1, count do
    local batch = {}
    for request = 1, pipeline do
      local key = math.random(1, depts)
      if tags then wrk.headers["If-None-Match"] = tags[key] end
      batch[request] = wrk.format("GET", path .. key)
    end
    requests[place] = table.concat(batch)
  end
end

function request()
  drawn = drawn + 1
  -- The first one of the first thread is only looked at.
  if drawn <= 2 then began = micros() end
  return requests[(drawn - 1) % #requests + 1]
end

function done(summary, latency)
  local errors, sent = summary.errors, 0
  for _, thread in ipairs(threads) do
    sent = math.max(sent, micros() - (thread:get("began") or math.huge))
  end
  local duration = sent > 0 and math.min(sent, summary.duration) or summary.duration
  io.write(string.format(
    '{"requests":%d,"duration":%d,"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d,'
      .. '"mean":%.1f,"p50":%d,"p90":%d,"p99":%d,"max":%d}\n',
    summary.requests, duration, errors.connect, errors.read, errors.write, errors.status, errors.timeout,
    latency.mean, latency:percentile(50), latency:percentile(90), latency:percentile(99), latency.max))
end
