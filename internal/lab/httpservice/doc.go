// Package httpservice is what the simulated HTTP services share: a server at an
// address of the world's network with the world's certificate, which closes
// without leaving anything running, and routes behind the world's latencies and
// faults.
//
// It must not know any of the services.
package httpservice
