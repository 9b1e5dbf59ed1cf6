-- A limit on what is in flight: nothing is used, what counts is what is held.
-- Twin of `src/algorithm/in_flight.rs`: change both or neither.

--[quota]
local _, capacity = struct.unpack('<I6I7', packed)

--[settle]
local settled, used, moved, wrong = now, 0, false, nil

--[numbers]
settled

--[widths]
'<I7I7I7',

--[charge]

--[save]

--[counts_until]
local counts_until = now

--[has_usage]
local has_usage = false
