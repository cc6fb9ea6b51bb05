-- is_text(raw) -> whether it is UTF-8, and so can be encoded as JSON.
local function is_text(raw)
  if not string.find(raw, "[\128-\255]") then
    return true
  end
  local tail, place = "[\128-\191]", 1
  local forms = {
    "^[%z\1-\127]+",
    "^[\194-\223]" .. tail,
    "^\224[\160-\191]" .. tail,
    "^[\225-\236\238\239]" .. tail .. tail,
    "^\237[\128-\159]" .. tail,
    "^\240[\144-\191]" .. tail .. tail,
    "^[\241-\243]" .. tail .. tail .. tail,
    "^\244[\128-\143]" .. tail .. tail,
  }
  while place <= #raw do
    local last
    for i = 1, #forms do
      last = last or select(2, string.find(raw, forms[i], place))
    end
    if not last then
      return false
    end
    place = last + 1
  end
  return true
end
