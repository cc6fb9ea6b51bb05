// What JSON cannot say, as {"$kind": value}; jobs and errors as plain objects.

const JOB_FIELDS = [
  'id', 'name', 'data', 'opts', 'progress', 'returnvalue', 'stacktrace', 'delay', 'priority', 'timestamp',
  'attemptsStarted', 'attemptsMade', 'stalledCounter', 'failedReason', 'deferredFailure', 'finishedOn',
  'processedOn', 'parentKey', 'parent', 'deduplicationId', 'repeatJobKey', 'processedBy',
];

export function decode(value) {
  if (Array.isArray(value)) {
    return value.map(decode);
  }
  if (value === null || typeof value !== 'object') {
    return value;
  }
  if ('$undefined' in value) {
    return undefined;
  }
  if ('$number' in value) {
    return Number(value.$number);
  }
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, decode(inner)]));
}

export function describeJob(job) {
  return job ? Object.fromEntries(JOB_FIELDS.map((field) => [field, job[field]])) : null;
}

export function describeError(error) {
  return { name: error?.name, message: error?.message ?? String(error), code: error?.code ?? null };
}

export function send(message) {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}
