// Package httpserver serves HTTP to unknown clients without being worn down by
// them: so many connections at once and no more, and a deadline on everything a
// client could take its time over. The socket, the metrics and the webhooks are
// served through it.
//
// The package must not know what is served.
package httpserver
