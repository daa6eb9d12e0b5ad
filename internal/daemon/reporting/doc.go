// Package reporting reports how clusters stand to those outside who do not ask:
// a status for each commit to the forge, and notices to people and programs, on
// change only.
//
// It decides which statuses are worth a report and remembers what was reported,
// so that a restart is no news. It knows neither how clusters are reconciled nor
// the forms that a forge or a chat service wants, and delays nobody: what cannot
// be sent waits in an outbox.
package reporting
