-- A limit on what is in flight: nothing is used, what counts is what is held.
-- Twin of `src/algorithm/in_flight.rs`: change both or neither.

--[quota]
local _, capacity = struct.unpack('<I6I7', packed)

--[settle]
local settled, used, moved, wrong, raw = now, 0, false, nil, nil

--[numbers]
settled

--[widths]
'<I7I7I7',

--[charge]

--[save]
