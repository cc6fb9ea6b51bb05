-- is_cancelled(text) -> whether a failure reason (may be false) means that the job was cancelled.
local function is_cancelled(text)
  return text and string.sub(text, 1, 11) == "cancelled: "
end
