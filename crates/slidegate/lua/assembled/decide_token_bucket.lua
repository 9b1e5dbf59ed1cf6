-- Assembled from the files of `lua/` that are named below. Do not edit: change those and run
-- SLIDEGATE_ASSEMBLE_LUA=1 cargo test -p slidegate --features redis assembled
-- Sent without comments; line NN here is line NN + 1 in an error of the server.

-- decide.lua
--
-- Decides requests in order, each on all of its keys or on none, at one time.
--
-- KEYS: the key of each part of the requests; with `once` last the key that stores the first reply.
-- ARGV: the latest server time at which the call may still charge (integer, us); `once` or `apply`;
--   the number of requests, and the cost of each (integers); then for each part
--   - the letter of its algorithm, or the number of an earlier part with the same key,
--   - its mode, see below,
--   - its quota, packed as the piece `quota` of the algorithm unpacks it (bytes),
--   - its own cost (integer); empty if it is the request's;
--   with `once` last how long the reply is stored (integer, ms).
-- A mode has five letters: the verb (`c`heck, `p`eek, `r`efund, pe`n`alize); `e`nforced or
--   `s`hadow; how an excess is handled (`-` deny, `+` charge, `!` count); the role (`d`eciding,
--   `t`ogether, `a` if allowed, `i`ndependent, `k` refusals); `o` if it is denied while over its
--   limit, otherwise `-`. `t`, `a` and `i` are followed by the number of the request, `k` by that
--   of its base part.
-- Reply: {requests that are not denied, now, {the algorithm's `numbers`} of each key before
--   anything was charged, {its `numbers` afterwards, the cost refunded} of each refund that was
--   carried out}; {-1, now} if the call is too late.
-- Layout: docs/redis-layout.md. Rust twin: `all_or_none` in `src/all_or_nothing.rs`: change both or neither.

-- token_bucket.lua
--
-- Token bucket: every charge fills the bucket, and it drains by `limit` per window.
-- Twin of `src/algorithm/token_bucket.rs`: change both or neither.

-- shared.lua
--
-- Pieces that the algorithms share. In the files of `lua/`, a piece begins at a line `--[name]`,
-- and a line `--@name` includes that piece. `lua/assembled/` has the whole scripts.
--
-- A script is a straight line of pieces rather than functions over tables, because creating those
-- costs more than the rest of a decision. Numbers are integers, in microseconds or cost, below
-- 2^53: there a double is exact, and so is the floor of a quotient of two such numbers. Constant
-- arguments of commands are text, because Redis takes a quarter of a microsecond to format a
-- number.

local call, argv = redis.call, ARGV
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > argv[1] + 0 then return { -1, now } end
local requests, parts = argv[3] + 0, #KEYS
-- With `once`, the last key stores the first reply to the same idempotency key.
local once
if argv[2] == 'once' then
  once, parts = KEYS[parts], parts - 1
  local first = call('GET', once)
  if first then return cmsgpack.unpack(first) end
end
local opens = {}
-- [opens]
-- The usage of a key, and the functions that report and change it.
opens.B = function(key, now, packed)
  -- [quota]
  local window, capacity, limit = struct.unpack('<I6I7I7', packed)
  -- [settle]
  -- The content at the time `at`: `level` is whole cost, `fraction` the rest in cost times
  -- microseconds, less than the window.
  local tag, at, level, fraction, settled, moved, wrong = 19, now, 0, 0, now, false, nil
  local rate = limit > 0 and limit or 1
  local raw = call('GET', key)
  if raw then
    local found, counted
    if #raw == 27 then found, counted, at, level, fraction = struct.unpack('<BI6I7I7I6', raw) end
    if found ~= tag then
      counted, at, level, fraction = window, now, 0, 0
      -- [foreign]
      -- `raw` is not a valid value of this algorithm, whose tag is `tag`. A value of another algorithm is
      -- ignored: the key starts afresh. The first byte 31 marks a log that was found truncated.
      local first = raw:byte(1)
      if not first or not (first >= 17 and first <= 20 or first == 33 or first == 34 or first == 31) then
        wrong = 'not of layout 1 or 2: its first byte is ' .. tostring(first)
      elseif first % 16 == tag - 16 or first == 31 then
        wrong = 'damaged: it has ' .. #raw .. ' bytes'
      end
    end
    -- [bound]
    -- Drops content above the maximum, which a lowered limit may leave.
    do
      -- [most]
      -- The maximum usage of a key: one window's drain above the capacity.
      local most = math.min(capacity + rate, 9007199254740991)
      if level > most or level == most and fraction > 0 then
        level, fraction = most, 0
      end
    end
    if now < at then
      if (level > 0 or fraction > 0) and at - now <= (counted < 1000000 and counted or 1000000) then
        settled = at
      else
        at, moved = now, true
      end
    else
      local drained = (now - at) * rate
      local whole = math.floor(drained / counted)
      local part = drained - whole * counted
      if drained >= 9007199254740992 then
        -- [mul_div]
        -- floor(a * b / c) and the remainder, for c below 2^45. A quotient above 2^53 is approximate.
        local function mul_div(a, b, c)
          local product = a * b
          if product < 9007199254740992 then
            local quotient = math.floor(product / c)
            return quotient, product - quotient * c
          end
          local whole = math.floor(b / c)
          local part = b - whole * c
          local quotient, rest, left = 0, 0, a
          -- Seven bits of `a` at a time, so that rest * 128 + digit * part stays below 2^53.
          local digit_value = 562949953421312
          while digit_value >= 1 do
            local digit = math.floor(left / digit_value)
            left = left - digit * digit_value
            rest = rest * 128 + digit * part
            local share = math.floor(rest / c)
            rest = rest - share * c
            quotient = quotient * 128 + share
            digit_value = digit_value / 128
          end
          return a * whole + quotient, rest
        end
        whole, part = mul_div(now - at, rate, counted)
      end
      at, part = now, fraction - part
      if part < 0 then
        part, whole = part + counted, whole + 1
      end
      if level < whole then
        level, fraction = 0, 0
      else
        level, fraction = level - whole, part
      end
    end
    if counted ~= window then
      -- A denial writes this as well, or what drains would go on to count by the former window.
      moved = true
      -- A fraction rounds up to a whole.
      if fraction > 0 then level, fraction = level + 1, 0 end
    end
  end
  local used = fraction > 0 and level + 1 or level
  local function report(needed)
    local numbers = {
      -- [numbers]
      settled, level, fraction
    }
    return numbers
  end
  local function save()
    -- [save]
    -- The TTL is the time until it is empty and up to five seconds more. `at` may be a second ahead.
    local ttl_us = used * window / rate + at - now
    -- A large burst may take longer to drain than Redis takes: 2^61, some 73,000 years.
    if ttl_us > 2305843009213693952 then ttl_us = 2305843009213693952 end
    call('SET', key, struct.pack('<BI6I7I7I6', 19, window, at, level, fraction),
      'PX', math.floor(ttl_us / 1000) + 4000)
  end
  local function charge(cost)
    -- [charge]
    level, used = level + cost, used + cost
    return save()
  end
  local function refund(cost)
    -- [refund]
    local refunded = math.min(cost, used)
    if refunded <= level then
      level = level - refunded
    else
      level, fraction = 0, 0
    end
    used = fraction > 0 and level + 1 or level
    if refunded > 0 and used == 0 then
      call('DEL', key)
    elseif refunded > 0 then
      local failed = save()
      if failed then return failed end
    end
    return refunded
  end
  -- [most]
  -- The maximum usage of a key: one window's drain above the capacity.
  local most = math.min(capacity + rate, 9007199254740991)
  return used, capacity, most, wrong, moved, report, charge, save, refund
end
-- Letters of the modes.
local CHECK, PEEK, REFUND, PENALIZE = 99, 112, 114, 110
local ENFORCED, CHARGE, COUNT, OVER = 101, 43, 33, 111
local DECIDING, TOGETHER, IF_ALLOWED, INDEPENDENT, REFUSALS = 100, 116, 97, 105, 107
-- By part. `at` is the first part with the same key.
local verb, enforced, excess, role, over, link, own, at = {}, {}, {}, {}, {}, {}, {}, {}
-- By key, at the index of its first part.
local used, capacity, most, moved, adds, needed, writes = {}, {}, {}, {}, {}, {}, {}
local report, charge, save, refund = {}, {}, {}, {}
local is_plain = true
for p = 1, parts do
  local from = 3 + requests + (p - 1) * 4
  local letter, mode = argv[from + 1], argv[from + 2]
  verb[p], enforced[p], excess[p], role[p], over[p] = mode:byte(1, 5)
  enforced[p], over[p] = enforced[p] == ENFORCED, over[p] == OVER
  if role[p] ~= DECIDING or over[p] then
    is_plain = false
    link[p] = tonumber(mode:sub(6))
  end
  own[p] = tonumber(argv[from + 4])
  if opens[letter] then
    local wrong
    at[p], adds[p], needed[p] = p, 0, 0
    used[p], capacity[p], most[p], wrong, moved[p], report[p], charge[p], save[p], refund[p] =
      opens[letter](KEYS[p], now, argv[from + 3])
    if wrong then return redis.error_reply('SLIDEGATE value ' .. p .. ' is ' .. wrong) end
  else
    at[p] = letter + 0
  end
end

local reply = { 0, now }
local is_denied, by_peek, denied
for request = 4, 3 + requests do
  local cost = argv[request] + 0
  is_denied, by_peek, denied = false, false, {}
  local added
  if not is_plain then
    -- Usage that counts for a part besides that of its own key.
    added = {}
    for p = 1, parts do
      if role[p] == REFUSALS and verb[p] == PEEK then
        added[link[p]] = (added[link[p]] or 0) + used[at[p]] + adds[at[p]]
      end
    end
  end
  for p = 1, parts do
    if verb[p] == CHECK or verb[p] == PEEK then
      local k, asks = at[p], own[p] or cost
      if excess[p] == CHARGE and asks > 1 then asks = 1 end
      -- In this order every sum is below 2^53, unless the cost can never fit.
      local excess_cost = asks - capacity[k] + used[k] + adds[k]
      if asks > 0 and excess_cost > 0 then
        denied[p] = true
        if excess_cost > needed[k] and asks <= capacity[k] then needed[k] = excess_cost end
      elseif over[p] then
        local least = excess[p] == CHARGE and 1 or 0
        denied[p] = least - capacity[k] + used[k] + adds[k] + (added[p] or 0) > 0
      end
      if denied[p] and enforced[p] and role[p] == DECIDING then
        is_denied, by_peek = true, by_peek or verb[p] == PEEK
      end
    end
  end
  -- By number of a request: whether an enforced policy denies it.
  local refused = {}
  if not is_plain then
    local has_together, all_together, has_peek = false, true, false
    for p = 1, parts do
      if denied[p] and enforced[p] and role[p] ~= DECIDING and role[p] ~= REFUSALS then
        refused[link[p]] = true
      end
    end
    for p = 1, parts do
      if role[p] == TOGETHER then
        has_together, all_together = true, all_together and refused[link[p]]
        has_peek = has_peek or verb[p] == PEEK
      end
    end
    if has_together and all_together then is_denied, by_peek = true, by_peek or has_peek end
  end
  if not is_denied then reply[1] = reply[1] + 1 end
  for p = 1, parts do
    if verb[p] == CHECK then
      local k, takes = at[p], own[p] or cost
      local passes = not is_denied
      if role[p] == INDEPENDENT then
        passes = not refused[link[p]]
      elseif role[p] ~= DECIDING then
        passes = passes and not refused[link[p]]
      end
      if excess[p] == COUNT or passes and excess[p] == CHARGE and not denied[p] then
        adds[k] = math.max(adds[k], math.min(adds[k] + takes, most[k] - used[k]))
        writes[k] = writes[k] or excess[p] == COUNT
        -- The wait includes a denied cost that was counted.
        local excess_cost = takes - capacity[k] + used[k] + adds[k]
        if excess[p] == COUNT and excess_cost > needed[k] and takes <= capacity[k] then
          needed[k] = excess_cost
        end
      elseif passes and not denied[p] then
        adds[k] = adds[k] + takes
      else
        denied[p] = true
      end
      writes[k] = writes[k] or moved[k]
    end
  end
  for p = 1, parts do
    if verb[p] == PENALIZE then
      local is_done = role[p] ~= IF_ALLOWED or not is_denied
      if role[p] == REFUSALS then
        local base = link[p]
        is_done = not by_peek and excess[base] ~= COUNT and (verb[base] ~= CHECK or denied[base])
      end
      if is_done then
        local k, takes = at[p], own[p] or cost
        adds[k], writes[k] = math.max(adds[k], math.min(adds[k] + takes, most[k] - used[k])), true
      end
    end
  end
end

local charged = false
for p = 1, parts do
  if at[p] == p then
    reply[#reply + 1] = report[p](math.min(needed[p], used[p]))
    if adds[p] > 0 then
      charged = true
      local failed = charge[p](adds[p])
      if failed then return failed end
    elseif writes[p] and used[p] > 0 then
      -- A penalty on a full key is written too, so that all stores have settled to the same time.
      save[p]()
    end
  end
end
-- A call with refunds is one request.
for p = 1, parts do
  if verb[p] == REFUND and (role[p] ~= IF_ALLOWED or not is_denied) then
    local k = at[p]
    local report_key, refund_key = report[k], refund[k]
    local from = 3 + requests + (p - 1) * 4
    if adds[k] > 0 or writes[k] then
      -- The key was written: read it again.
      local _
      _, _, _, _, _, report_key, _, _, refund_key =
        opens[argv[3 + requests + (k - 1) * 4 + 1]](KEYS[k], now, argv[from + 3])
    end
    local refunded = refund_key(own[p] or argv[4] + 0)
    writes[k] = true
    reply[#reply + 1] = report_key(0)
    reply[#reply][#reply[#reply] + 1] = refunded
  end
end
if once and charged and reply[1] > 0 then
  call('SET', once, cmsgpack.pack(reply), 'PX', argv[#argv])
end
return reply
