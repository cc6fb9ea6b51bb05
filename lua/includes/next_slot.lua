-- next_slot(last, every, offset, now) -> ms of the run after the one at `last`: `every` ms later,
-- or, if that is past, the first instant after `now` that lies `offset` behind a multiple.
local function next_slot(last, every, offset, now)
  local slot = last + every
  if slot < now then
    slot = math.floor(now / every) * every + offset
    if slot <= now then
      slot = slot + every
    end
  end
  return math.floor(slot)
end
