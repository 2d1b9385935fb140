-- wrk: POST of documents of a dept and ten emps, each with keys of its own. Arguments: the first key.
local threads = 0
function setup(thread)
  thread:set('number', threads)
  threads = threads + 1
end

function init(arguments)
  next_key = tonumber(arguments[1]) + number * 10000000
  created, others = 0, 0
  wrk.headers['Content-Type'] = 'application/json'
end

function request()
  local key = next_key
  next_key = next_key + 1
  local emps = {}
  for i = 0, 9 do
    emps[#emps + 1] = string.format(
      '{"empNo":%d,"empName":"EMPLOYEE %d","job":"CLERK","mgr":%d,"hiredate":"2026-01-02T03:04:05","sal":%d,"comm":null,"deptNumber":%d}',
      key * 10 + i, i, key, 1000 + i, key)
  end
  local body = string.format(
    '{"deptNumber":%d,"deptName":"ACCOUNTING","deptLocation":"NEW YORK","emps":[%s]}', key, table.concat(emps, ','))
  return wrk.format('POST', '/depts', nil, body)
end

function response(status)
  if status == 201 then created = created + 1 else others = others + 1 end
end

function done(summary, latency)
  io.write(string.format('{"per_second": %.1f, "p50_ms": %.2f, "p99_ms": %.2f, "errors": %d}\n',
    summary.requests * 1e6 / summary.duration, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    summary.errors.status + summary.errors.read + summary.errors.timeout + summary.errors.connect))
end
