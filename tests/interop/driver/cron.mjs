// The runs of cron patterns, by the cron-parser that each version of BullMQ has, and as BullMQ uses it: every run is
// found anew, from the one before.

import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const PARSERS = {
  5: createRequire(require.resolve('bullmq5'))('cron-parser'),
  6: createRequire(require.resolve('bullmq6'))('cron-parser'),
};

function next(version, pattern, tz, after) {
  const options = { tz, currentDate: new Date(after) };
  const parser = PARSERS[version];
  const parsed = version === 5 ? parser.parseExpression(pattern, options) : parser.CronExpressionParser.parse(pattern, options);
  return parsed.next().getTime();
}

export const cronOps = {
  cronRuns(message, pattern, tz, after, count) {
    const runs = [];
    let last = after;
    for (let n = 0; n < count; n++) {
      last = next(message.version, pattern, tz, last);
      runs.push(last);
    }
    return runs;
  },
};
