-- next_slot(last, every, offset, now) -> ms of the run after `last`: `every` ms later or, if that
-- is past, the first time after `now` that is `offset` past a multiple of `every`.
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
