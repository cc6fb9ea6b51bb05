-- append_job(jobs, prefix, id) -> bytes appended: the job's id and fields, if it exists.
local function append_job(jobs, prefix, id)
  local fields = redis.pcall("HGETALL", prefix .. id)
  local bytes = 0
  if #fields > 0 then
    jobs[#jobs + 1] = id
    jobs[#jobs + 1] = fields
    for i = 1, #fields do
      bytes = bytes + #fields[i]
    end
  end
  return bytes
end
