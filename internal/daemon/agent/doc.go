// Package agent reconciles the clusters of one repository on one host: it wires
// what should be (sources) to what is and what to do about it (reconcile), finds
// out which clusters there are, and answers what the socket asks of them.
//
// It is made of a Config that is resolved already. It knows neither the files
// that configure the daemon nor the socket, systemd or signals: a daemon starts
// one, stops it, and starts another when its config changes; a rehearsal and the
// simulation run one by itself.
package agent
