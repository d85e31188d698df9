// Package trace sends decisions as OpenTelemetry spans over OTLP/gRPC: one span "sightline decide" each, as a child of the span
// that the request came with. Spans contain nothing that a client wrote: no prompt, no image, no header, no name of a model that is
// not configured. The candidates are span events. Nothing waits for the receiver: more than 2,048 unsent spans are dropped, and the
// outcome of each span is counted.
package trace

import (
	"context"
	"crypto/tls"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc/credentials"

	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/router"
)

const (
	maxQueued   = 2048
	longest     = 128             // bytes of a traceparent that is parsed; version 00 has 55
	flushWithin = 2 * time.Second // when it closes
)

// Options say where spans go.
type Options struct {
	Endpoint string                                // host:port of an OTLP/gRPC receiver
	Insecure bool                                  // plain text; otherwise TLS with the system's authorities
	Sample   float64                               // share of the decisions that are traced if the request came without a span, 0 to 1
	Version  string                                // Sightline's
	Recent   func(id string) (router.Recent, bool) // looks up a decision's candidates
	Log      *zap.Logger
	Metrics  prometheus.Registerer // nil: none
}

// Tracer makes spans of decisions.
type Tracer struct {
	provider *sdk.TracerProvider
	exporter sdk.SpanExporter
	tracer   trace.Tracer
	recent   func(id string) (router.Recent, bool)
	log      *zap.Logger
}

// counts holds the counters of spans by outcome, and the number waiting.
type counts struct {
	waiting atomic.Int64
	spans   *prometheus.CounterVec
}

// queue passes on only as many spans as the batcher behind it has room for, because the batcher drops others silently.
type queue struct {
	sdk.SpanProcessor
	*counts
}

func (q queue) OnEnd(span sdk.ReadOnlySpan) {
	if q.waiting.Add(1) > maxQueued {
		q.waiting.Add(-1)
		q.spans.WithLabelValues("dropped").Inc()
		return
	}
	q.SpanProcessor.OnEnd(span)
}

// sender counts the spans that the batcher exports.
type sender struct {
	sdk.SpanExporter
	*counts
}

func (s sender) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err, what := s.SpanExporter.ExportSpans(ctx, spans), "sent"
	if err != nil {
		what = "failed"
	}
	s.waiting.Add(-int64(len(spans)))
	s.spans.WithLabelValues(what).Add(float64(len(spans)))
	return err
}

// Start connects in the background: an unreachable receiver is not an error. OpenTelemetry's own errors, for which it has one
// handler per process, go to the log, each message once a minute.
func Start(opt Options) (*Tracer, error) {
	secure := otlptracegrpc.WithTLSCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12}))
	if opt.Insecure {
		secure = otlptracegrpc.WithInsecure()
	}
	exporter, err := otlptracegrpc.New(context.Background(), otlptracegrpc.WithEndpoint(opt.Endpoint), secure)
	if err != nil {
		return nil, err
	}
	log := opt.Log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, time.Minute, 1, 0)
	}))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces are not sent", zap.Error(err)) }))
	n := &counts{spans: meter.At(opt.Metrics).Counters("trace_spans_total", "Spans of decisions: sent, failed, dropped.", "what")}
	provider := sdk.NewTracerProvider(
		sdk.WithSpanProcessor(queue{sdk.NewBatchSpanProcessor(sender{exporter, n}, sdk.WithMaxQueueSize(maxQueued)), n}),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(opt.Sample))),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "sightline"), attribute.String("service.version", opt.Version))))
	return &Tracer{provider: provider, exporter: exporter, tracer: provider.Tracer("sightline"), recent: opt.Recent, log: log}, nil
}

// Decided implements extproc.Traced.
func (t *Tracer) Decided(traceparent, path string, d router.Decision, began time.Time, took time.Duration) {
	ctx := context.Background()
	if len(traceparent) <= longest {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent})
	}
	_, span := t.tracer.Start(ctx, "sightline decide", trace.WithTimestamp(began))
	if span.IsRecording() {
		span.SetAttributes(attributes(path, &d)...)
		t.candidates(span, d.ID)
	}
	span.End(trace.WithTimestamp(began.Add(took)))
}

// candidates adds the workers that the decision considered, best first, in tokens.
func (t *Tracer) candidates(span trace.Span, id string) {
	told, ok := t.recent(id)
	if !ok || told.Considered == 0 {
		return
	}
	span.SetAttributes(attribute.Int("sightline.considered", told.Considered), attribute.Int("sightline.ties", told.Ties),
		attribute.Float64("sightline.margin", told.Margin()))
	for _, c := range told.Ranked {
		span.AddEvent("sightline.candidate", trace.WithTimestamp(told.At.Add(told.Took)),
			trace.WithAttributes(attribute.String("sightline.worker", c.Worker), attribute.Int("sightline.rank", c.Rank),
				attribute.Int("sightline.exact_tokens", c.Exact), attribute.Int("sightline.predicted_tokens", c.Predicted),
				attribute.Int("sightline.encode_tokens", c.Encode),
				attribute.Int("sightline.inflight", c.Inflight), attribute.Float64("sightline.backlog_tokens", c.Backlog),
				attribute.Float64("sightline.cost_tokens", c.Cost)))
	}
}

// attributes uses the names of OpenTelemetry's semantic conventions for generative AI where they exist.
func attributes(path string, d *router.Decision) []attribute.KeyValue {
	out := []attribute.KeyValue{attribute.String("sightline.id", d.ID), attribute.String("sightline.reason", string(d.Reason))}
	operation := ""
	switch path {
	case denied.Chat, denied.Batch, denied.Responses, denied.Messages:
		operation = "chat"
	case denied.Completions:
		operation = "text_completion"
	}
	worker := ""
	if len(d.Targets) > 0 {
		worker = d.Targets[0].Worker
	}
	for _, a := range []attribute.KeyValue{attribute.String("gen_ai.operation.name", operation),
		attribute.String("gen_ai.request.model", d.Model), attribute.String("gen_ai.provider.name", d.Engine),
		attribute.String("sightline.worker", worker), attribute.String("sightline.why", d.Why)} {
		if a.Value.AsString() != "" {
			out = append(out, a)
		}
	}
	if d.PromptTokens > 0 {
		out = append(out, attribute.Int("gen_ai.usage.input_tokens", d.PromptTokens),
			attribute.Int("gen_ai.usage.cache_read.input_tokens", d.CachedTokens), attribute.Int("sightline.cached_tokens", d.CachedTokens))
	}
	return out
}

// Close sends what is queued, for at most two seconds. It may be called on nil.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushWithin)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.Warn("the last traces are not sent", zap.Error(err))
		_ = t.exporter.Shutdown(ctx) // otherwise it retries for a minute
	}
}
