// Node BullMQ. `given` is the assignment, `body` what a job does.
export default ({ FlowProducer, Queue, QueueEvents, Worker }, given, body) => {
  const { hostname: host, port } = new URL(given.url);
  const connection = { host, port: Number(port) };
  const [name] = given.queues;
  const options = ({ delay, priority }) => ({
    ...(delay === undefined ? {} : { delay: Math.round(delay * 1000) }),
    ...(priority === undefined ? {} : { priority }),
  });

  class Producer {
    async open() {
      this.queue = new Queue(name, { connection });
      await this.queue.waitUntilReady();
      this.flows = new FlowProducer({ connection });
      await this.flows.waitUntilReady();
      if (given.results) {
        this.events = new QueueEvents(name, { connection });
        await this.events.waitUntilReady();
      }
    }
    add(data, more = {}) {
      return this.queue.add("quick", data, options(more));
    }
    addMany(datas, more = {}) {
      const opts = options(more);
      return this.queue.addBulk(datas.map((data) => ({ name: "quick", data, opts })));
    }
    addFlow(data, datas) {
      const job = { name: "quick", queueName: name };
      const children = datas.map((each) => ({ ...job, data: each }));
      return this.flows.add({ ...job, data, children });
    }
    wait(job) {
      return job.waitUntilFinished(this.events);
    }
  }

  const worker = (concurrency) => {
    const rest = () => new Promise((resolve) => setTimeout(resolve, 20));
    const run = async (job) => {
      if (given.task === "rest") await rest();
      return body(job.data.i);
    };
    const made = new Worker(name, run, {
      connection: { ...connection, maxRetriesPerRequest: null },
      concurrency,
    });
    made.on("error", (error) => console.error(error));
  };
  return { Producer, worker };
};
