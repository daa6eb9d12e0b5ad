// Package charts simulates where Helm charts come from: a chart repository and an
// OCI registry, with a stock of charts that are built in. Both speak the protocol
// of the real ones, over the world's network and with the world's latencies,
// faults and certificates.
//
// It must not know who asks, nor what becomes of a chart: the simulated
// Kubernetes sees only what Helm makes of it.
//
// Its calls are those of the systems "charts" and "registry" of [world.Call]; the
// operation is the method and the route. An archive that is sent, from either, is
// the span "chart/<name>".
package charts
