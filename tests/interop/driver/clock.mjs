// A clock that tests can set. It must be installed before BullMQ is imported.
//
// Affected: Date.now() and new Date() everywhere in this process, hence every millisecond that
// BullMQ sends to Redis (timestamps, scores, due times, cron). Not affected: timers, which run in
// real time, and the clock of the server (life of locks and limiters, ids of stream entries).

const RealDate = globalThis.Date;

let frozenAt = null;

const now = () => frozenAt ?? RealDate.now();

class ClockDate extends RealDate {
  constructor(...args) {
    if (args.length === 0) {
      super(now());
    } else {
      super(...args);
    }
  }

  static now() {
    return now();
  }
}

globalThis.Date = ClockDate;

export const clockOps = {
  setClock(ms) {
    frozenAt = ms;
    return now();
  },

  tick(ms) {
    frozenAt = now() + ms;
    return frozenAt;
  },

  realClock() {
    frozenAt = null;
    return now();
  },
};
