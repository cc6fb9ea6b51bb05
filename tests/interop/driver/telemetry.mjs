// Real OpenTelemetry, kept in memory, for queues and workers with {telemetry: true}.

import { InMemorySpanExporter, NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node';
import { BullMQOtel } from 'bullmq-otel';

let exporter = null;

export function makeTelemetry() {
  if (!exporter) {
    exporter = new InMemorySpanExporter();
    new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }).register();
  }
  return new BullMQOtel('interop');
}

// The spans that ended since the last call.
export function spans() {
  const ended = exporter?.getFinishedSpans() ?? [];
  const shown = ended.map((span) => ({
    name: span.name,
    kind: span.kind,
    traceId: span.spanContext().traceId,
    spanId: span.spanContext().spanId,
    parentSpanId: span.parentSpanContext?.spanId ?? null,
    attributes: span.attributes,
  }));
  exporter?.reset();
  return shown;
}
