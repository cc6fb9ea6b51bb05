-- append_job(jobs, prefix, id): append the job's id and its fields, if there is such a job.
local function append_job(jobs, prefix, id)
  local fields = redis.pcall("HGETALL", prefix .. id)
  if #fields > 0 then
    jobs[#jobs + 1] = id
    jobs[#jobs + 1] = fields
  end
end
